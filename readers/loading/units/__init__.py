"""Units: what a batch is made of. One file for each kind; `unit` says what all have in common."""

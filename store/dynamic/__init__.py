"""Dynamic columns: typed columns for values that no space declares."""

"""The order of units within an epoch, as a pure function of seed and epoch."""

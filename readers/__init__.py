"""Everything that reads a store."""

"""The journal of a run: its files, their records, and recovery from them."""

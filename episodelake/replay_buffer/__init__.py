"""The replay buffer: the newest steps in memory, from the rows that recorders write and from the store."""

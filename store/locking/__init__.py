"""Locks of a local store, their owners, and the file systems that keep them."""

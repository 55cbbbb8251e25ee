"""Exact statistics of columns, cached on disk."""

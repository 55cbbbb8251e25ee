"""Columns of a loader: which ones, and the arrays, caches and files that hold them."""

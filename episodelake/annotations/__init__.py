"""Annotations that a store computes by itself: labels, parts of a split, and values of a function."""

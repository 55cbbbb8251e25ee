"""Batches as numpy, torch or JAX arrays."""

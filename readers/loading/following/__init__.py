"""Loaders that follow a store while it grows."""

"""Environments in a store: their arguments as JSON, and the files that they need."""

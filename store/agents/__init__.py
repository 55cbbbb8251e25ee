"""Agents of multi-agent stores and their columns."""

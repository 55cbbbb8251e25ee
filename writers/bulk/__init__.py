"""Whole episodes on their way from arrays and Arrow data to segments."""

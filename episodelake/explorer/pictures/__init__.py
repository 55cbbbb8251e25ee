"""Frames of episodes in the browser, which plays them: cameras, sheets for lists, and pictures of runs.

Begin with `camera`.
"""

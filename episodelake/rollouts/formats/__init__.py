"""Formats of rollouts of language agents: a module for each, with its reading and its writing.

`records.py` has what they share: files, JSON lines, and the path from a record to an episode. `writing.py`
has the same for exports.
"""

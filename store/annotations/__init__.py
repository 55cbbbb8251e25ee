"""Columns that episodes and steps get later.

annotations.py    writes them; splits
step_targets.py   the steps that they go to
renaming.py       other names for columns, and recorded columns that are dropped
"""

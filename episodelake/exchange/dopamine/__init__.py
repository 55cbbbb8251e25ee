"""Dopamine: `reading.py` over the files of `checkpoints.py`."""

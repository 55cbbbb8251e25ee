"""Dopamine's circular replay buffers.

`format.py` recognises folders, `checkpoints.py` reads files, `episodes.py` puts their rows in order of time.
"""

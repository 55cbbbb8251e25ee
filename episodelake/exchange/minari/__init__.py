"""Minari datasets: `reading.py` and `writing.py`, which also makes them in memory."""

"""Rows as they arrive: buffers and row sources. Uses `session`; begin with `step_rows.py`."""

"""Episodes written without an environment. Uses `rows` and `session`; begin with `episode_writer.py`."""

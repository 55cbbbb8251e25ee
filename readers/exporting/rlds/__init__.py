"""RLDS datasets that TFDS reads: `format.py` makes the records, `files.py` their files and features."""

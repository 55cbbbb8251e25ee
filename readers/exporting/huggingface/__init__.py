"""Folders of Hugging Face's `datasets`.

`format.py` writes shards of Parquet, `features.py` has the types of their columns, and `card.py` writes
`README.md`.
"""

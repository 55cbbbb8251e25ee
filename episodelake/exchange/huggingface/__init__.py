"""Hugging Face datasets; `table` reads them.

`writing.py` writes folders of Parquet, and datasets in memory; `card.py` writes the cards of folders.
"""

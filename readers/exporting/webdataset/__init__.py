"""WebDataset: `format.py` makes the samples, `tar_files.py` writes them."""

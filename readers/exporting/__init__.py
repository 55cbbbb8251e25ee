"""Exporting: episodes of a view become a dataset of another library.

`target.py` has the protocol, `export.py` writes a target whole or not at all. What a format cannot hold is
counted in the report. The formats are in `episodelake/exchange`.
"""

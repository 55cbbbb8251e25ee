"""Importing: datasets of other libraries become episodes of a store.

`formats.py` has what a format gives and finds that of a source, and `importer.py` writes its
episodes through an `EpisodeWriter`. Reading never executes code from a source.
The formats are in `episodelake/exchange`.
"""

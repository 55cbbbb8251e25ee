"""Importing: datasets of other libraries become episodes of a store, one module per format.

`dataset.py` has what a format gives, `formats.py` finds the format of a source, and `importer.py` writes its
episodes through an `EpisodeWriter`. Reading never executes code from a source.
"""

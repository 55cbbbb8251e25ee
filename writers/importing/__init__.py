"""Formats of datasets of other libraries: their protocol, and what they share.

`formats.py` has what a format gives and finds that of a source; `boundary.py` has what a source may do.
Reading never executes code from a source. The formats are in `episodelake/exchange`, the import itself in
`episodelake/importing`.
"""

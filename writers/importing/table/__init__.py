"""Tables of any kind.

`format.py` recognises them, `mapping.py` is `el.ColumnMapping`, `rows.py` reads the rows, `spans.py` finds
their episodes, `spaces.py` infers the spaces, `images.py` decodes images, and `convert.py` makes the rows of
a store.
"""

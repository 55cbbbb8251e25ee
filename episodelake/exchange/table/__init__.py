"""Tables of any kind.

`reading.py` recognises them, `mapping.py` is `el.ColumnMapping`, `rows.py` reads the rows, `spans.py` finds
their episodes, `spaces.py` infers the spaces, and `convert.py` makes the rows of a store. `writing.py`
writes Parquet and CSV.
"""

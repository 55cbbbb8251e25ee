"""Lakes: a folder, a prefix of an object store or an organisation of the Hub that holds many stores.

Begin with `lake.py`; `open_lake` opens each kind of root. `walk` finds the stores, `listing` reads changed
ones, `tables` shows their episodes and runs to DuckDB as one, `moving` renames and deletes. `pulling` makes a
store of a published version.
Nothing central is written: a lake is the stores inside it.
"""

"""New segments that replace old ones, and the operation that commits them.

    operation.py    one operation at a time: its lock, its name, its two commits; begin here
    rows.py         rows of old segments to a new one, in order or sorted
    rewriting.py    the engine, and deletion with it
    compaction.py   small segments into large ones
    merging.py      episodes of other stores; merge_sources.py, whether these fit
    artifacts.py    artifacts and saved environments in all of these

Each operation writes new files first, then commits `steps`, then `episodes`; a crash leaves files that no
version shows. Only vacuum deletes.
"""

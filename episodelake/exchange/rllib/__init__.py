"""RLlib's offline data.

`reading.py` recognises the files, `blocks.py` reads them as rows, `spans.py` finds the episodes among these
and `rows.py` joins them; `episodes.py` reads RLlib's own episodes. `writing.py` writes rows and episodes, the
latter also in memory.
"""

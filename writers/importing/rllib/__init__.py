"""RLlib's offline data.

`format.py` recognises the files, `blocks.py` reads them as rows, `spans.py` finds the episodes among these
and `rows.py` joins them; `episodes.py` reads RLlib's own episodes.
"""

"""RLDS datasets.

`reading.py` reads them, `exported.py` what our exports have beside them, `writing.py` writes them, and
`tfrecord.py` has the records of both.
"""

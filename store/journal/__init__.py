"""The write-ahead log of a run: rows and events of episodes until a segment has them.

It uses the schema, dynamic columns, locks and files; segments and recovery use it. Begin with `run_journal`
(parts and the seal log), then `records` and `reading`, `row_index` (whose rows lie where)
and `episodes` (finished ones).
"""

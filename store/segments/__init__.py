"""Segments: the committed files of steps and episodes.

They use the journal, the tables and Parquet; maintenance uses them. Begin with `seal`, the way from the
journal to the tables, then `steps_file` (rows in order).
"""

"""Verification of a store: one pass over all pages, and relations as SQL.

    inspection.py   the order of the checks, the report, and the repair
    pages.py        reads the pages of steps and annotations, and compares rows with their episodes
    relations.py    the episodes table in DuckDB, and the queries that compare it with what was found in rows

`store/checks.py` has the checks of single files.
"""

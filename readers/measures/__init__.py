"""Measures of episodes: statistics of columns, quality of a set of episodes, and signals of one over time.

Begin with `measuring`, whose statistics `column_stats` keeps; `quality` asks DuckDB for how good episodes are
to learn from. It uses `columns` and `sql`; loaders and charts use it.
"""

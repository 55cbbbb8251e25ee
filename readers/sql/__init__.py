"""DuckDB over the files of a view: its tables and macros, queries and their errors.

`connections` creates the views and macros of every connection; `sources` gives the files of a table, `macros`
(with `elements` and `histograms`) the text of the macros. `session` runs queries on connections that it
keeps, `query` checks them, `interrupting` stops them at Ctrl-C, and `names_nearby` suggests names.
"""

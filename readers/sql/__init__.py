"""DuckDB over the files of a view: its tables and macros, queries and their errors.

`connections` creates the views and macros of every connection; `sources` opens it and names the files of a
table, `macros` and `elements` give the text of the macros. `session` checks and runs queries on connections
that it keeps, `conditions` filters episodes, and `advice` writes messages.
"""

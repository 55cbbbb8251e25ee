"""DuckDB over the files of a view: its tables and macros, queries and their errors.

`query` is the door. `sources` says which files a table is, `macros` (with `elements` and `histograms`) what a
connection knows of episodes. `interrupting` stops at Ctrl-C; `names_nearby` says what a wrong name was meant
to be.
"""

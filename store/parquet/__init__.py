"""Parquet files: written with checksums, read with checks.

They use files, checksums and what a table's log lists; tables, segments and readers use them. Begin with
`files`; `page_checks` compares the checksums of pages, which engines skip.
"""

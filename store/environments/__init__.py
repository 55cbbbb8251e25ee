"""Environments in a store: their arguments as JSON, and the files that they need.

They use files, spaces and tagged JSON; maintenance, writers and readers use them. Begin with `artifacts`
(contents and bundles), then `codecs` (arguments), `records` (saved environments) and `saving`.
"""

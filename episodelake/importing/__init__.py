"""`import_dataset`: datasets of other libraries become episodes of a store, all in one commit.

`importing.py` checks the arguments and opens the source. `staging.py` writes its episodes to a store beside
the target, with `importer.py`, and brings them in. `digests.py` finds the episodes that have changed.
Formats are in `episodelake/exchange`; `writers/importing` has their protocol.
"""

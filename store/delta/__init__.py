"""Delta tables: the log of each table, its replayed state, atomic commits, checkpoints and their cleaning.

Uses files and the types of columns; begin with `table.Table` for writing, `version.TableVersion` for
reading. One `state.LogState` replays the log for both.
"""

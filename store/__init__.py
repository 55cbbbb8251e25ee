"""The format of a store: spaces to columns, schemas, journal, segments, tables, snapshots and maintenance."""

"""The three Delta tables: their logs, checksums, checkpoints and files."""

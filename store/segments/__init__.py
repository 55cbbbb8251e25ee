"""Segments: Parquet files of steps and episodes, how they are written and checked."""

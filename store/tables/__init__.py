"""Files of the three Delta tables, and what their columns mean: row pointers, annotations, overflow."""

"""Terminal output: tables, JSON and files."""

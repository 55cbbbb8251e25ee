"""Terminal output: tables, charts, JSON and prompts."""

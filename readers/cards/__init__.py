"""Cards: HTML summaries of stores, views and episodes in a notebook."""

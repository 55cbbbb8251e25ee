"""Cards: what stores, views and episodes show of themselves in a notebook, as HTML alone."""

"""Cards: what a store, a view and an episode show of themselves in a notebook, as HTML that needs nothing else."""

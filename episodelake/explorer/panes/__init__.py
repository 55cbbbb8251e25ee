"""Parts of the page that show episodes: one or two of them, several to compare, the newest, unsealed ones."""

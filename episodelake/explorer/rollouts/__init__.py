"""A rollout of a language agent on the page, as a conversation."""

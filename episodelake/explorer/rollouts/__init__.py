"""Rollouts in the explorer: `view.py` is what the page shows, `conversation.py` its HTML."""

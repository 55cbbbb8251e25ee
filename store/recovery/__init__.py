"""Journals of dead writers, and episodes that writers continue.

recovery.py             seals journals
recovered_episodes.py   the episodes in a journal, row by row
reopening.py            a writer continues an episode of the store
"""

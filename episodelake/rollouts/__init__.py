"""Rollouts of language agents: messages, exact tokens and branches as episodes.

`declaration.py` says what such a store has, `messages.py` and `tokens.py` turn a message into columns and
back, `writing.py` fills a store, `rollout.py` reads one rollout.
"""

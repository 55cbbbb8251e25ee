"""Rollouts of language agents: messages, exact tokens and branches as episodes.

`declaration.py` says what such a store has, `messages.py` and `tokens.py` turn a message into columns and
back, `steps.py` makes an episode of a rollout, `writing.py` fills a store, `rollout.py` reads one rollout,
and `formats/` has the formats of other tools.
"""

"""Run sessions: options, headers, journal parts, seals. Uses only the store; begin with `session.py`."""

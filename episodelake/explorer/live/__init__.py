"""The newest version of a store, and what is not in it yet: unsealed episodes, read from journals.

Begin with `watch`; `growing` polls the journals of running writers, and keeps the copies of single episodes.
"""

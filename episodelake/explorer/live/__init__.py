"""The newest version of a store, and what is not in it yet: unsealed episodes, read from journals.

Begin with `watch`; `journals` follows the journals of running writers, and `growing` opens single episodes.
"""

"""General tools that know nothing of stores: arguments, progress, prefetching, optional packages.

They use the errors alone; every other package uses them.
"""

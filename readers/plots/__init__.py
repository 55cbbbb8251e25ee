"""Interactive charts of many episodes, and of the signals of one, by Altair.

`accessor` is the door; it imports Altair, and what draws with it, when a chart is asked for. The numbers of a
chart are aggregated or sampled in DuckDB (`series`, `steps`), so that a chart of a million episodes is
small.
"""

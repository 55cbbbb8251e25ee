"""Interactive charts by Altair, notebook cards in HTML, and the tables that both are made from.

`plots` is the door to the charts; it imports Altair, and what draws with it, when a chart is asked for. The
numbers of a chart are aggregated or sampled in DuckDB (`series`, `steps`), so that a chart of a million
episodes is small. `cards` shows stores, views and episodes.
"""

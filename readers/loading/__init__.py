"""Feeding training: units of episodes in an order that can be repeated and resumed, as batches of arrays.

The flow of data: `feeding_view` turns the arguments into a `LoaderConfig`, and `feeding` makes a feed of
decoded columns (`readers.columns`); `transforms` derives columns from them; `unit` defines a unit
(`transitions`, `windows`) and gathers a batch of them; `orders`, `priorities` and `stream` decide which unit
comes when in an epoch; a `feed` yields batches of units, and its `BatchSource` cuts an epoch into batches and
transforms them; a `Loader` keeps the position and converts batches (`outputs`); `mixing` joins several
loaders.
"""

"""Feeding training: units of episodes in an order that can be repeated and resumed, as batches of arrays.

The flow of data: `feeding` turns the arguments into a `LoaderConfig` and makes a feed; `columns` decodes the
columns into arrays of rows, episode after episode (`step_arrays`); `transforms` derives columns from them;
`units` defines a unit (a transition, a window, ...) and gathers a batch of them; `order` decides which unit
comes when in an epoch; a `feed` yields batches of units; a `BatchSource` cuts an epoch into batches and
transforms them; a `Loader` keeps the position and converts batches (`output`).
"""

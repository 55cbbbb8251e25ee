"""Feeding training: units of episodes in an order that can be repeated and resumed, as batches of arrays.

The way of the data: `columns` says which columns are wanted and decodes them; `step_arrays` reads them into
arrays of rows, episode after episode; `units` says what a unit is (a transition, a window, ...) and gathers a
batch of them; `orders` says which unit stands where in an epoch; a `feed` puts these together; `loader` walks
along an epoch and hands out batches.
"""

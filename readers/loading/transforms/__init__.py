"""Transforms of values on their way to a learner; a file for each transform.

A loader's list of transforms has two kinds. Those of `on_read` see whole episodes before units are
gathered: `return_to_go`, `gae` and `relabel` derive columns, `frame_stack` stacks rows. All others are plain
callables that get a batch and give a batch: `normalise`, `one_hot`, `cast`, `clip`, `select_keys`,
`rename_keys`, or a function of the user; `keys` finds the arrays that they name.
"""

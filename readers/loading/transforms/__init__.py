"""Transforms of values on their way to a learner.

A loader's list of transforms has three kinds. Those of `episode_transforms` see whole episodes before units
are gathered (`on_read` applies them). `torch_module` runs when a batch is taken. All others are plain
callables that get a batch and give a batch: `normalize`, those of `key_transforms`, or a function of the
user; `keys` finds the arrays that they name.
"""

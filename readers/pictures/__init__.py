"""Frames and videos of episodes: recorded images, or what a replay in the environment renders.

`video` is the door. Frames run one way: a source (`recorded` or `rendered`) -> `Video` -> a file or a
notebook.
"""

"""Frames of episodes in the browser, which plays them.

`sources` has the frames, `served` sends them, the scripts beside `camera` draw them; `sheets` are for lists.
"""

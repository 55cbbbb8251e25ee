"""imitation's trajectories.

`format.py` recognises them and tells how they end, `forms.py` reads objects and files.
"""

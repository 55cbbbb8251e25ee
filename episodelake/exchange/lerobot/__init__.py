"""LeRobot's datasets.

`reading.py` recognises the folders and joins their episodes, `features.py` maps features to columns and
spaces, `files.py` reads tables, images and videos. `writing.py` writes episodes, `written_files.py` their
files.
"""

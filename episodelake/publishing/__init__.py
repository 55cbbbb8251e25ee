"""Published versions of stores: how one is made and sent, and how its files are fetched.

contents.py     a version's files with their checksums; names that are safe to write
building.py     a version in a folder of this machine, with its card, `readme.py`, and checksums
target.py       folders and object stores, which have versions side by side
hub.py          datasets of the Hugging Face Hub, which have a version per tag
publishing.py   `publish`: check the target, build, send, whatever the target; `published`
fetching.py     files of a version, verified, in a folder that appears whole; `lakes/pulling.py` is on top
"""

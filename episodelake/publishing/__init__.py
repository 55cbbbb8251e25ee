"""Published versions of stores: how one is made and sent, and how its files are fetched.

contents.py     a version's files with their checksums; names that are safe to write
versions.py     the versions at a target
building.py     a version in a folder of this machine: segments, card, chart, checksums
readme.py       its card, README.md
hub.py          datasets of the Hugging Face Hub
publishing.py   `publish`: check the target, build, send, commit
published.py    lists of versions, and how one is taken back
fetching.py     files of a version, verified, in a folder that appears whole; `_pulling` is on top
"""

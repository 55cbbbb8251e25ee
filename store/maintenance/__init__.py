"""Maintenance of a store: operations that change or check committed files.

    operation.py    one operation at a time: its lock, its name, its two commits
    rows.py         rows of old segments to a new one, in order or sorted
    rewriting.py    new segments in the place of old ones: the engine of compaction and deletion
    compaction.py   small segments into large ones
    deletion.py     deletes episodes
    vacuum.py       deletes files that no retained version needs
    tags.py         names for versions
    annotations.py  new columns for episodes and steps, later
    splitting.py    an annotation: train, validation, test
    merging.py      episodes of other stores
    reopening.py    episodes that writers continue
    verification.py faults, and their repair
    checks.py       one check each, of files; episode_checks.py, of episodes; step_checks.py, of steps
    derived.py      columns of episodes that follow from their steps

Each operation writes new files first, then commits `steps`, then `episodes`; a crash leaves files that no
version shows. Only vacuum deletes.
"""

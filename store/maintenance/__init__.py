"""Maintenance of a store: operations that change or check committed files. The top layer: it uses all others.

    operation.py    one operation at a time: its lock, its name, its two commits; begin here
    creation.py     creates a store, whole or not at all
    recovery.py     seals the journals of dead writers; recovered_episodes.py, the episodes in them
    reopening.py    episodes that writers continue
    rows.py         rows of old segments to a new one, in order or sorted
    rewriting.py    new segments that replace old ones: the engine; and deletion with it
    compaction.py   small segments into large ones
    merging.py      episodes of other stores; merge_sources.py, whether these fit
    annotations.py  new columns for episodes and steps, later; splits; step_targets.py, the steps they go to
    renaming.py     other names for columns
    tags.py         names for versions
    vacuum.py       deletes files that no retained version needs
    artifacts.py    artifacts and saved environments in all of these
    verification.py faults, and their repair
    checks.py       one check each, of files; episode_checks.py, of episodes; step_checks.py, of steps;
                    segment_checks.py leads through groups of episodes and their segments

Each operation writes new files first, then commits `steps`, then `episodes`; a crash leaves files that no
version shows. Only vacuum deletes.
"""

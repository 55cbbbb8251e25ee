"""Collection: a policy plays environments, and every transition is recorded.

    collect -> collection -> loop: batch.reset_ended, actor.act, batch.step, tally -> CollectStats
                             batch -> a recorder -> session

In the order of reading: `actor.py` and `team_actor.py` (from an observation to an action), `memory.py`
(nested values and recurrent state), `loop.py` with its batches `single.py`, `vector.py` and `pool.py`,
`goal.py` (stop conditions, seeds and options of resets), `stats.py` (results), `display.py`
(progress, rendering, Ctrl-C), `unrecorded.py` (without a store), `collection.py` (one call in one process),
`collect.py` (the entry point), and `workers.py`, `worker.py` and `processes.py` (many workers).
"""

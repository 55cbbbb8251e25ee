"""Collection: a policy plays environments, and every transition is recorded.

    collect -> collection -> loop: batch.settle, actor.act, batch.step, tally -> CollectStats
                             batch -> a recorder -> session

In the order of reading: `outputs.py` (what a policy returns), `values.py` (nested values of any array
library), `actor.py` and `team_actor.py` (from an observation to an action), `memory.py` (recurrent state),
`batch.py` (what the loop sees of an environment) with its four kinds `single.py`, `vector.py`, `pool.py` and
`teams.py`, `goal.py` (when it is enough), `stats.py` (what comes out), `resets.py` (seeds and options of
resets), `rendering.py`, `bar.py` and `interrupts.py` (progress, Ctrl-C), `loop.py`, `recorders.py` and
`collection.py` (one call in one process), `collect.py` (the door), and `workers.py`, `worker.py` and
`recorded.py` (the same in many processes).
"""

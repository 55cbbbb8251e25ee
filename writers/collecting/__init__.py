"""Collection: a policy plays environments, and every transition is recorded.

    collect -> Recorder or VectorRecorder, wrapped as a batch -> loop: settle, act, step, count ->
    CollectStats

In the order of reading: `outputs.py` (what a policy returns), `values.py` (nested values of any array
library), `actor.py` (from an observation to an action), `memory.py` (recurrent state), `batch.py` (what the
loop sees of an environment), `single.py`, `vector.py` (its two kinds), `goal.py` (when it is enough),
`loop.py`, `stats.py` (what comes out), `collect.py` (the door), and `workers.py` with `worker.py` (the same
in many processes).
"""

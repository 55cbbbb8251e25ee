"""Fault injection: stop a process, or make its disk fail, at every call that changes a file; then look.

    shim.c        stands between a process and the C library; counts calls below a folder and acts at a point
    shim.py       compiles it, and arms it from within a process that was started with it
    faults.py     what can go wrong at a point, and trials: which workload suffers what
    truth.py      what the recorded episodes hold, as plain functions
    promises.py   a log outside the store: what a workload was told is safe
    recording.py  plays scripts of episodes through a writer or a recorder, and goes on after errors
    teams.py      multi-agent episodes: what they hold, and the environments that play them
    team_recording.py  plays them through the recorders of PettingZoo
    workloads.py  what is done to a store while faults strike
    invariants.py what must hold afterwards, one named function for each sentence
    checking.py   looks at a store after the faults, before and after recovery
    zygote.py     a process with everything imported, which forks one child for every part of a trial
    campaign.py   surveys a workload's points, chooses among them, runs trials in parallel, and reports

A trial is: copy a template store, run a workload in a child that suffers faults, perhaps several times over,
then look at what is left from another child.

What is deterministic: the episodes, the choice of points, and, within one thread, the order of calls. What is
not: names with random parts, times, and the order of calls of several threads (a writer's background thread,
the threads of the table library). A point is counted, not named, so the same number may be another call in
another run. Each trial therefore reports the call at which its fault acted, and a trial whose point was never
reached says so.
"""

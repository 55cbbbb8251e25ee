"""Environments of runs, made again, and episodes played again in them.

`run_envs` and `env_recipe` read the stored spec of a run's environment without importing it. `environment`
makes the environment; `replay` and `team_replay` play a recorded episode in one, and `comparison` compares.
`rendering` gives what the environment shows meanwhile.
"""

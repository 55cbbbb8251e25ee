"""Environments of runs, made again, and episodes played again in them.

`run_envs` and `env_recipe` read what a run says of its environment and import nothing of it. `environment`
makes it; `replay` and `team_replay` play a recorded episode and compare.
"""

"""Columns of many episodes as arrays: which ones, how they are decoded, cached on disk, and measured.

`selection` chooses episodes; `specs` names columns and decodes their cells; `step_arrays` reads them into
memory, and `mapped` into files of a `cache_folder`; `gather` copies rows out of them; `measuring` computes
their statistics. It uses row groups (`blocks`) and frames of the readers; loaders and the replay buffer use
it.
"""

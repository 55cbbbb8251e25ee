"""Columns of many episodes as arrays: which ones, how they are decoded and cached on disk.

`selection` chooses episodes; `specs` names columns and decodes their cells; `step_arrays` reads them into
memory, and `mapped` into files of a `cache_folder`; `tree` copies rows out of them. It uses row groups
(`blocks`) and frames of the readers; measures, loaders and the replay buffer use it.
"""

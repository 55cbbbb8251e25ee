"""Import the modules that the library loads on first use, before a process forks children that need them."""

import importlib
import pkgutil

import duckdb
import pandas  # PyArrow imports it when it first makes Python values.
import polars
import pyarrow.dataset
import pyarrow.parquet

import episodelake.opening
import episodelake.readers
import episodelake.rollouts
import episodelake.store
import episodelake.writers

IMPORTED = (duckdb, pandas, polars, pyarrow.dataset, pyarrow.parquet)
#: Modules whose libraries take long to import, for what these children do not do.
LEFT_OUT = ("episodelake.readers.charts", "episodelake.readers.loading.torch_loading")


def preload() -> None:
    """Import the core."""
    for package in (episodelake.store, episodelake.writers, episodelake.readers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(LEFT_OUT):
                importlib.import_module(module.name)

"""Loaders of JAX arrays, tested in a process of their own: see `jax_checks`."""

import importlib.util
import subprocess
import sys

import pytest

from checkout import REPOSITORY


@pytest.mark.further
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_jax_arrays() -> None:
    """All that `jax_checks` says of them holds."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/jax_checks.py"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout and "skipped" not in run.stdout

"""Pytest settings that hold for the tests and for the doctests of the library.

The library's modules are collected through `episodelake/`, where its three links give every file the name
that it has when installed (`episodelake.store.errors`). At the top level the same files would be imported a
second time under a wrong name, so they are left out there, and so are the programs that are run by hand.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

LEFT_OUT = ("benchmarks", "build", "notebooks", "readers", "store", "writers")
collect_ignore_glob = [f"{folder}/*" for folder in LEFT_OUT]
# Ray has an environment of its own, in which `make test-rllib` runs.
if find_spec("ray") is None:
    collect_ignore_glob += ["episodelake/integrations/ray/*", "episodelake/integrations/rllib/*"]


@pytest.fixture(autouse=True)
def doctest_in_own_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each doctest in an empty folder of its own, since its examples create stores by relative paths."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    folder = request.getfixturevalue("tmp_path")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield

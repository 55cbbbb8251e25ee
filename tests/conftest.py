"""Settings and fixtures for the tests.

Hypothesis runs in one of three profiles. `ordinary` and `full` (`make test-cases`) derive their examples from
the test alone, so that a run gives the same result every time; `long` (`make test-slow`) draws many fresh
ones. None measures time: how fast the machine is decides nothing.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from effort import each_value_once, spread

pytest.register_assert_rewrite("environment_rules")

# A shell that starts the run in the background ignores Ctrl-C for it, and tests of Ctrl-C would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Garbage of earlier tests, such as connections of DuckDB, waits for its threads when it is collected. A
# forked child has none of them and would hang or crash, so it never collects what its parent made.
os.register_at_fork(after_in_child=gc.freeze)

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile("ordinary", parent=UNTIMED, derandomize=True, max_examples=20)
settings.register_profile("full", parent=UNTIMED, derandomize=True)
settings.register_profile("long", parent=UNTIMED, max_examples=1000)
settings.load_profile(os.environ.get("EPISODELAKE_TEST_PROFILE", "ordinary"))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Collect no doctests here: there are none, and looking for them imports what tests run elsewhere."""
    found = yield
    return [node for node in found if type(node) is pytest.Module]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark the cases of a test with the mark `sample` as `further`, but for those of the ordinary suite.

    The classes of a module that inherit a test have the cases of one test. Rules that a class names in
    `further_rules` are marked as well.
    """
    tests: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        if item.name in getattr(getattr(item, "cls", None), "further_rules", ()):
            item.add_marker("further")
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            tests.setdefault((item.nodeid.partition("::")[0], item.function.__qualname__), []).append(item)
    for cases in tests.values():
        count = cases[0].get_closest_marker("sample").args
        values = (
            [{(name, id(value)) for name, value in case.callspec.params.items()} for case in cases]
            if not count
            else []
        )
        ordinary = spread(len(cases), *count) if count else each_value_once(values)
        for place in set(range(len(cases))) - ordinary:
            cases[place].add_marker("further")


def pytest_collection_finish() -> None:
    """Keep the many objects of the modules out of every later garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free these objects at its end."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is cached on disk stays apart from the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPISODELAKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A small cluster of Ray, for tests of `make test-rllib`; a busy machine starts it slowly."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
    # Processes of the cluster import what tests send them, from the folders that pytest has put on the path.
    tests = os.path.dirname(__file__)
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each.startswith(tests))
    import ray.data

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=150 * 2**20, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    gc.collect()  # iterators of Ray Data report to the cluster when they go
    ray.shutdown()

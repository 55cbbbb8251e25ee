"""Settings and fixtures for the tests.

Hypothesis runs in one of two profiles. `ordinary` derives its examples from the test alone, so that a run
says the same every time; `long` (`make test-slow`) draws many fresh ones. Neither measures time: how fast the
machine is decides nothing.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the run in the background ignores Ctrl-C for it, and tests of Ctrl-C would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile("ordinary", parent=UNTIMED, derandomize=True)
settings.register_profile("long", parent=UNTIMED, max_examples=1000)
settings.load_profile(os.environ.get("EPISODELAKE_TEST_PROFILE", "ordinary"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is cached on disk stays apart from the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPISODELAKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

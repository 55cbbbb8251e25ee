"""Contracts: suites of rules for recorders, writers and formats of your own, to subclass in your tests.

    from episodelake.testing import RecorderAdapter, RecorderContract

    class TestMyRecorder(RecorderContract):
        adapter = MyAdapter()

It needs pytest beside what the library needs.
"""

import pytest

for _module in ("adapters", "environments", "formats", "recorder_rules"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from .adapters import Driver, RecorderAdapter  # noqa: E402
from .environments import Rollout, ScriptedEnv, assert_recorded, plain_loop, script  # noqa: E402
from .formats import FormatContract  # noqa: E402
from .recorder_rules import RecorderContract  # noqa: E402

__all__ = [
    "Driver",
    "FormatContract",
    "RecorderAdapter",
    "RecorderContract",
    "Rollout",
    "ScriptedEnv",
    "assert_recorded",
    "plain_loop",
    "script",
]

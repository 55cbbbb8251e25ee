"""Contracts: suites of rules for recorders, writers, formats and places of stores, to subclass in tests.

    from episodelake.testing import RecorderAdapter, RecorderContract

    class TestMyRecorder(RecorderContract):
        adapter = MyAdapter()

It needs pytest beside what the library needs, and `StoreContract` and `StoreMachine` hypothesis.
"""

from typing import TYPE_CHECKING, Any

import pytest

for _module in (
    *("adapters", "environments", "formats", "recorder_rules"),
    *("store_machine", "store_model", "stores"),
):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from .adapters import Driver, RecorderAdapter  # noqa: E402
from .backends import Backend  # noqa: E402
from .environments import PlayedEpisode, ScriptedEnv, assert_recorded, plain_loop, script  # noqa: E402
from .formats import FormatContract  # noqa: E402
from .recorder_rules import RecorderContract  # noqa: E402
from .stores import StoreContract  # noqa: E402

if TYPE_CHECKING:
    from .store_machine import StoreMachine

__all__ = [
    "Backend",
    "Driver",
    "FormatContract",
    "RecorderAdapter",
    "RecorderContract",
    "PlayedEpisode",
    "ScriptedEnv",
    "StoreContract",
    "StoreMachine",
    "assert_recorded",
    "plain_loop",
    "script",
]


def __getattr__(name: str) -> Any:
    """Import what needs hypothesis when it is used."""
    if name == "StoreMachine":
        from .store_machine import StoreMachine

        return StoreMachine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""`FormatContract` on a format of another package: it passes, and each fault of it fails a rule."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings

import episodelake as el
import their_format
from episodelake.plugin import ForeignEpisode, Holds
from episodelake.store.common.exchange import entries
from episodelake.testing import FormatContract
from episodelake.testing.format_cases import all_cases


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The format registered as an installed package registers it."""
    place = tmp_path_factory.mktemp("site")
    (place / "theirs-1.0.dist-info").mkdir()
    (place / "theirs-1.0.dist-info/METADATA").write_text("Name: theirs\nVersion: 1.0\n")
    (place / "theirs-1.0.dist-info/entry_points.txt").write_text(
        "[episodelake.sources]\nmine = their_format:FORMAT\n"
        "[episodelake.targets]\nmine = their_format:write_mine\n"
    )
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    entries.cache_clear()
    yield
    entries.cache_clear()


class TestTheirs(FormatContract):
    """The rules of the contract."""

    format = "mine"
    suffix = ".mine"
    cannot_hold = frozenset(
        {"card", "environment", "infos", "policy", "extra", "seed", "options", "metadata", "run", "ends"}
        | {"annotations", "artifacts", "episodes"}
    )
    # Its long episode is much text.
    further_rules: ClassVar = ("test_memory_is_bounded",)

    def cases(self) -> Any:
        """All but most spaces, which it refuses; half of them in `make test`."""
        return all_cases()[: 25 if settings().max_examples > 20 else 12]


def _without_last_reward(self: Any, values: Any) -> ForeignEpisode:
    found = ORIGINAL(self, values)
    return ForeignEpisode(**{**vars(found), "rewards": np.append(found.rewards[:-1], 0.0)})


def _half(export: Any, target: Path) -> None:
    export.target.write_text("begun")
    WRITE(export, target)


ORIGINAL = their_format.MyDataset.episode
WRITE = their_format.write_mine.write
RULES = [name for name in dir(FormatContract) if name.startswith("test_")]
#: A fault, what it changes, and the rule that sees it.
FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "a value is lost": (their_format.MyDataset, "episode", _without_last_reward, "come_back"),
    "a loss is not named": (
        their_format.write_mine,
        "holds",
        lambda options: Holds.all_but(last_observation="needed"),
        "come_back",
    ),
    "it writes beside its draft": (their_format.write_mine, "write", _half, "whole_or_not"),
    "it knows no limit": (their_format, "check_bytes", lambda *given: None, "memory"),
}


@pytest.mark.parametrize(
    # The bound of memory takes long.
    "fault",
    [pytest.param(each, marks=[pytest.mark.further] * (FAULTS[each][-1] == "memory")) for each in FAULTS],
)
def test_a_fault_of_a_format_fails_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The message names the case."""
    place, name, changed, words = FAULTS[fault]
    monkeypatch.setattr(place, name, changed)
    monkeypatch.setattr(TestTheirs, "cases", lambda self: all_cases()[:8])
    (rule,) = (each for each in RULES if words in each)
    with pytest.raises((AssertionError, el.EpisodelakeError)) as failed:
        getattr(TestTheirs(), rule)(tmp_path)
    assert str(failed.value)

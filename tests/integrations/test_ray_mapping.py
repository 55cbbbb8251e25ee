"""Annotations computed by tasks of Ray: they equal those of a loop, also when tasks and drivers fail.

`make test-rllib` runs these tests on a small Ray cluster.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from pathlib import Path

import pytest

import episodelake as el
from test_map_episodes import check_resumed, check_values
from test_ray_reading import LENGTHS, SPACES, recorded

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """Eight episodes of vectors, in several groups."""
    return recorded(tmp_path / "s", *SPACES["vectors"])[0]


def test_values_are_those_of_a_loop(store: el.EpisodeStore) -> None:
    """Numbers, vectors, texts, flags, NaN and NULL of steps and episodes."""
    check_values(store, engine="ray")


def test_a_module_that_workers_lack(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it."""
    (tmp_path / "only_here.py").write_text("def length(episode):\n    return len(episode)\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("only_here").length
    with pytest.raises(el.errors.ComputationError, match=r"cannot be loaded .*only_here"):
        store.map_episodes(function, "n", of="episode", engine="ray")


@pytest.mark.parametrize("point", ["during", "before", "after"])
def test_a_killed_driver(store: el.EpisodeStore, point: str) -> None:
    """Killed while it computes, before the commit or after it: the same call completes it, on any engine."""
    import ray

    check_resumed(store, point, "ray", ray.get_runtime_context().gcs_address)


def test_a_killed_task_is_tried_again(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A worker that dies in an episode costs nothing but time."""
    marker = tmp_path / "died"

    def dying(episode: el.Episode) -> int:
        if len(episode) == 12 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return len(episode)

    assert store.map_episodes(dying, "n", of="episode", engine="ray").episodes == len(LENGTHS)
    assert marker.exists() and store.episodes.collect()["n"].to_list() == list(LENGTHS)


def test_errors(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Errors are those of the local engine: a function that fails, types that differ, what cannot be sent."""
    with pytest.raises(
        el.errors.ComputationError, match=r"ZeroDivisionError: .*Nothing was committed"
    ) as raised:
        store.map_episodes(lambda one: 1 / (len(one) - 12), "n", of="episode", engine="ray")
    assert repr(store[4].id) in str(raised.value)
    with pytest.raises(el.errors.InvalidArgumentError, match="have the type"):
        store.map_episodes(lambda one: 1 if len(one) > 5 else "x", "n", of="episode", engine="ray")
    lock = threading.Lock()
    with pytest.raises(el.errors.InvalidArgumentError, match="cannot be sent to another process"):
        store.map_episodes(lambda one: lock.locked(), "n", of="episode", engine="ray")
    report = store.map_episodes(
        lambda one: 1 / (len(one) - 12), "n", of="episode", engine="ray", on_error="skip", workers=2
    )
    assert report.episodes == len(LENGTHS) - 1 and [key for key, _ in report.skipped] == [store[4].id]

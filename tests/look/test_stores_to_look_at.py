"""The example stores: `health` finds the planted faults alone, and the robot has its cameras and names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import episodelake as el
import stores_to_look_at as example
from picture_stores import as_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example was run."""
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stores_to_look_at.py", str(folder)])
        example.main()
    return folder


def test_planted_faults_are_found(folder: Path) -> None:
    """Each kind of fault is found in its episode of the faulty run, and nothing else is."""
    store = el.open(folder / "faults")
    affected = store.health().affected
    episodes = {
        (kind, store[position].run_id.partition("-")[0], store[position].number)
        for kind, position in affected.select("kind", "position").iter_rows()
    }
    assert episodes == {(kind, "faulty", number) for kind, number in example.FAULTS.items()}


def test_the_robot_has_four_cameras_and_named_joints(folder: Path) -> None:
    """Frames of every camera differ from step to step; the joints are charted by their names; arms reach."""
    store = el.open(folder / "robot")
    episode = store[0]
    for camera, size in example.CAMERAS.items():
        frames = episode.frames(column=camera)
        assert frames.shape == (len(episode) + 1, *size, 3)
        assert (frames[0] != frames[-1]).any()
    assert "left_1" in as_json(episode.plot(["observation.joints[0:7]"]))
    reasons = [one.end_reason for one in store]
    assert set(reasons) <= {"terminated", "cut"} and reasons.count("terminated") > 0

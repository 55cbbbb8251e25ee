"""Facts of datasets are those of the runs that imported them; the card of a store only sums them up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.explorer.pictures.sources import rate_of
from episodelake.readers.dataset_facts import DatasetFacts

SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def robot(folder: Path, fps: float | None, **card: Any) -> Path:
    """A dataset of LeRobot with one episode of four steps."""
    store = el.create(folder.with_name(f"{folder.name}-own"), observation_space=SPACE, action_space=SPACE)
    with store.writer() as writer:
        rows = np.random.default_rng([*folder.name.encode()]).normal(size=(5, 2)).astype(np.float32)
        writer.write_episode(
            observations=rows, actions=rows[1:], rewards=rows[1:, 0], terminations=True, truncations=False
        )
    store.refresh().export(folder, format="lerobot", fps=fps)
    (folder / "meta/episodelake.json").unlink()
    info = folder / "meta/info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), **card}))
    return folder


def taken(source: Path, into: Path, **options: Any) -> el.EpisodeStore:
    """Import a dataset, and open the store."""
    el.import_dataset(source, into, last_observation="missing", **options)
    return el.open(into)


def exported(view: Any, target: Path, **options: Any) -> dict[str, Any]:
    """The `info.json` of an export to LeRobot."""
    view.export(target, format="lerobot", **options)
    return json.loads((target / "meta/info.json").read_text())


def test_datasets_of_several_rates_keep_theirs(tmp_path: Path) -> None:
    """Conditions find them, an export of one has its facts, and one of all is refused or counts."""
    taken(robot(tmp_path / "slow", 15, robot_type="aloha"), tmp_path / "store")
    store = taken(robot(tmp_path / "fast", 30, robot_type="so100"), tmp_path / "store")
    assert store.card["fps"] == 15
    assert store.query("SELECT run.fps, run.robot_type FROM episodes ORDER BY 1").rows() == [
        (15, "aloha"),
        (30, "so100"),
    ]
    # The explorer plays each at its own.
    assert [rate_of(episode, store.card["fps"]) for episode in store] == [15, 30]
    fast = store.filter("run.fps = 30")
    info = exported(fast, tmp_path / "one")
    assert (info["fps"], info["robot_type"], info["total_episodes"]) == (30, "so100", 1)
    with pytest.raises(el.errors.DatasetError, match=r"several frame rates.*run\.fps = 30"):
        store.export(tmp_path / "all", format="lerobot")
    report = store.export(tmp_path / "all", format="lerobot", fps=20)
    assert report.lost["fps of a dataset, since there are several"] == 1
    assert report.lost["robot_type of a dataset, since there are several"] == 1
    assert json.loads((tmp_path / "all/meta/info.json").read_text())["robot_type"] is None


def test_the_card_and_the_caller_can_say_otherwise(tmp_path: Path) -> None:
    """An entry that the user changed counts for all; metadata of the import count for its episodes."""
    source = robot(tmp_path / "ds", 15)
    store = taken(source, tmp_path / "store", name="a", metadata={"fps": 25, "algo": "bc"})
    assert exported(store, tmp_path / "25")["fps"] == 25
    assert store[0].metadata.get("run_metadata") is None
    other = taken(source, tmp_path / "other")
    other.card["fps"] = 12
    assert exported(other, tmp_path / "12")["fps"] == 12
    # A store that its user made has no card; the runs have the facts.
    el.create(tmp_path / "bare", observation_space=spaces.Dict(state=SPACE), action_space=SPACE)
    bare = taken(source, tmp_path / "bare")
    assert not bare.card and exported(bare, tmp_path / "15")["fps"] == 15


def test_names_of_motors_go_out_again(tmp_path: Path) -> None:
    """As a list, whatever form they had; those of another count are counted."""
    for number, (names, expected) in enumerate(
        [(["a", "b"], ["a", "b"]), ({"motors": ["a", "b"]}, ["a", "b"]), (["a"], None), (None, None)]
    ):
        source = robot(tmp_path / f"ds{number}", 15)
        info = json.loads((source / "meta/info.json").read_text())
        info["features"]["action"]["names"] = names
        (source / "meta/info.json").write_text(json.dumps(info))
        store = taken(source, tmp_path / f"store{number}")
        report = store.export(tmp_path / f"out{number}", format="lerobot")
        features = json.loads((tmp_path / f"out{number}/meta/info.json").read_text())["features"]
        assert features["action"]["names"] == expected
        assert any("names of the numbers of action" in what for what in report.lost) == (names == ["a"])


def test_files_of_libero_keep_their_instructions(tmp_path: Path) -> None:
    """Each run has the attributes of its file; an export of one of them writes these."""
    texts = ["open the drawer", "turn on the stove"]
    for text in texts:
        with h5py.File(tmp_path / f"{text}.hdf5", "w") as file:
            data = file.create_group("data")
            data.attrs["problem_info"] = json.dumps({"language_instruction": text})
            data.attrs["env_args"] = json.dumps({"env_name": text, "type": 1, "env_kwargs": {"a": [{}]}})
            demo = data.create_group("demo_0")
            demo.attrs["num_samples"] = 4
            demo["obs/ee_pos"], demo["actions"] = np.ones((4, 3)) * len(text), np.ones((4, 7))
            demo["rewards"] = demo["dones"] = np.array([0, 0, 0, 1], np.uint8)
        taken(tmp_path / f"{text}.hdf5", tmp_path / "suite")
    store = el.open(tmp_path / "suite")
    for text in texts:
        view = store.filter("json_extract_string(run.problem_info, 'language_instruction') = ?", (text,))
        assert len(view) == 1
        view.export(tmp_path / f"{text}-out.hdf5", format="robomimic")
        with h5py.File(tmp_path / f"{text}-out.hdf5") as file:
            attributes: Any = file["data"].attrs
            assert json.loads(attributes["problem_info"]) == {"language_instruction": text}
            assert json.loads(attributes["env_args"])["env_name"] == text
    report = store.export(tmp_path / "both.hdf5", format="robomimic")
    assert report.lost["problem_info of a dataset, since there are several"] == 1
    assert report.lost["env_args.env_name of a dataset, since there are several"] == 1


def test_facts_come_back_from_metadata_as_they_were() -> None:
    """Nested ones too, beside the caller's; an import of an earlier release has the card's."""
    facts: dict[str, Any] = {
        "fps": 30,
        "tags": ["a"],
        "deep": {"x": [{"y": 1}]},
        "list": [[1], [2]],
        "one": [{}],
    }
    facts["title"] = "T"
    metadata = DatasetFacts.as_metadata({**facts, "gone": None}, {"title": "own"}, "x")
    found = DatasetFacts()
    found.take("new", metadata)
    del facts["title"]
    assert found.imported == {"new": facts} and metadata == {"title": "own"} == found.metadata["new"]
    assert found.stated({"fps": 15, "title": "card"}, ["new"])["new"]["fps"] == 15
    found.take("old", {"imported_from": "y"})
    stated = found.stated({"fps": 15}, ["new", "old"])
    assert (stated["new"]["fps"], stated["old"]["fps"]) == (30, 15)
    found.imported = {"old": {"a": 1, "b": {"c": 1, "d": 2}}, "new": {"b": {"c": 1, "d": {"e": 3}}}}
    assert found.shared({}, ["old", "new"]) == ({"a": 1, "b": {"c": 1}}, ["b.d"])


def test_deltas_in_seconds_are_those_of_the_steps(tmp_path: Path) -> None:
    """By the rate of runs, or else of the card; without one rate, and between steps, there is an error."""
    steps = {"observation.state": [-2, 0, 1], "action": [0, 1]}
    for fps, name in ((15, "slow"), (30, "fast")):
        store = taken(robot(tmp_path / name, fps), tmp_path / "store")
    for fps in (15, 30):
        view = store.filter(f"run.fps = {fps}")
        times = {key: [step / fps for step in own] for key, own in steps.items()}
        times["action"][1] = round(times["action"][1], 4)
        (batch,) = view.loader(16, el.Deltas(times, unit="seconds"))
        (expected,) = view.loader(16, el.Deltas(steps))
        for key in steps:
            assert np.array_equal(batch[key], expected[key])
            assert np.array_equal(batch["mask"][key], expected["mask"][key])
    refused = el.errors.InvalidArgumentError
    action = el.Deltas({"action": [0.0, 0.1]}, unit="seconds")
    with pytest.raises(refused, match="one number of frames per second; they have 15, 30"):
        store.loader(16, action)
    with pytest.raises(refused, match=r"no step is at 0\.1 s\. At 15 frames .* nearest is at 0\.1333 s"):
        store.filter("run.fps = 15").loader(16, action)
    with pytest.raises(refused, match="cannot follow a store"):
        store.loader(16, action, follow=el.Follow(newest_steps=100))
    own = el.create(tmp_path / "own", observation_space=SPACE, action_space=SPACE)
    for metadata in ({}, {"fps": 20}):
        with own.writer(metadata=metadata) as writer:
            rows = np.ones((5, 2), np.float32)
            writer.write_episode(
                observations=rows, actions=rows[1:], rewards=np.ones(4), terminations=True, truncations=False
            )
    own.refresh()
    with pytest.raises(refused, match="they have 20 and some have none"):
        own.loader(16, action)
    own.card["fps"] = 10
    assert next(iter(own[:1].loader(16, action)))["action"].shape == (4, 2, 2)
    with pytest.raises(refused, match="they have 10, 20"):
        own.loader(16, action)
    for wrong in ({"action": [0.5]}, {"action": [True]}):
        with pytest.raises(refused, match="whole numbers"):
            el.Deltas(wrong)
    odd: list[Any] = [{"action": ["x"]}, {"action": []}, {"action": [np.nan]}, {"t": [0.1]}]
    for wrong in odd:
        with pytest.raises(refused, match=r"numbers of seconds|has no values at other steps"):
            el.Deltas(wrong, unit="seconds")
    with pytest.raises(refused, match="unit"):
        el.Deltas({"action": [0]}, unit="minutes")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["parquet", "d4rl", "minari", "rlds", "robomimic", "lerobot"])
def test_every_format_keeps_the_facts_of_a_second_dataset(tmp_path: Path, format: str) -> None:
    """The runs have the cards of both; the store has the first; an export to Parquet has what they share."""
    suffix = {"parquet": ".parquet", "d4rl": ".hdf5", "robomimic": ".hdf5"}.get(format, "")
    for title in ("one", "two"):
        card = {"description": title, "algorithm": "both"}
        own = el.create(tmp_path / title, observation_space=SPACE, action_space=SPACE, card=card)
        rows = np.random.default_rng(len(card["description"]) + ord(title[0])).normal(size=(5, 2))
        with own.writer() as writer:
            writer.write_episode(
                observations=rows.astype(np.float32),
                actions=rows[1:].astype(np.float32),
                rewards=rows[1:, 0],
                terminations=True,
                truncations=False,
            )
        target = tmp_path / f"{title}-out{suffix}"
        if format == "rlds":
            target = tmp_path / "tfds" / title / "1.0.0"
            target.parent.mkdir(parents=True)
        own.refresh().export(target, format=format)
        store = taken(target, tmp_path / "all", format=format)
    runs = store.runs.collect()
    assert sorted(runs["metadata.description"]) == ["one", "two"]
    assert runs["metadata.algorithm"].to_list() == ["both", "both"]
    assert store.card["description"] == "one"
    report = store.export(tmp_path / "all.parquet", format="parquet")
    assert report.lost["description of a dataset, since there are several"] == 1
    back = taken(tmp_path / "all.parquet", tmp_path / "back")
    assert back.card["algorithm"] == "both" and "description" not in back.card

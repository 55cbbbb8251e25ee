"""LeRobot datasets: written by LeRobot itself (`data/exchange/make_lerobot.py`), damaged, and incomplete."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import av
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from PIL import Image

import episodelake as el

DATA = Path(__file__).parents[1] / "data" / "exchange"
EXPECTED = dict(np.load(DATA / "lerobot-v3" / "expected.npz"))
FURTHER = pytest.mark.further


def decoded(file: Path) -> np.ndarray:
    """All frames of a video."""
    with av.open(str(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def videos(folder: Path) -> np.ndarray:
    """All frames of the camera, in the order of the episodes."""
    return np.concatenate([decoded(file) for file in sorted((folder / "videos").rglob("*.mp4"))])


@pytest.mark.parametrize("name", ["lerobot-v3", "lerobot-v21"])
def test_a_dataset_of_lerobot_comes_in_as_lerobot_reads_it(tmp_path: Path, name: str) -> None:
    """Every value of three episodes; the videos as PyAV decodes them; a second import adds nothing."""
    report = el.import_dataset(DATA / name, tmp_path / "store", last_observation="missing")
    assert (report.format, report.episodes, report.steps) == ("lerobot", 3, 14)
    assert report.lost == {
        "a last observation, which the source lacks": 3,
        "whether next.done means terminated or truncated: taken as terminated": 1,
    }
    store, frames = el.open(tmp_path / "store"), videos(DATA / name)
    for index, episode in enumerate(store):
        rows = EXPECTED["episode_index"] == index
        wrist = np.rint(EXPECTED["observation.images.wrist"][rows] * 255).transpose(0, 2, 3, 1)
        observations: Any = episode.observations
        assert np.array_equal(observations["state"], EXPECTED["observation.state"][rows])
        assert np.array_equal(observations["images"]["wrist"], wrist)
        assert np.array_equal(observations["images"]["top"], frames[rows])
        assert np.array_equal(episode.actions[:, 0], EXPECTED["action"][rows])
        assert np.array_equal(episode.rewards, EXPECTED["next.reward"][rows])
        assert np.array_equal(episode.extra["next"]["success"], EXPECTED["next.success"][rows])
        assert not episode.has_last_observation
    assert [episode.end_reason for episode in store] == ["terminated", "cut", "terminated"]
    assert [episode.metadata["task"] for episode in store] == ["push 0", "push 1", "push 0"]
    assert (store.card["fps"], store.card["robot_type"]) == (10, "so100")
    assert not store.verify().faults
    again = el.import_dataset(DATA / name, store, last_observation="missing")
    assert (again.episodes, again.present) == (0, 3)


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """An image file."""
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, kind)
    return target.getvalue()


def sparse(folder: Path, **columns: Any) -> Path:
    """A dataset v2.1 of one episode with a state, an action and further columns: (feature, values)."""
    counts = {"frame_index": [0, 1, 2], "episode_index": [0, 0, 0], "index": [0, 1, 2]}
    given = {
        "observation": ({"dtype": "float32", "shape": [2]}, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]),
        "action": ({"dtype": "int64", "shape": [1]}, [3, 4, 5]),
        "timestamp": ({"dtype": "float32", "shape": [1]}, [0.0, 0.2, 0.4]),
        "task_index": ({"dtype": "int64", "shape": [1]}, [0, 1, 1]),
        **{name: ({"dtype": "int64", "shape": [1]}, values) for name, values in counts.items()},
        **{name.replace("__", "."): value for name, value in columns.items()},
    }
    info = {
        "codebase_version": "v2.1",
        "fps": 5,
        "features": {name: feature for name, (feature, _) in given.items()},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": None,
    }
    (folder / "meta").mkdir(parents=True)
    (folder / "data/chunk-000").mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    (folder / "meta/episodes.jsonl").write_text('{"episode_index": 0, "tasks": ["a", "b"], "length": 3}\n')
    tasks = ['{"task_index": 0, "task": "a"}', '{"task_index": 1, "task": "b"}']
    (folder / "meta/tasks.jsonl").write_text("\n".join(tasks))
    table = pa.table({name: pa.array(values) for name, (_, values) in given.items()})
    pq.write_table(table, folder / "data/chunk-000/episode_000000.parquet", row_group_size=2)
    return folder


@pytest.mark.further
def test_rewards_and_ends_that_are_not_there_are_not_invented(tmp_path: Path) -> None:
    """Rewards are NaN and counted; the episode is cut; tasks that change are a column."""
    report = el.import_dataset(sparse(tmp_path / "a"), tmp_path / "store", last_observation="missing")
    assert report.lost == {
        "rewards, which the source does not have: NaN": 3,
        "a last observation, which the source lacks": 1,
    }
    (episode,) = el.open(tmp_path / "store")
    assert np.isnan(episode.rewards).all() and episode.end_reason == "cut"
    assert np.array_equal(episode.observations, [[0, 1], [2, 3], [4, 5]])
    assert episode.actions.tolist() == [[3], [4], [5]]
    assert episode.extra["task"] == ["a", "b", "b"] and episode.metadata["tasks"] == ["a", "b"]


FLAG = {"dtype": "bool", "shape": [1]}


@pytest.mark.parametrize(
    ("done", "truncated", "expected"),
    [
        ([0, 0, 1], [0, 0, 0], "terminated"),
        ([0, 0, 1], [0, 0, 1], "truncated"),
        ([0, 1, 0], [0, 0, 0], "cut"),
    ],
)
@pytest.mark.further
def test_ends_are_what_the_flags_of_the_last_frame_say(
    tmp_path: Path, done: list[int], truncated: list[int], expected: str
) -> None:
    """A truncated frame that is done is truncated; an earlier flag is counted."""
    flags = {
        "next__done": (FLAG, np.array(done, bool)),
        "next__truncated": (FLAG, np.array(truncated, bool)),
        "next__reward": ({"dtype": "float32", "shape": [1]}, [1.0, 2.0, 3.0]),
    }
    folder = sparse(tmp_path / "a", **flags)
    report = el.import_dataset(folder, tmp_path / "store", last_observation="missing")
    assert el.open(tmp_path / "store")[0].end_reason == expected
    early = {} if done[2] else {"next.done before the last frame of an episode": 1}
    assert report.lost == {**early, "a last observation, which the source lacks": 1}


@pytest.mark.further
def test_spaces_of_the_caller_images_and_texts_fit(tmp_path: Path) -> None:
    """A Discrete action of shape (1,), JPEG frames with channels first, a text at every frame."""
    frames = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 3), np.uint8)
    folder = sparse(
        tmp_path / "a",
        observation__image=(
            {"dtype": "image", "shape": [3, 8, 6], "names": ["channels", "height", "width"]},
            [{"bytes": png(frame, "JPEG"), "path": None} for frame in frames],
        ),
        observation__language=({"dtype": "string", "shape": [1]}, ["x", "y", "z"]),
    )
    report = el.import_dataset(
        folder, tmp_path / "store", last_observation="repeat", action_space=spaces.Discrete(9)
    )
    assert "lerobot.observation.image" in report.mapping
    assert report.lost["frames of lossy JPEG"] == 3
    (episode,) = el.open(tmp_path / "store")
    assert episode.actions.tolist() == [3, 4, 5]
    extra = episode.extra["lerobot"]["observation"]
    assert extra["language"] == ["x", "y", "z", None]
    expected = np.asarray(Image.open(io.BytesIO(png(frames[1], "JPEG"))))
    assert np.array_equal(np.asarray(extra["image"][1]), expected)


def truncate(file: Path) -> None:
    """Cut off the end of a file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def edit(file: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def change_rows(file: Path, name: str, values: list[Any]) -> None:
    """Replace a column of a Parquet file."""
    table = pq.read_table(file)
    place = table.schema.get_field_index(name)
    pq.write_table(table.set_column(place, name, pa.array(values)), file)


DATA_FILE = "data/chunk-000/episode_000001.parquet"
VIDEO_FILE = "videos/chunk-000/observation.images.top/episode_000001.mp4"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: truncate(folder / DATA_FILE), r"episode_000001\.parquet cannot be read"),
        (lambda folder: truncate(folder / VIDEO_FILE), r"episode_000001\.mp4"),
        (lambda folder: (folder / VIDEO_FILE).unlink(), r"episode_000001\.mp4 is missing"),
        (
            lambda folder: change_rows(folder / DATA_FILE, "frame_index", [7]),
            r"episode_000001\.parquet, row 0: frame_index is 7; expected 0",
        ),
        (
            lambda folder: change_rows(folder / DATA_FILE, "action", [None]),
            r"episode_000001\.parquet: action has 1 NULLs",
        ),
        (
            lambda folder: change_rows(folder / DATA_FILE, "observation.images.wrist", [{"bytes": b"no"}]),
            r"Frame 0 of observation\.images\.wrist is no image",
        ),
    ],
)
@pytest.mark.further
def test_a_damaged_episode_is_named_or_skipped(
    tmp_path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    """The error names the file; with `on_error="skip"` the others come in."""
    folder = tmp_path / "lerobot"
    shutil.copytree(DATA / "lerobot-v21", folder)
    damage(folder)
    with pytest.raises(el.errors.DatasetError, match=message) as caught:
        el.import_dataset(folder, tmp_path / "store", last_observation="missing")
    assert any("Episode 1 of" in note for note in caught.value.__notes__)
    assert not (tmp_path / "store").exists()
    report = el.import_dataset(folder, tmp_path / "store", last_observation="missing", on_error="skip")
    assert [key for key, _ in report.skipped] == ["1"] and report.episodes == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"codebase_version": "v1.6"}, r"codebase_version is 'v1\.6'; v2\.0, v2\.1, v3\.0 can be read"),
        ({"fps": 0}, "fps=0; expected a number above 0"),
        ({"data_path": "../{episode_index}.parquet"}, "leads out of the dataset"),
        ({"data_path": "data/{episode_index.real}{name}"}, "is no pattern"),
        ({"features": {}}, "has no feature timestamp"),
    ],
)
@pytest.mark.further
def test_an_info_that_makes_no_sense_is_refused(tmp_path: Path, values: Any, message: str) -> None:
    """Before anything is written, and without a way out of the folder."""
    folder = sparse(tmp_path / "a")
    edit(folder / "meta/info.json", **values)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(folder, tmp_path / "store")
    assert not (tmp_path / "store").exists()


SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (16, 8, 3), np.uint8),
        "state": spaces.Tuple((spaces.Box(-9, 9, (2, 2), np.float32), spaces.Discrete(5))),
    }
)
ACTIONS = spaces.Box(-1, 1, (1,), np.float64)


def recorded(path: Path) -> el.EpisodeStore:
    """A store with an episode for each way to end, seeds, options, metadata and an empty policy."""
    store = el.create(path, observation_space=SPACE, action_space=ACTIONS, card={"title": "T", "fps": 20})
    random = np.random.default_rng(0)
    with store.writer() as writer:
        for index, length in enumerate((3, 1, 6)):
            rows = length + (index != 2)
            shades = np.arange(rows, dtype=np.uint8)[:, None, None, None] * 20 + 60
            writer.write_episode(
                observations={
                    "camera": np.broadcast_to(shades, (rows, 16, 8, 3)),
                    "state": (
                        random.normal(size=(rows, 2, 2)).astype(np.float32).clip(-9, 9),
                        random.integers(0, 5, rows),
                    ),
                },
                actions=random.uniform(-1, 1, (length, 1)),
                rewards=random.normal(size=length),
                terminations=index == 0,
                truncations=index == 1,
                policy={"value": np.zeros(length)} if index == 0 else None,
                seed=index if index else None,
                options={"level": index},
                metadata={"task": f"do {index % 2}", "odd": [1, 2.5]},
                last_observation="missing" if index == 2 else "present",
            )
    return store.refresh()


@pytest.mark.further
def test_frames_of_video_come_back_nearly(tmp_path: Path) -> None:
    """The contract of formats writes images; frames of video are near, and the rest is exact."""
    store = recorded(tmp_path / "store")
    report = store.export(tmp_path / "out", format="lerobot", frames="video")
    assert (report.episodes, report.steps) == (3, 10)
    assert report.lost["frames of lossy video"] == 10
    el.import_dataset(tmp_path / "out", tmp_path / "back", last_observation="missing")
    back = el.open(tmp_path / "back")
    assert (back.observation_space, back.action_space, back.card) == (SPACE, ACTIONS, store.card)
    for ours, theirs in zip(store, back, strict=True):
        seen: Any = ours.observations
        observations: Any = theirs.observations
        for index in (0, 1):
            assert np.array_equal(seen["state"][index][: ours.length], observations["state"][index])
        apart = np.abs(seen["camera"][: ours.length].astype(int) - observations["camera"])
        assert apart.max() <= 3


def test_options_count_more_than_the_card(tmp_path: Path) -> None:
    """A whole frame rate stays a whole number, and both options come back from an import."""
    store = recorded(tmp_path / "store")
    store.card.update(fps=10, robot_type="arm")
    store.export(tmp_path / "out", format="lerobot", frames="image", fps=20, robot_type="other")
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert (repr(info["fps"]), info["robot_type"]) == ("20", "other")
    el.import_dataset(tmp_path / "out", tmp_path / "back", last_observation="missing")
    card = el.open(tmp_path / "back").card
    assert (card["fps"], card["robot_type"]) == (20, "other")


@pytest.mark.further
def test_statistics_are_those_of_all_frames(tmp_path: Path) -> None:
    """As NumPy computes them from the concatenated episodes."""
    store = recorded(tmp_path / "store")
    store.export(tmp_path / "out", format="lerobot", frames="image")
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    actions = np.concatenate([episode.actions for episode in store])
    rewards = np.concatenate([episode.rewards for episode in store])
    for name, values in (("action", actions), ("next.reward", rewards[:, None])):
        for key in ("min", "max", "mean", "std"):
            assert np.allclose(stats[name][key], getattr(values, key)(0))
        assert stats[name]["count"] == [10]
    camera = np.concatenate([episode.observations["camera"][: episode.length] for episode in store])
    assert np.allclose(
        np.ravel(stats["observation.camera"]["std"]), camera.reshape(-1, 3).std(0) / 255, atol=1e-6
    )


def test_statistics_are_those_of_lerobot(tmp_path: Path) -> None:
    """LeRobot 0.4.4 wrote the same frames: its quantiles, from histograms of 5,000 bins, differ by a bin."""
    el.import_dataset(DATA / "lerobot-v3", tmp_path / "store", last_observation="missing")
    store = el.open(tmp_path / "store")
    store.export(tmp_path / "out", format="lerobot", frames="image")
    expected = json.loads((DATA / "lerobot-v3/meta/stats.json").read_text())
    written = json.loads((tmp_path / "out/meta/stats.json").read_text())
    for name in ("observation.state", "action", "next.reward", "frame_index", "observation.images.wrist"):
        assert sorted(written[name]) == sorted(expected[name])
        spread = np.array(expected[name]["max"]) - np.array(expected[name]["min"])
        for key, values in expected[name].items():
            if key == "std" and "images" in name:
                continue  # LeRobot 0.4.4 squares uint8, which overflows
            bin_width = 0 if key == "count" else spread / 5000
            assert np.all(np.abs(np.array(written[name][key]) - values) <= bin_width + 1e-6), (name, key)
    (file,) = (tmp_path / "out/meta/episodes").rglob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    for row, episode in zip(rows, store, strict=True):
        actions = np.sort(episode.actions[:, 0])
        assert row["stats/action/q50"] == [actions[int(np.ceil(len(actions) / 2)) - 1]]


@pytest.mark.further
def test_stacks_of_frames_have_the_statistics_of_numbers(tmp_path: Path) -> None:
    """LeRobot reads arrays of uint8 that are no pictures as they are, not from 0 to 1."""
    stacks = spaces.Box(0, 255, (4, 8, 6), np.uint8)
    store = el.create(tmp_path / "store", observation_space=stacks, action_space=ACTIONS)
    with store.writer() as writer:
        for _ in range(2):
            episode = writer.begin(stacks.sample())
            for _ in range(3):
                episode.append(np.zeros(1), 0.0, stacks.sample())
            episode.end()
    store.refresh().export(tmp_path / "out", format="lerobot")
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["observation.state"]
    frames = np.concatenate([episode.observations[:3] for episode in store])
    for key in ("min", "max", "mean", "std"):
        assert np.allclose(stats[key], getattr(frames, key)(0))


@pytest.mark.further
def test_places_and_times_are_those_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of episodes name their own file, and videos keep the time of odd rates."""
    monkeypatch.setattr("episodelake.exchange.lerobot.written_files.DATA_MB", 1e-6)
    monkeypatch.setattr("episodelake.exchange.lerobot.writing._BATCH", 1)
    store = recorded(tmp_path / "store")
    store.export(tmp_path / "out", format="lerobot", fps=3.3333)
    files = sorted((tmp_path / "out/meta/episodes").rglob("*.parquet"))
    assert len(files) == len(store)
    start = 0
    for number, (file, episode) in enumerate(zip(files, store, strict=True)):
        (row,) = pq.read_table(file).to_pylist()
        assert (row["meta/episodes/chunk_index"], row["meta/episodes/file_index"]) == (0, number)
        assert row["videos/observation.camera/from_timestamp"] == pytest.approx(start / 3.3333, abs=1e-6)
        start += episode.length


def test_labels_of_episodes_are_columns_of_meta(tmp_path: Path) -> None:
    """Annotations of episodes keep their types in `meta/episodes`, and come back as metadata."""
    box = spaces.Box(-1, 1, (2,))
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    with store.writer() as writer:
        for level in range(3):
            writer.write_episode(
                observations=np.zeros((3, 2), np.float32),
                actions=np.zeros((2, 2), np.float32),
                rewards=np.ones(2),
                terminations=True,
                truncations=False,
                metadata={"level": level},
            )
    store.refresh().label(1, good=False, note="slipped")
    report = store.export(tmp_path / "lerobot", format="lerobot")
    assert report.lost["the annotation note, which comes back as metadata"] == 1
    rows = pl.read_parquet(tmp_path / "lerobot/meta/episodes/chunk-000/file-000.parquet")
    assert rows["annotations/good"].to_list() == [None, False, None]
    assert rows["annotations/note"].to_list() == [None, "slipped", None]
    el.import_dataset(tmp_path / "lerobot", tmp_path / "back")
    back = [episode.metadata for episode in el.open(tmp_path / "back")]
    assert [(each["level"], each.get("good"), each.get("note")) for each in back] == [
        (0, None, None),
        (1, False, "slipped"),
        (2, None, None),
    ]


def test_labels_of_steps_are_features_of_frames(tmp_path: Path) -> None:
    """Flags, numbers and texts without NULL, which LeRobot has none of; they come back as they were."""
    box = spaces.Box(-1, 1, (2,))
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    with store.writer() as writer:
        for _ in range(2):
            writer.write_episode(
                observations=np.zeros((4, 2), np.float32),
                actions=np.zeros((3, 2), np.float32),
                rewards=np.ones(3),
                terminations=True,
                truncations=False,
            )
    rows = {"episode_id": [store.refresh()[0].id] * 3, "t": [1, 2, 3], "count": [2**24 + 1, None, None]}
    rows |= {"held": [True, False, None], "score": [0.5, float("nan"), None], "фаза": ["захват", "", "конец"]}
    store.annotate(
        pl.DataFrame({**rows, "when": [datetime(2026, 1, 1, tzinfo=UTC)] * 3}), ("episode_id", "t")
    )
    report = store.export(tmp_path / "lerobot", format="lerobot")
    lost = {what: count for what, count in report.lost.items() if "annotation" in what}
    assert lost == {
        "the annotation when, which is no flag, number or text": 2,
        "digits of the annotation count, which LeRobot reads as float32": 1,
        "the annotation score where it is NaN": 1,
        "the annotation фаза where it is an empty text": 1,
        "the annotation фаза of a last observation": 1,
    }
    features = json.loads((tmp_path / "lerobot/meta/info.json").read_text())["features"]
    names = {name: f"annotation.{name}" for name in ("held", "count", "score", "фаза")}
    kinds = [(features[name]["dtype"], features[name]["shape"]) for name in names.values()]
    assert kinds == [("float32", [1]), ("float64", [1]), ("float64", [1]), ("string", [1])]
    table = pq.read_table(tmp_path / "lerobot/data/chunk-000/file-000.parquet")
    assert table.column_names == list(features)
    assert [table[name].null_count for name in names.values()] == [0] * 4
    values = {name: table[feature].to_pylist() for name, feature in names.items()}
    assert np.array_equal(values["held"], [np.nan, 1, 0, *[np.nan] * 3], equal_nan=True)
    assert values["count"][1] == 2**24 + 1
    assert values["фаза"] == ["", "захват", "", "", "", ""]
    assert not {*names.values()} & {*json.loads((tmp_path / "lerobot/meta/stats.json").read_text())}
    for number, mapping in enumerate((None, {"observation": "observation.state", "action": "action"})):
        el.import_dataset(tmp_path / "lerobot", tmp_path / f"back{number}", mapping=mapping)
        first, second = el.open(tmp_path / f"back{number}")
        assert {name: list(each)[:3] for name, each in first.extra.items()} == {
            "held": [None, True, False],
            "count": [None, 2**24 + 1, None],
            "score": [None, 0.5, None],
            "фаза": [None, "захват", None],
        }
        assert second.extra == {}

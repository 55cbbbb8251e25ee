"""Each thing that a store can hold comes back from each format, or is named in its losses."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.readers.exporting.export import target_formats
from episodelake.store.dynamic.values import load_json
from episodelake.store.spaces import space_from_json
from exchange_episodes import _STATE_SPACES, _SUFFIXES, FORMATS, _plain

TARGETS = [*FORMATS, ("webdataset", {}), ("webdataset", {"layout": "transitions"}), ("rerun", {})]
OBSERVATION = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def store_at(path: Path, observation: spaces.Space = OBSERVATION, **given: Any) -> el.EpisodeStore:
    """An empty store."""
    return el.create(path, observation_space=observation, action_space=ACTION, **given)


def write(store: el.EpisodeStore, run: dict[str, Any] | None = None, **given: Any) -> el.EpisodeStore:
    """Write an episode of two transitions in a run of its own."""
    count = 2 if given.get("last_observation") == "missing" else 3
    arrays = {"terminations": True, "truncations": False, **given}
    kind: Any = store.observation_space.dtype
    facts: dict[str, Any] = run or {}
    with store.writer(**facts) as writer:
        writer.write_episode(
            observations=np.arange(2 * count).reshape(count, 2).astype(kind),
            actions=np.ones((2, 1), np.float32),
            rewards=[0.1, 0.2],
            **arrays,
        )
    return store.refresh()


def written(**given: Any) -> Callable[[Path], el.EpisodeStore]:
    """Return a function that makes a store with one episode."""
    return lambda path: write(store_at(path), **given)


def _runs(path: Path) -> el.EpisodeStore:
    store = store_at(path)
    for run in ("same", "same", "other"):
        write(store, {"run": run})
    return store


def _environment(path: Path) -> el.EpisodeStore:
    env = gym.make("Pendulum-v1", max_episode_steps=2)
    store = el.create(path, env)
    el.collect(env, None, store, episodes=1, seed=0)
    return store.refresh()


def _environments(path: Path) -> el.EpisodeStore:
    store = _environment(path)
    el.collect(gym.make("Pendulum-v1", max_episode_steps=3), None, store, episodes=1, seed=0)
    return store.refresh()


def _annotated(path: Path) -> el.EpisodeStore:
    store = write(store_at(path))
    keys = {"episode_id": [store[0].id]}
    store.annotate(pl.DataFrame({**keys, "label": ["good"]}))
    return store


def _annotated_steps(path: Path) -> el.EpisodeStore:
    store = write(store_at(path))
    store.annotate(
        pl.DataFrame({"episode_id": store[0].id, "t": [0, 1], "quality": [0.5, 1.5]}), on=("episode_id", "t")
    )
    return store


def _interrupted(path: Path) -> el.EpisodeStore:
    with store_at(path.with_name("alive")).writer() as writer:
        episode = writer.begin(np.zeros(2, np.float32))
        for _ in range(2):
            episode.append(np.ones(1, np.float32), 0.5, np.ones(2, np.float32))
        writer.flush()
        shutil.copytree(path.with_name("alive"), path)
    el.recover(path)
    return el.open(path)


def _with_artifact(path: Path) -> el.EpisodeStore:
    store = write(store_at(path))
    store.artifacts.add(b"prices", name="prices.bin")
    return store


def _with_saved_environment(path: Path) -> el.EpisodeStore:
    store = write(store_at(path))
    store.save_environment(gym.make("Pendulum-v1"), name="pendulum")
    return store


def _every(name: str) -> Callable[[Any], Any]:
    return lambda episodes: [_plain(getattr(each, name)) for each in episodes]


def _metadata(key: str) -> Callable[[Any], Any]:
    return lambda episodes: [_plain(each.metadata.get(key)) for each in episodes]


def _groups(episodes: Any) -> list[int]:
    runs = [each.metadata.get("run") or each.run_id for each in episodes]
    return [runs.index(run) for run in runs]


def _end(episodes: Any) -> Any:
    return [(each.end_reason, bool(each.terminated), bool(each.truncated)) for each in episodes]


def _dtypes(episodes: Any) -> Any:
    # robomimic names each part of an observation.
    parts = [each.observations for each in episodes]
    return [(part["observation"] if isinstance(part, dict) else part).dtype.name for part in parts]


#: A store, what to compare, what that is (None: what it is in the store), and the words of a loss.
THINGS: dict[str, tuple[Callable[[Path], el.EpisodeStore], Callable[[Any], Any] | None, Any, str]] = {
    "run": (written(run={"run": "ppo-seed3"}), _metadata("run"), ["ppo-seed3"], "the run of an episode"),
    "grouping": (_runs, _groups, None, "the run of an episode"),
    "run metadata": (
        written(run={"metadata": {"lr": 3e-4, "wandb": {"id": "x"}}}),
        _metadata("run_metadata"),
        [{"lr": repr(3e-4), "wandb": {"id": "x"}}],
        "the metadata of a run|metadata.[a-z.]+ of a run",
    ),
    "environment": (
        _environment,
        lambda each: "Pendulum-v1" in str(each.card.get("env_spec")),
        True,
        "env_spec of",
    ),
    "environments": (_environments, None, None, "the environment of a run, since there are several"),
    "card": (
        lambda path: write(store_at(path, card={"author": "A"})),
        lambda each: "A" in each.card.get("author", ""),
        True,
        "author of the card",
    ),
    "odd card": (
        lambda path: write(store_at(path, card={"odd": {"k": [1, None]}})),
        lambda each: each.card.get("odd"),
        {"k": [1, None]},
        "odd.* of the card",
    ),
    "spaces": (
        lambda path: write(store_at(path, spaces.Box(-9, 9, (2,), np.float32))),
        lambda each: str(each.observation_space),
        None,
        "spaces",
    ),
    "dtypes": (
        lambda path: write(store_at(path, spaces.Box(-np.inf, np.inf, (2,), np.float64))),
        _dtypes,
        None,
        "spaces",
    ),
    "small integers": (
        lambda path: write(store_at(path, spaces.Box(-128, 127, (2,), np.int8))),
        _dtypes,
        None,
        "spaces",
    ),
    "seed": (written(seed=7), _every("seed"), None, "seed"),
    "wide seed": (written(seed=2**70), _every("seed"), None, "seed"),
    "options": (written(options={"a": {"b": 1.5}}), _every("options"), None, "options"),
    "odd options": (written(options={"a": {"b": [1, None]}}), _every("options"), None, "options"),
    "metadata": (
        written(metadata={"level": 3, "say": "ü"}),
        lambda each: [each[0].metadata.get(key) for key in ("level", "say")],
        [3, "ü"],
        r"metadata\.",
    ),
    "odd metadata": (
        written(metadata={"odd": [1, "a"], "deep": {"k": None}, "own": np.arange(2)}),
        lambda each: _plain([each[0].metadata.get(key) for key in ("odd", "deep", "own")]),
        None,
        r"metadata\.",
    ),
    "infos": (
        written(infos=[{"cost": float(t), "say": "x"} for t in range(3)]),
        _every("infos"),
        None,
        "info",
    ),
    "odd infos": (
        written(infos=[{"cost": 1.5} if t else {"odd": [1, None]} for t in range(3)]),
        _every("infos"),
        None,
        "info",
    ),
    "policy values": (written(policy={"value": np.arange(2.0)}), _every("policy"), None, "policy"),
    "policy texts": (written(policy={"say": ["a", "b"]}), _every("policy"), None, "policy"),
    "own columns": (
        written(extra={"mark": np.arange(3)}),
        _every("extra"),
        None,
        "mark|step columns of a last",
    ),
    "odd own columns": (written(extra={"note": ["a", None, "c"]}), _every("extra"), None, "note"),
    "annotation of episodes": (_annotated, None, None, "the annotation label"),
    "annotation of steps": (_annotated_steps, None, None, "the annotation quality"),
    "terminated": (written(), _end, None, "as well|not cut|not truncated"),
    "truncated": (written(terminations=False, truncations=True), _end, None, "not cut|not truncated"),
    "both flags": (written(truncations=True), _end, None, "as well"),
    "cut": (written(terminations=False), _end, None, "not truncated"),
    "interrupted": (_interrupted, _end, None, "was interrupted, not"),
    "missing observation": (
        written(last_observation="missing"),
        _every("has_last_observation"),
        None,
        "last (transition|observation)",
    ),
    "last observation": (written(), lambda each: len(each[0].observations), None, "last observation"),
    "artifact": (_with_artifact, None, None, "an artifact"),
    "saved environment": (_with_saved_environment, None, None, "a saved environment"),
}
#: Annotations of steps are columns of tables and recordings; an import of tables makes them no annotations.
_KEPT_BY = {"annotation of steps": ("parquet", "csv", "huggingface", "rerun")}


@pytest.mark.sample
@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize(("format", "options"), TARGETS, ids=lambda each: str(each))
def test_a_thing_comes_back_or_is_lost(
    tmp_path: Path, format: str, options: dict[str, Any], thing: str
) -> None:
    """From every format, through our own import or the files; `strict` refuses exactly what is lost."""
    if format == "rerun":
        pytest.importorskip("rerun")
    make, of, expected, words = THINGS[thing]
    store = make(tmp_path / "store")
    target = tmp_path / f"out{_SUFFIXES.get(format, '')}"
    report = store.export(target, format=format, **options)
    lost = "\n".join(report.lost)
    if report.lost:
        with pytest.raises(el.errors.DatasetError, match="cannot hold everything"):
            store.export(target, format=format, strict=True, overwrite=True, **options)
    else:
        store.export(target, format=format, strict=True, overwrite=True, **options)
    if re.search(words, lost) or format in _KEPT_BY.get(thing, ()):
        return
    assert of is not None and format != "rerun", (lost, "is not named")
    back = _read(target, tmp_path / "back", store, format, options, thing)
    if back is None:
        return
    episodes, others = back
    again = of(episodes)
    if format == "csv" and "the types of other columns" in lost:
        words += "|the types of other columns"
    if again != (of(store) if expected is None else expected):
        # An import of a table without a mapping says which columns it leaves out.
        assert re.search(words, f"{lost}\n{others}" if format == "csv" else others), (again, lost, others)


def _read(
    target: Path, back: Path, store: el.EpisodeStore, format: str, options: dict[str, Any], thing: str
) -> tuple[Any, str] | None:
    """Return what an export holds, by our import or as samples; None if samples are checked elsewhere."""
    if format == "webdataset":
        return (_Samples(target), "") if options.get("layout") != "transitions" else None
    given: dict[str, Any] = {"last_observation": "missing"}
    if format not in _STATE_SPACES and thing not in ("spaces", "dtypes", "small integers"):
        given |= {"observation_space": store.observation_space, "action_space": store.action_space}
        given |= {"cast": "same_kind"} if format == "csv" else {}
    report = el.import_dataset(target, back, **given)
    return el.open(back), str(dict(report.lost))


class _Sample:
    """An episode of a tar file, with the attributes of ours as far as they are compared."""

    def __init__(self, facts: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.seed, self.options, self.metadata = facts["seed"], facts["options"], facts["metadata"]
        self.end_reason, self.has_last_observation = facts["end_reason"], facts["has_last_observation"]
        self.terminated, self.truncated = bool(arrays["terminated"][-1]), bool(arrays["truncated"][-1])
        self.observations = arrays["observation"]
        parts = {**facts.get("steps", {}), **arrays}
        infos = {name[5:]: part for name, part in parts.items() if name.startswith("info.")}
        self.policy = {name[7:]: part for name, part in parts.items() if name.startswith("policy.")}
        self.extra = {key: parts[key] for key in ("mark", "note") if key in parts}
        rows = range(len(self.observations))
        self.infos = [{key: part[t] for key, part in infos.items() if part[t] is not None} for t in rows]


class _Samples(list[_Sample]):
    """The episodes of a folder of tar files, and what its JSON file says."""

    def __init__(self, folder: Path) -> None:
        stated = json.loads((folder / "episodelake.json").read_text())
        self.card, self.observation_space = stated["card"], space_from_json(stated["observation_space"])
        samples: dict[str, dict[str, Any]] = {}
        for file in sorted(folder.glob("*.tar")):
            with tarfile.open(file) as shard:
                for member in shard:
                    key, _, name = member.name.partition(".")
                    content = shard.extractfile(member)
                    assert content is not None
                    arrays = samples.setdefault(key, {})
                    if name.endswith(".npy"):
                        arrays[name[:-4]] = np.load(io.BytesIO(content.read()))
                    else:
                        arrays[name.removesuffix(".json")] = load_json(content.read().decode(), name)
        super().__init__(_Sample(arrays.pop("json"), arrays) for arrays in samples.values())


def test_every_format_is_among_them() -> None:
    """A new format is tested here too."""
    assert {name for name, _ in TARGETS} == set(target_formats())


def test_own_metadata_win_over_the_run(tmp_path: Path) -> None:
    """An episode with metadata `run` of its own keeps them, and the run counts as lost."""
    store = store_at(tmp_path / "store")
    write(store, {"run": "ppo"}, metadata={"run": 5})
    write(store, {"run": "dqn"})
    for format in ("rlds", "parquet"):
        target = tmp_path / f"out{_SUFFIXES.get(format, '')}"
        report = store.export(target, format=format)
        assert [what for what in report.lost if "run" in what], dict(report.lost)
        el.import_dataset(target, tmp_path / f"back-{format}")
        assert el.open(tmp_path / f"back-{format}")[0].metadata["run"] == 5


def test_an_export_of_an_import_names_no_run(tmp_path: Path) -> None:
    """The run of an import stands in the source keys; a chain of exports holds what the first one did."""
    store = write(store_at(tmp_path / "store"), {"run": "ppo", "metadata": {"lr": 0.5}})
    for number in range(2):
        store.export(tmp_path / f"{number}.parquet", format="parquet", strict=True)
        el.import_dataset(tmp_path / f"{number}.parquet", tmp_path / f"back-{number}")
        store = el.open(tmp_path / f"back-{number}")
        metadata = {key: value for key, value in store[0].metadata.items() if not key.startswith("source_")}
        assert metadata == {"run": "ppo", "run_metadata": {"lr": 0.5}}


@pytest.mark.sample(8)
@pytest.mark.parametrize(("format", "options"), TARGETS, ids=lambda each: str(each))
def test_a_source_key_of_the_users_own_comes_back_or_is_lost(
    tmp_path: Path, format: str, options: dict[str, Any]
) -> None:
    """Formats whose import gives keys of its own say so; the keys of an import are no loss."""
    if format == "rerun":
        pytest.importorskip("rerun")
    store = write(store_at(tmp_path / "store"), metadata={"source_key": "mine", "source_digest": "d"})
    target = tmp_path / f"out{_SUFFIXES.get(format, '')}"
    lost = dict(store.export(target, format=format, **options).lost)
    assert any("metadata.source_digest" in what for what in lost)
    named = any("metadata.source_key" in what for what in lost)
    if format in ("webdataset", "rerun"):
        assert not named
    else:
        back = _read(target, tmp_path / "back", store, format, options, "source_key")
        assert back is not None and (back[0][0].metadata["source_key"] == "mine") is not named, lost
    store.export(tmp_path / "first.parquet", format="parquet")
    el.import_dataset(tmp_path / "first.parquet", tmp_path / "imported")
    imported = el.open(tmp_path / "imported")
    again = imported.export(tmp_path / f"again{target.suffix}", format=format, **options)
    assert not any("in whose place" in what for what in again.lost)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_that_lerobot_rounds_are_counted(tmp_path: Path, kind: Any) -> None:
    """LeRobot reads float64 as float32: values that change are lost, others are not."""
    store = store_at(tmp_path / "store", spaces.Box(-np.inf, np.inf, (2,), kind))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.array([[0.1, 0.5], [np.nan, 1 / 3], [0, 1]], kind),
            actions=np.ones((2, 1), np.float32),
            rewards=[0.5, 0.25],
            terminations=True,
            truncations=False,
        )
    lost = store.refresh().export(tmp_path / "out", format="lerobot").lost
    rounded = {what: count for what, count in lost.items() if "float32" in what}
    expected = {"digits of observation.state, which LeRobot reads as float32": 2}
    assert rounded == (expected if kind is np.float64 else {})


def test_integers_that_rerun_rounds_are_counted(tmp_path: Path) -> None:
    """Plots are doubles: integers beyond 53 bits change, of the other columns none."""
    pytest.importorskip("rerun")
    store = store_at(tmp_path / "store", spaces.Box(-(2**62), 2**62, (2,), np.int64))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.array([[2**53 + 1, 2**53], [1, 2**62 - 1], [0, 1]]),
            actions=np.ones((2, 1), np.float32),
            rewards=[0.5, 0.25],
            terminations=True,
            truncations=False,
            infos=[{"n": 2**60 + 1}, {"n": 3}, {"n": 4}],
        )
    lost = store.refresh().export(tmp_path / "out", format="rerun").lost
    assert lost["digits of integers in observation, which are doubles in Rerun"] == 2
    assert lost["digits of integers in info.n, which are doubles in Rerun"] == 1


@pytest.mark.parametrize("name", ["^good$", "*", "^r[ab]$", "plain"])
@pytest.mark.parametrize("chosen", [slice(None), slice(2, None), slice(None, None, -1)])
def test_annotations_are_counted_where_they_have_a_value(tmp_path: Path, name: str, chosen: slice) -> None:
    """Whatever an annotation is called, as many are lost as the exported episodes have values."""
    store = store_at(tmp_path / "store")
    for _ in range(4):
        write(store)
    store = store.refresh()
    for position, names in {0: [name], 3: [name, "ra"]}.items():
        store.label(position, **dict.fromkeys(names, True))
    view = store.refresh()[chosen]
    lost = view.export(tmp_path / "out", format="webdataset").lost
    told = {key: number for key, number in lost.items() if key.startswith("the annotation")}
    expected = {f"the annotation {name}": len({0, 3} & set(view.positions.tolist())), "the annotation ra": 1}
    assert told == expected

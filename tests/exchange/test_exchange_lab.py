"""A lab's folder of thirty datasets in one lake, and three questions to it, answered by plain loops too."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest

import episodelake as el
import lab_to_lake
from checkout import REPOSITORY
from episodelake.importing import staging
from episodelake.readers.exporting.tables import CARD_KEY
from lab_folder import Rollout, build, d4rl, made, minari_dataset, play
from test_cli import call, no_terminal, refused
from test_documentation import examples

__all__ = ["no_terminal"]

Datasets = dict[str, tuple[str, str, str, list[Rollout]]]
PAGE = REPOSITORY / "docs" / "lakes.md"


def questions() -> list[str]:
    """The three questions of the page, as SQL."""
    texts = [each.code for each in examples(PAGE.read_text("utf-8")) if "# Question" in each.code]
    return [code.split('"""')[1] for text in texts for code in text.split("# Question")[1:]]


def migrated(lab: Path, lake: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[str, str]:
    """Run the script, and return what it printed."""
    failed = lab_to_lake.main([str(lab), str(lake), *options])
    printed = capsys.readouterr()
    assert failed == printed.out.count(": failed\n")
    return printed.out, printed.err


@pytest.mark.parametrize(
    "environment",
    [pytest.param("here", marks=pytest.mark.further), pytest.param("peers", marks=pytest.mark.peers)],
)
def test_a_lab_of_thirty_datasets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], environment: str
) -> None:
    """Bad datasets are named and the others come in; a second call takes what was repaired, and no more."""
    lab = tmp_path / "lab"
    datasets = build(lab)
    assert len(datasets) == 30
    if find_spec("stable_baselines3") is None:
        assert environment == "here"
        unread = {name for name, (_, _, kind, _) in datasets.items() if kind == "sb3"}
    else:
        unread = set()
    torn = lab / "Pendulum-v1/rule/flat.hdf5"
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    (lab / "CartPole-v1/rule/notes.txt").write_text("to do: clean up")
    (lab / "CartPole-v1/rule/empty").mkdir()
    (lab / "CartPole-v1/rule/.DS_Store").write_bytes(b"\0")
    (lab / "so100/teleoperated/odd.csv").write_text("a,b\n1,2\n")
    bad = {"CartPole-v1/rule/notes.txt", "CartPole-v1/rule/empty", "so100/teleoperated/odd.csv"}

    out, err = migrated(lab, tmp_path / "lake", capsys)
    failed = {line.removesuffix(": failed") for line in out.splitlines() if line.endswith(": failed")}
    assert failed == bad | unread | {"Pendulum-v1/rule/flat.hdf5"}
    assert all(any(line.startswith(f"{name}: ") for line in err.splitlines()) for name in failed)
    assert "flat.hdf5" in err and "notes.txt has no known format" in err and "is an empty folder" in err
    assert all("pip install stable-baselines3" in line for line in err.splitlines() if ".pkl" in line)

    torn.write_bytes(whole)
    out, _ = migrated(lab, tmp_path / "lake", capsys)
    assert out.count("there already") == 29 - len(unread)
    assert "Pendulum-v1/rule/flat.hdf5: d4rl, 4 episodes added, 0 present" in out

    with open(lab / "MountainCarContinuous-v0/random/mon.csv", "a", newline="") as file:
        file.write("0,99,0.5,0.25,1.0,-0.125,1,0\r\n")
    rollouts = datasets["MountainCarContinuous-v0/random/mon.csv"][3]
    rollouts.append(Rollout(np.empty(0), np.empty(0), np.array([-0.125]), True, False))
    out, _ = migrated(lab, tmp_path / "lake", capsys, "--again")
    assert "mon.csv: table, 1 episodes added, 4 present" in out
    assert out.count(" 0 episodes added, ") == 29 - len(unread)

    check(el.lake(tmp_path / "lake"), {name: each for name, each in datasets.items() if name not in unread})


def check(lake: el.types.Lake, datasets: Datasets) -> None:
    """Compare the lake, and the answers of the page, with loops over what the environments returned."""
    frame = lake.stores()
    assert frame["store"].to_list() == sorted(datasets)
    returns: dict[tuple[str, str], list[float]] = defaultdict(list)
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    steps: Counter[str] = Counter()
    for name, env_ids, amount in frame.select("store", "env_ids", "steps").iter_rows():
        env_id, algorithm, kind, rollouts = datasets[name]
        assert env_ids == [env_id]
        assert amount == sum(len(each.rewards) for each in rollouts)
        store = lake[name]
        assert [each.end_reason for each in store] == [each.end for each in rollouts]
        for episode, each in zip(store, rollouts, strict=True):
            assert np.array_equal(episode.rewards, each.rewards.astype(np.float64)), name
            returns[env_id, algorithm].append(episode.rewards.sum())
            ends[kind][each.end] += 1
        steps[env_id] += amount
    best, formats, long = (lake.sql(text).fetchall() for text in questions())
    assert [row[:3] for row in best] == [(*key, len(returns[key])) for key in sorted(returns)]
    assert np.allclose([row[3:] for row in best], [[np.mean(v), max(v)] for _, v in sorted(returns.items())])
    expected: list[Any] = [
        (kind, *(each[end] for end in ("terminated", "truncated", "cut"))) for kind, each in ends.items()
    ]
    assert formats == sorted(expected)
    total = Counter({each: sum(len(v) for (env, _), v in returns.items() if env == each) for each in steps})
    assert long == [
        (each, sum(d[0] == each for d in datasets.values()), total[each], steps[each])
        for each in sorted(steps)
    ]


def small(folder: Path) -> Path:
    """A D4RL file of two episodes, which names no environment."""
    d4rl(folder / "flat.hdf5", play("CartPole-v1", "rule", [3, 4]))
    return folder / "flat.hdf5"


def run_of(store: el.EpisodeStore) -> dict[str, Any]:
    """The one row of its runs."""
    (row,) = store.runs.collect().rows(named=True)
    return row


def test_an_import_keeps_the_environment_and_metadata_that_the_caller_knows(tmp_path: Path) -> None:
    """They are in the run; a registered environment can be made again; an unknown id is a name only."""
    source = small(tmp_path)
    facts: dict[str, Any] = {"algo": "rule", "lr": 0.5, "tags": ["a", "b"]}
    el.import_dataset(source, tmp_path / "lake/known", env="CartPole-v1", metadata=facts)
    el.import_dataset(source, tmp_path / "lake/made", env=made("CartPole-v1"))
    el.import_dataset(source, tmp_path / "lake/name", env="lab/Hopper-v2")
    el.import_dataset(source, tmp_path / "lake/none")
    lake = el.lake(tmp_path / "lake")
    assert lake.stores()["env_ids"].to_list() == [["CartPole-v1"], ["CartPole-v1"], ["lab/Hopper-v2"], []]
    run = run_of(lake["known"])
    assert (run["metadata.algo"], run["metadata.lr"], run["metadata.tags"]) == ("rule", 0.5, ["a", "b"])
    assert run["metadata.imported_from"].startswith("d4rl:flat.hdf5@")
    assert str(lake["known"].make_env()) == str(gymnasium.make("CartPole-v1"))
    assert "max_episode_steps=30" in str(lake["made"].make_env().spec)
    with pytest.raises(el.errors.EnvUnavailableError, match=r"only the id 'lab/Hopper-v2' was kept"):
        lake["name"].make_env()
    again = el.import_dataset(source, tmp_path / "lake/known", env="CartPole-v1", metadata={"algo": "other"})
    assert (again.episodes, again.present, len(lake["known"].runs.collect())) == (0, 2, 1)


@pytest.mark.further
def test_the_environment_that_a_source_states_is_that_of_its_run(tmp_path: Path) -> None:
    """A dataset of Minari replays in its own environment; what the caller says comes first."""
    minari_dataset(tmp_path / "minari", "CartPole-v1", "random", [5, 6])
    el.import_dataset(tmp_path / "minari", tmp_path / "stated")
    store = el.open(tmp_path / "stated")
    env = store.make_env()
    assert env.spec is not None and env.spec.max_episode_steps == 30
    assert store[0].seed == 5 and all(episode.replay(env).same for episode in store)
    el.import_dataset(tmp_path / "minari", tmp_path / "given", env="Lab-v1")
    assert json.loads(run_of(el.open(tmp_path / "given"))["env_spec"]) == {"id": "Lab-v1"}

    store.export(tmp_path / "out.parquet", format="parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    card = {"env_spec": '{"id": 7}', "title": "odd"}
    odd = table.replace_schema_metadata(
        {**(table.schema.metadata or {}), CARD_KEY: json.dumps(card).encode()}
    )
    pq.write_table(odd, tmp_path / "odd.parquet")
    el.import_dataset(tmp_path / "odd.parquet", tmp_path / "odd")
    assert run_of(el.open(tmp_path / "odd"))["env_spec"] is None
    assert el.open(tmp_path / "odd").card == card


def test_metadata_of_an_import_travel_on_with_an_export(tmp_path: Path) -> None:
    """They come back as `run_metadata`, without the source that only the import knows."""
    el.import_dataset(
        small(tmp_path), tmp_path / "one", env="CartPole-v1", metadata={"algo": "rule", "lr": 0.5}
    )
    report = el.open(tmp_path / "one").export(tmp_path / "out.parquet", format="parquet", strict=True)
    assert not report.lost
    el.import_dataset(tmp_path / "out.parquet", tmp_path / "two")
    two = el.open(tmp_path / "two")
    assert two[0].metadata["run_metadata"] == {"algo": "rule", "lr": 0.5} and "run" not in two[0].metadata
    assert el.lake(tmp_path).stores().filter(store="two")["env_ids"].to_list() == [["CartPole-v1"]]


_OWN_KEYS = "expected a mapping without the keys imported_from and imported_keys"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env": "my env!"}, "is no id of an environment; expected one such as 'CartPole-v1'"),
        ({"env": '{"id": '}, "is no id of an environment"),
        ({"env": 3}, r"env='3' \(int\); expected an environment, its spec or its id"),
        ({"metadata": ["a"]}, _OWN_KEYS),
        (
            {"metadata": {"imported_from": "x"}},
            "expected a mapping without the keys imported_from and imported_keys",
        ),
        (
            {"metadata": {"imported_keys": []}},
            "expected a mapping without the keys imported_from and imported_keys",
        ),
    ],
)
def test_what_names_no_environment_is_refused(tmp_path: Path, given: Any, message: str) -> None:
    """Nothing is left behind, and a writer refuses the same."""
    source = small(tmp_path)
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        el.import_dataset(source, tmp_path / "store", **given)
    assert sorted(tmp_path.iterdir()) == [source]


def test_an_interrupted_import_goes_on_only_with_the_same_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that were staged with other metadata do not come in with them."""
    source = small(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(staging, "_commit", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            el.import_dataset(source, tmp_path / "store", metadata={"algo": "typo"})
    report = el.import_dataset(source, tmp_path / "store", metadata={"algo": "rule"})
    assert report.episodes == 2
    assert el.open(tmp_path / "store").runs.collect()["metadata.algo"].to_list() == ["rule"]


def test_a_writer_keeps_an_environment(tmp_path: Path) -> None:
    """By its spec, too; a lake shows it, and episodes replay."""
    env, (rollout,) = made("Pendulum-v1"), play("Pendulum-v1", "rule", [9])
    store = el.create(tmp_path / "pendulum", env)
    with store.writer(run="robot", env=env.spec) as writer:
        writer.write_episode(
            observations=rollout.observations,
            actions=rollout.actions,
            rewards=rollout.rewards,
            terminations=False,
            truncations=rollout.truncated,
            seed=9,
        )
    assert el.lake(tmp_path).stores()["env_ids"].to_list() == [["Pendulum-v1"]]
    assert store.refresh()[0].replay(store.make_env()).same
    with pytest.raises(el.errors.InvalidArgumentError, match="is no id of an environment"):
        store.writer(env="no id")


@pytest.mark.further
def test_the_command_line_takes_environment_and_metadata(tmp_path: Path, no_terminal: None) -> None:
    """Values that are JSON are numbers and lists; others are texts."""
    options = [
        "--env",
        "CartPole-v1",
        "--metadata",
        "algo=rule",
        "--metadata",
        "lr=0.5",
        "--metadata",
        "tag=[1]",
    ]
    call("import", str(small(tmp_path)), str(tmp_path / "store"), *options)
    run = run_of(el.open(tmp_path / "store"))
    assert (run["metadata.algo"], run["metadata.lr"], run["metadata.tag"]) == ("rule", 0.5, [1])
    assert "--metadata" in refused(
        2, "import", str(small(tmp_path)), str(tmp_path / "other"), "--metadata", "algo"
    )

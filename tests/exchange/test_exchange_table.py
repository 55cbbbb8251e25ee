"""Tables of any kind as a source: mapping, order, last observations, flags, and export to Parquet and CSV."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import gymnasium as gym
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from episodelake.testing.format_cases import write_episodes

FURTHER = pytest.mark.further


def rows_of(lengths: list[int], seed: int = 0) -> list[dict[str, Any]]:
    """Transitions of CartPole under a seeded policy, with the next observation, by a plain loop."""
    rng = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    rows: list[dict[str, Any]] = []
    for episode, length in enumerate(lengths):
        observation, _ = env.reset(seed=seed + episode)
        for t in range(length):
            action = int(rng.integers(2))
            following, reward, terminated, _, _ = env.step(action)
            last = t == length - 1 or terminated
            rows.append(
                {
                    "episode": f"e{episode}",
                    "t": t,
                    "obs": observation.tolist(),
                    "action": action,
                    "reward": float(reward),
                    "terminated": bool(terminated),
                    "truncated": bool(last and not terminated and episode % 2),
                    "next_obs": following.tolist(),
                }
            )
            observation = following
            if last:
                break
    return rows


VECTORS = {"obs": pl.List(pl.Float32), "next_obs": pl.List(pl.Float32)}
ROWS = rows_of([7, 1, 30, 12])
FRAME = pl.DataFrame(ROWS, schema_overrides=VECTORS)


def check(store: el.EpisodeStore, rows: list[dict[str, Any]]) -> None:
    """Compare a store with transitions."""
    names = list(dict.fromkeys(row["episode"] for row in rows))
    assert len(store) == len(names)
    for episode, name in zip(store, names, strict=True):
        own = [row for row in rows if row["episode"] == name]
        expected = [*(row["obs"] for row in own), own[-1]["next_obs"]]
        assert np.array_equal(episode.observations, np.array(expected, np.float32))
        assert episode.actions.tolist() == [row["action"] for row in own]
        assert episode.rewards.tolist() == [row["reward"] for row in own]
        assert episode.terminations.tolist() == [row["terminated"] for row in own]
        assert episode.truncations.tolist() == [row["truncated"] for row in own]
    assert not store.verify().faults


def flat(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with a column for each number of the observations."""
    parts = [
        pl.col(name).list.get(index).alias(f"{name}_{index}")
        for name in ("obs", "next_obs")
        for index in range(4)
    ]
    return frame.with_columns(parts).drop("obs", "next_obs")


def source(kind: str, folder: Path) -> Any:
    """The table as something of this kind."""
    match kind:
        case "polars":
            return FRAME
        case "lazy":
            return FRAME.lazy()
        case "pandas":
            return FRAME.to_pandas()
        case "arrow":
            return FRAME.to_arrow()
        case "reader":
            return pa.RecordBatchReader.from_batches(
                (table := FRAME.to_arrow()).schema, table.to_batches(max_chunksize=7)
            )
        case "duckdb":
            return duckdb.connect().from_arrow(FRAME.to_arrow())
        case "parquet":
            FRAME.write_parquet(folder / "walk.parquet", row_group_size=8)
            return folder / "walk.parquet"
        case "folder":
            (folder / "walk").mkdir()
            for index, start in enumerate(range(0, FRAME.height, 9)):
                FRAME[start : start + 9].write_parquet(folder / "walk" / f"{index}.parquet")
            return str(folder / "walk")
        case "csv":
            flat(FRAME).write_csv(folder / "walk.csv")
            return folder / "walk.csv"
        case "ipc":
            FRAME.write_ipc(folder / "walk.arrow")
            return folder / "walk.arrow"
        case "delta":
            write_deltalake(folder / "walk", FRAME.to_arrow())
            return folder / "walk"
    raise AssertionError(kind)


KINDS = ["polars", "parquet", "csv"]
OTHERS = ["duckdb", "delta", "lazy", "pandas", "arrow", "reader", "folder", "ipc"]


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=FURTHER) for kind in OTHERS)])
@pytest.mark.further
def test_every_kind_of_table_comes_in_whole(tmp_path: Path, kind: str) -> None:
    """Without a mapping, by the names of its columns, with every value."""
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    table = source(kind, tmp_path)
    report = el.import_dataset(
        table, tmp_path / "store", observation_space=space, cast="same_kind" if kind == "csv" else "no"
    )
    assert (report.format, report.episodes, report.steps, dict(report.lost)) == ("table", 4, len(ROWS), {})
    assert report.action_space == spaces.Discrete(2)
    check(el.open(tmp_path / "store"), ROWS)
    if kind != "reader":
        again = el.import_dataset(
            table, tmp_path / "store", observation_space=space, cast="same_kind" if kind == "csv" else "no"
        )
        assert (again.episodes, again.present) == (0, 4)


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_shuffled_rows_are_put_in_order(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each episode has the rows that DuckDB finds for it, by step."""
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    rows = [
        {"key": key, "time": 10 * key + t, "x": float(key), "y": t / 8, "a": t % 3, "r": t * 0.5}
        for key, length in enumerate(lengths)
        for t in range(length)
    ]
    shuffled = pl.DataFrame(data.draw(st.permutations(rows)))
    folder = tmp_path_factory.mktemp("shuffled")
    mapping = el.ColumnMapping(observation=["x", "y"], action="a", reward="r", episode="key", step="time")
    report = el.import_dataset(shuffled, folder / "store", mapping=mapping, last_observation="repeat")
    assert report.steps == len(rows)
    store = el.open(folder / "store")
    names = {episode.metadata["source_key"].rpartition("/")[2]: episode for episode in store}
    for key in range(len(lengths)):
        expected = duckdb.sql(f"select x, y, a, r from shuffled where key = {key} order by time").fetchall()
        episode = names[str(key)]
        assert episode.observations[:-1].tolist() == [[x, y] for x, y, _, _ in expected]
        assert episode.observations[-1].tolist() == episode.observations[-2].tolist()
        assert episode.actions.tolist() == [a for _, _, a, _ in expected]
        assert episode.rewards.tolist() == [r for _, _, _, r in expected]
        assert episode.end_reason == "cut"


@pytest.mark.further
def test_episodes_go_across_batches_and_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of 16 rows and parts of one episode or two."""
    monkeypatch.setattr("episodelake.exchange.table.rows._BATCH_BYTES", 1)
    monkeypatch.setattr("episodelake.exchange.table.reading._PART_BYTES", 1)
    rows = rows_of([9, 1, 40, 3, 40, 2, 2])
    el.import_dataset(pl.DataFrame(rows, schema_overrides=VECTORS), tmp_path / "store")
    check(el.open(tmp_path / "store"), rows)
    shuffled = pl.DataFrame(rows, schema_overrides=VECTORS).sample(fraction=1, shuffle=True, seed=1)
    el.import_dataset(shuffled, tmp_path / "other")
    check(el.open(tmp_path / "other"), rows)


@pytest.mark.further
def test_interleaved_lanes_without_a_step_keep_their_order(tmp_path: Path) -> None:
    """Rows of several environments that took turns."""
    rows = [{"episode": t % 3, "observation": float(t), "action": 0, "reward": 1.0} for t in range(12)]
    el.import_dataset(pl.DataFrame(rows), tmp_path / "store")
    observations = [episode.observations.tolist() for episode in el.open(tmp_path / "store")]
    assert observations == [[0.0, 3.0, 6.0, 9.0], [1.0, 4.0, 7.0, 10.0], [2.0, 5.0, 8.0, 11.0]]


def test_gaps_and_duplicates_are_named_with_their_episode(tmp_path: Path) -> None:
    """They raise, or the episode is skipped and the others come in."""
    gap = FRAME.filter(~((pl.col("episode") == "e2") & (pl.col("t") == 4)))
    twice = pl.concat([FRAME, FRAME[:1]]).sample(fraction=1, shuffle=True, seed=3)
    with pytest.raises(el.errors.DatasetError, match=r"Episode e2 .* a gap: step 5 follows 3"):
        el.import_dataset(gap, tmp_path / "store")
    with pytest.raises(el.errors.DatasetError, match=r"Episode e0 .* step 0 twice"):
        el.import_dataset(twice, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    report = el.import_dataset(gap, tmp_path / "store", on_error="skip")
    assert [key for key, _ in report.skipped] == ["e2"]
    check(el.open(tmp_path / "store"), [row for row in ROWS if row["episode"] != "e2"])


@pytest.mark.further
def test_one_bad_value_skips_one_episode(tmp_path: Path) -> None:
    """Also where many episodes are read together."""
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    bad = FRAME.with_columns(
        pl.when((pl.col("episode") == "e2") & (pl.col("t") == 3))
        .then(None)
        .otherwise("reward")
        .alias("reward")
    )
    with pytest.raises(el.errors.SpaceMismatchError, match=r"Episode e2, row 3: `reward` is NULL"):
        el.import_dataset(bad, tmp_path / "store", observation_space=space)
    report = el.import_dataset(bad, tmp_path / "other", observation_space=space, on_error="skip")
    assert [key for key, _ in report.skipped] == ["e2"] and report.present == 0
    check(el.open(tmp_path / "other"), [row for row in ROWS if row["episode"] != "e2"])


@pytest.mark.parametrize("value", [None, float("nan")])
@pytest.mark.further
def test_a_row_without_an_episode_is_named(tmp_path: Path, value: float | None) -> None:
    """Its number is in the error, and nothing is written, with `on_error="skip"` too."""
    rows = {"episode": [0.0, 0.0, value], "obs": [1.0, 2.0, 3.0], "action": [0, 1, 0], "reward": [1.0] * 3}
    with pytest.raises(el.errors.DatasetError, match=r"`episode` is N\w+ in row 2"):
        el.import_dataset(pa.table(rows), tmp_path / "store", on_error="skip")
    assert os.listdir(tmp_path) == []


@pytest.mark.further
def test_flags_that_the_table_lacks_are_counted(tmp_path: Path) -> None:
    """`done` alone does not tell why an episode ended; with `truncated` it does."""
    ended = FRAME.with_columns(done=pl.col("terminated") | pl.col("truncated")).drop("terminated")
    report = el.import_dataset(ended, tmp_path / "one")
    check(el.open(tmp_path / "one"), ROWS)
    assert not report.lost
    report = el.import_dataset(ended.drop("truncated"), tmp_path / "two")
    assert {episode.end_reason for episode in el.open(tmp_path / "two")} == {"cut"}
    assert list(report.lost.values()) == [4]
    numbers = FRAME.with_columns(pl.col("terminated", "truncated").cast(pl.Int8))
    el.import_dataset(numbers, tmp_path / "three")
    check(el.open(tmp_path / "three"), ROWS)


@pytest.mark.further
def test_columns_become_spaces_infos_and_metadata(tmp_path: Path) -> None:
    """A Dict of vectors and structs, agents, policy values, seeds; shown before they are written."""
    rows = {
        "id": [1, 1, 1, 1],
        "who": ["a", "b", "a", "b"],
        "x": [1.0, 2.0, 3.0, 4.0],
        "y": [5, 6, 7, 8],
        "arm": [{"on": [True, False], "say": "hi"}] * 4,
        "act": [[0.5, 1.5]] * 4,
        "gain": [[1.0, 2.0]] * 4,
        "cost": [9, 8, 7, 6],
        "logit": [0.1, 0.2, 0.3, 0.4],
        "level": ["low"] * 4,
        "start": [3] * 4,
        "unused": [0] * 4,
    }
    mapping = el.ColumnMapping(
        observation={"position": ["x", "y"], "arm": "arm"},
        action="act",
        reward="gain",
        episode="id",
        agent="who",
        info={"cost": "cost"},
        policy=["logit"],
        metadata=["level"],
        seed="start",
    )
    report = el.import_dataset(pa.table(rows), tmp_path / "store", mapping=mapping, dry_run=True)
    assert report.action_space == spaces.Box(-np.inf, np.inf, (2,), np.float64)
    position = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    arm = spaces.Dict({"on": spaces.MultiBinary(2), "say": spaces.Text(2, min_length=2, charset="hi")})
    assert report.observation_space == spaces.Dict({"position": position, "arm": arm})
    assert "observation.position <- x, y" in str(report)
    report = el.import_dataset(pa.table(rows), tmp_path / "store", mapping=mapping, last_observation="repeat")
    assert report.lost["the column unused, which the mapping leaves out"] == 4
    one, two = el.open(tmp_path / "store")
    assert [one.metadata["agent"], two.metadata["agent"]] == ["a", "b"]
    assert two.observations["position"].tolist() == [[2.0, 6.0], [4.0, 8.0], [4.0, 8.0]]
    assert two.rewards.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert (two.seed, two.metadata["level"]) == (3, "low")
    assert two.info_arrays["cost"][:2] == [8, 6]


@pytest.mark.further
def test_columns_that_are_not_there_come_with_suggestions(tmp_path: Path) -> None:
    """A mapping with a wrong name, and a table without obvious names."""
    mapping = el.ColumnMapping(observation="obss", action="action", episode="episode")
    with pytest.raises(el.errors.DatasetError, match=r"no column 'obss'.*Did you mean obs"):
        el.import_dataset(FRAME, tmp_path / "store", mapping=mapping)
    with pytest.raises(
        el.errors.DatasetError, match=r"table: it has no column for action \(action or actions\)"
    ):
        el.import_dataset(FRAME.rename({"action": "move"}), tmp_path / "store")
    with pytest.raises(el.errors.DatasetError, match="does not exist"):
        el.import_dataset(tmp_path / "none.parquet", tmp_path / "store", format="table")
    FRAME.write_parquet(tmp_path / "worn.parquet", compression="uncompressed")
    worn = bytearray((tmp_path / "worn.parquet").read_bytes())
    worn[4:600] = bytes(range(149)) * 4
    (tmp_path / "worn.parquet").write_bytes(worn)
    with pytest.raises(el.errors.DatasetError, match=r"worn\.parquet cannot be read"):
        el.import_dataset(tmp_path / "worn.parquet", tmp_path / "store")
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(el.errors.DatasetError, match=r"half\.parquet cannot be read as a table"):
        el.import_dataset(tmp_path / "half.parquet", tmp_path / "store", format="table")


@pytest.mark.further
def test_a_folder_of_parquet_may_hold_other_files(tmp_path: Path) -> None:
    """A README, hidden files and folders that are no partitions; partitions give a column."""
    folder = tmp_path / "walk"
    for name in ("e0", "e1", "e2", "e3"):
        part = folder / f"episode={name}"
        part.mkdir(parents=True)
        FRAME.filter(episode=name).drop("episode").write_parquet(part / "0.parquet")
    (folder / "README.md").write_text("A walk.")
    (folder / "episode=e1" / "_SUCCESS").write_text("")
    (folder / "other").mkdir()
    (folder / "other" / "no.parquet").write_text("")
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    el.import_dataset(folder, tmp_path / "store", observation_space=space)
    check(el.open(tmp_path / "store"), ROWS)


def test_own_step_columns_by_a_mapping(tmp_path: Path) -> None:
    """`extra=` names them; the names of a store's columns are refused."""
    words: Any = {"observation": "obs", "action": "action", "episode": "episode", "step": "t"}
    mapping = el.ColumnMapping(**words, extra={"velocity": "reward"})
    el.import_dataset(FRAME, tmp_path / "store", mapping=mapping, last_observation="missing")
    velocities = el.open(tmp_path / "store").transitions.select("velocity").collect()["velocity"]
    assert velocities.to_list() == FRAME["reward"].to_list()
    mapping = el.ColumnMapping(**words, extra={"reward": "reward"})
    with pytest.raises(el.errors.InvalidArgumentError, match="'reward' cannot be the name of a step column"):
        el.import_dataset(FRAME, tmp_path / "x", mapping=mapping, dry_run=True)


@pytest.mark.parametrize(("first", "other", "names"), [("\r\n", "\n", "LF"), ("\n", "\r\n", "CRLF")])
def test_mixed_line_ends_are_named(tmp_path: Path, first: str, other: str, names: str) -> None:
    """A CSV file whose lines end in two ways is refused by its first line of the other kind."""
    rows = ["episode,step,obs,action,reward,done", "0,0,1.0,1,0.5,0", "0,1,2.0,0,0.5,1", "1,0,1.0,1,0.5,1"]
    text = rows[0] + first + rows[1] + first + rows[2] + other + rows[3] + first
    (tmp_path / "log.csv").write_bytes(text.encode())
    expected = rf"log\.csv: line 3 ends with {names}, the lines before with"
    with pytest.raises(el.errors.DatasetError, match=expected) as caught:
        el.import_dataset(tmp_path / "log.csv", tmp_path / "store")
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


@pytest.mark.further
def test_a_store_goes_out_to_csv(tmp_path: Path) -> None:
    """Polars reads the numbers that the store holds; a view in another order keeps its order."""
    store = write_episodes(tmp_path / "store", spaces.Box(-9, 9, (4,), np.float32))
    view = store[::-1]
    report = view.export(tmp_path / "walk.csv", format="csv")
    assert report.lost["spaces, which an import infers from the values"] == 2
    written = pl.read_csv(tmp_path / "walk.csv")
    assert written["episode"].unique(maintain_order=True).to_list() == [0, 1, 2]
    last = store[2]
    rows = written.filter(pl.col("episode") == 0)
    numbers = rows.select(f"next_observation_{index}" for index in range(4)).to_numpy().astype(np.float32)
    assert np.array_equal(numbers, last.observations[1:])
    assert rows["reward"].to_list() == last.rewards.tolist()


def test_the_steps_of_a_store_are_a_table(tmp_path: Path) -> None:
    """A Dict space comes back by the names of its columns."""
    space = spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float32), "n": spaces.Discrete(9)})
    store = el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    with store.writer() as writer:
        writer.write_episode(
            observations={"x": np.ones((3, 2), np.float32), "n": np.array([1, 2, 8])},
            actions=np.array([0, 1]),
            rewards=np.ones(2),
            terminations=True,
            truncations=False,
        )
    report = el.import_dataset(store.refresh().steps, tmp_path / "back")
    assert isinstance(report.observation_space, spaces.Dict)
    assert report.observation_space["n"] == spaces.Discrete(9)
    assert el.open(tmp_path / "back")[0].observations["n"].tolist() == [1, 2, 8]
    assert el.open(tmp_path / "back")[0].end_reason == "terminated"


def test_vectors_of_rewards_may_be_missing_in_last_rows(tmp_path: Path) -> None:
    """Of two episodes one ends with an observation alone, and one with the row of a transition."""
    gains = [[1.0, 2.0], [3.0, 4.0], None, [5.0, 6.0], [0.0, 8.0]]
    rows = pl.DataFrame(
        {
            "episode_id": [0, 0, 0, 1, 1],
            "observation": [0.1, 0.2, 0.3, 0.4, 0.5],
            "action": [1.0, 2.0, None, 3.0, 4.0],
            "reward": gains,
        }
    )
    for rule, kept, dropped in (("missing", gains[3:], 0), ("drop", gains[3:4], 1)):
        report = el.import_dataset(rows, tmp_path / rule, last_observation=rule)
        assert [each.rewards.tolist() for each in el.open(tmp_path / rule)] == [gains[:2], kept]
        lost = "a reward other than 0 of a last transition, whose next observation is missing"
        assert report.lost.get(lost, 0) == dropped


def test_last_values_of_own_columns_come_back(tmp_path: Path) -> None:
    """Those of annotations of steps too, beside an episode without its last observation; nothing is lost."""

    def facts(index: int, length: int) -> dict[str, Any]:
        lacking = {"last_observation": "missing"} if index else {}
        return {"extra": {"own": np.arange(length + (not index))}, **lacking}

    store = write_episodes(tmp_path / "store", facts=facts, episodes=[(3, True, False), (3, True, False)])
    marks = {"episode_id": store[0].id, "t": [0, 1, 2, 3], "mark": [0.5, 1.5, 2.5, 3.5]}
    store.annotate(pl.DataFrame(marks), on=("episode_id", "t"))
    for layout in ("transitions", "steps"):
        target = tmp_path / f"{layout}.parquet"
        store.refresh().export(target, format="parquet", layout=layout, strict=True)
        el.import_dataset(target, tmp_path / layout)
        first, second = el.open(tmp_path / layout)
        assert (first.extra["mark"].tolist(), first.extra["own"].tolist()) == (marks["mark"], [0, 1, 2, 3])
        assert (second.length, second.end_reason, second.has_last_observation) == (3, "terminated", False)

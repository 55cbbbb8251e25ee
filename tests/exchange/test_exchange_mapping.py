"""Mappings of columns as dicts, and as `--map` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import episodelake as el
from test_cli import printed, refused

LOGS = {
    "trip": [7, 7, 7, 8, 8],
    "x": [0.0, 0.1, 0.2, 0.0, 0.3],
    "speed, m/s": [1.0, 1.5, 1.2, 0.9, 0.8],
    "throttle": [0, 1, 1, 0, 0],
    "gain": [0.0, 0.5, 1.0, 0.2, 0.1],
    "arrived": [False, False, True, False, False],
    "fuel": [5.0, 4.0, 3.0, 5.0, 4.0],
    "driver": ["ann", "ann", "ann", "bob", "bob"],
}
NEEDED = ("--map", "action=throttle", "--map", "episode=trip")


@pytest.fixture
def logs(tmp_path: Path) -> str:
    """The table as a Parquet file."""
    pl.DataFrame(LOGS).write_parquet(tmp_path / "logs.parquet")
    return str(tmp_path / "logs.parquet")


def test_columns_are_mapped_on_the_command_line(tmp_path: Path, logs: str) -> None:
    """Vectors, parts of a Dict, lists and keys; the same as the dict of the library."""
    words = ("observation.pos=x,", 'observation.car.speed="speed, m/s"', "reward=gain", "terminated=arrived")
    more = ("info.fuel=fuel", "metadata=driver")
    given = [word for each in (*words, *more) for word in ("--map", each)]
    options = ("--format", "parquet", "--last-observation", "missing", "--json")
    report = json.loads(printed("import", logs, str(tmp_path / "a"), *NEEDED, *given, *options))
    assert (report["format"], report["episodes"], report["steps"]) == ("table", 2, 5)
    mapping = {
        "observation": {"pos": ["x"], "car": {"speed": "speed, m/s"}},
        "action": "throttle",
        "episode": "trip",
        "reward": "gain",
        "terminated": "arrived",
        "info": {"fuel": "fuel"},
        "metadata": "driver",
    }
    el.import_dataset(logs, tmp_path / "b", mapping=mapping, last_observation="missing")
    for path in ("a", "b"):
        store = el.open(tmp_path / path)
        assert isinstance(store.observation_space, spaces.Dict)
        first, second = store
        assert first.observations["pos"][:3].tolist() == [[0.0], [0.1], [0.2]]
        assert first.observations["car"]["speed"][:3].tolist() == [1.0, 1.5, 1.2]
        assert (first.actions.tolist(), first.rewards.tolist()) == ([0, 1, 1], [0.0, 0.5, 1.0])
        assert [info["fuel"] for info in second.infos[:2]] == [5.0, 4.0]
        assert (first.end_reason, second.metadata["driver"]) == ("terminated", "bob")


@pytest.mark.further
def test_names_of_rllib_are_mapped_on_the_command_line(tmp_path: Path) -> None:
    """The same option gives RLlib's names those of the file."""
    table = pa.table(
        {
            "eps_id": ["e", "e"],
            "o_t": [[0.0, 1.0], [2.0, 3.0]],
            "new_obs": [[2.0, 3.0], [4.0, 5.0]],
            "actions": [0, 1],
            "rewards": [1.0, 2.0],
            "terminateds": [False, True],
            "truncateds": [False, False],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    words = ("--format", "rllib", "--map", "obs=o_t")
    printed("import", str(tmp_path / "rows.parquet"), str(tmp_path / "store"), *words)
    (episode,) = el.open(tmp_path / "store")
    assert episode.observations.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("status", "words", "message"),
    [
        (2, ["observation"], "expected KEY=COLUMN"),
        (2, ["observation="], "expected KEY=COLUMN"),
        (2, ["observation=x,,fuel"], "expected KEY=COLUMN"),
        (2, ["observation=x", "observation=fuel"], "observation has columns already"),
        (2, ["observation=x", "observation.pos=fuel"], "observation has columns already"),
        (1, ["observation=x", "reword=gain"], "unknown key 'reword'. Did you mean reward?"),
        (1, ["observation=x", "reward=gian"], "no column 'gian', which the mapping names for reward"),
    ],
)
def test_mappings_that_do_not_fit_are_refused(
    tmp_path: Path, logs: str, status: int, words: list[str], message: str
) -> None:
    """The error names the option or the key, and what is known; nothing is written."""
    given = [part for word in words for part in ("--map", word)]
    printed = " ".join(refused(status, "import", logs, str(tmp_path / "store"), *NEEDED, *given).split())
    assert message in printed
    assert [each.name for each in tmp_path.iterdir()] == ["logs.parquet"]


def test_a_mapping_needs_three_keys(tmp_path: Path, logs: str) -> None:
    """The error names those that are missing; a mapping of another kind is refused."""
    with pytest.raises(el.errors.InvalidArgumentError, match=r"lacks action and episode; it has observation"):
        el.import_dataset(logs, tmp_path / "store", mapping={"observation": "x"})
    with pytest.raises(el.errors.InvalidArgumentError, match=r"expected an el\.ColumnMapping, or a dict"):
        el.import_dataset(logs, tmp_path / "store", format="table", mapping=["x"])
    with pytest.raises(el.errors.InvalidArgumentError, match=r"Did you mean parquet\?"):
        el.import_dataset(logs, tmp_path / "store", format="parqet")

"""docs/format.md says enough: a reader written from it alone agrees with ours on every kind of store."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
import strategies
from effort import examples
from independent_checks import assert_agree, play_some
from independent_reader import read_store
from independent_tables import Refused, read_card, tagged_version
from maintenance_stores import awkward_store
from nasty_environments import ChangingInfos, TwoGoals

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["format-1", "format-1-agents"])
def test_committed_stores_are_read(name: str, tmp_path: Path) -> None:
    """The stores that were committed with the project are read as ours reads them."""
    path = Path(shutil.copytree(TESTS / "data" / name / "store", tmp_path / "store"))
    assert assert_agree(path)


@pytest.mark.further
def test_awkward_episodes_through_maintenance(tmp_path: Path) -> None:
    """Nested spaces, frames, changing infos: at every version, annotated, deleted from, compacted."""
    store = awkward_store(tmp_path / "store")
    lengths = {store.version: len(assert_agree(store.path))}
    heights = store.steps.select("episode_id", "t", risk=pl.col("t") * 0.5).collect()
    store.annotate(heights.filter(pl.col("t") > 0), on=("episode_id", "t"))
    store.annotate(store.episodes.select("episode_id", good=pl.col("number") % 2 == 0))
    lengths[store.refresh().version] = len(assert_agree(store.path))
    store.delete("number = 2")
    lengths[store.refresh().version] = len(assert_agree(store.path))
    store.compact(order_by="episode_return")
    found = assert_agree(store.path)
    assert len(found) == len(store.refresh()) == 6
    assert any(any(value is not None for value in each.step_annotations["risk"]) for each in found)
    for version, count in lengths.items():
        assert len(assert_agree(store.path, version)) == count


@settings(max_examples=examples(15))
@given(data=st.data())
def test_any_space_is_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Values of any nest of spaces come back from the columns that the page gives them."""
    observation, action = data.draw(strategies.spaces()), data.draw(strategies.spaces())
    path = tmp_path_factory.mktemp("any") / "store"
    store = el.create(path, observation_space=observation, action_space=action)
    seen = data.draw(strategies.values(observation, 4))
    acted = data.draw(strategies.values(action, 3))
    with store.writer() as writer:
        episode = writer.begin(seen[0])
        for t in range(3):
            episode.append(acted[t], t / 3, seen[t + 1])
        episode.end()
    assert len(assert_agree(path)) == 1


def test_infos_of_every_kind(tmp_path: Path) -> None:
    """What no typed column takes is found in the JSON column and merged in as the page says."""
    env = ChangingInfos(20)
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        for seed in range(2):
            recorder.reset(seed=seed)
            while not any(recorder.step(env.action_space.sample())[2:4]):
                recorder.log(value=0.5)
    assert len(assert_agree(store.path)) == 2


def test_rewards_of_several_objectives(tmp_path: Path) -> None:
    """Vectors of rewards and returns are lists."""
    env = TwoGoals(5)
    store = el.create(tmp_path / "store", env, reward_shape=(2,))
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        while not any(recorder.step(env.action_space.sample())[2:4]):
            pass
    (found,) = assert_agree(store.path)
    assert len(found.row["episode_return"]) == 2


@pytest.mark.further
def test_checkpoints_are_read(tmp_path: Path) -> None:
    """Beyond a hundred commits a checkpoint stands for those before it, which are not needed any more."""
    store = el.create(tmp_path / "store", gymnasium.make("CartPole-v1"))
    with store.writer(run="many") as writer:
        for number in range(102):
            episode = writer.begin(np.full(4, number, np.float32))
            episode.append(0, 1.0, np.zeros(4, np.float32), terminated=True)
            episode.end()
            writer.seal()
    for table in ("episodes", "steps"):
        assert sorted((store.path / table / "_delta_log").glob("*.checkpoint.parquet"))
        for commit in (store.path / table / "_delta_log").glob("000000000000000000[0-8]*.json"):
            commit.unlink()
    found = read_store(store.path)
    assert [each.lanes[None].observations[0] for each in found] == [[float(n)] * 4 for n in range(102)]


def changed(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("pattern", "at"),
    [
        ("store.json", 40),
        ("episodes/_delta_log/*1.json", 30),
        ("steps/_delta_log/*1.json", -3),
        ("steps/*.parquet", -40),
    ],
)
def test_sums_are_where_the_page_says(pattern: str, at: int, tmp_path: Path) -> None:
    """One changed bit in a file with a sum is seen by the page's rules, and by our reader."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        play_some(recorder, range(2), 0)
    assert_agree(store.path)
    changed(next(iter(sorted(store.path.glob(pattern)))), at)
    with pytest.raises(Refused):
        read_store(store.path)
    with pytest.raises(el.EpisodelakeError):
        list(map(lambda episode: episode.observations, el.open(store.path)))


def test_checksums_of_cards_and_tags_are_where_the_page_says(tmp_path: Path) -> None:
    """Cards and tags of ours are read by the page's rules, which see one changed bit in them as we do."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env, card={"about": "poles"})
    with store.record(env) as recorder:
        play_some(recorder, range(2), 0)
    store.refresh().tag("paper")
    assert read_card(store.path) == store.card == {"about": "poles"}
    assert tagged_version(store.path, "paper") == store.version
    changed(store.path / "card.json", 6)
    changed(store.path / "tags" / "paper.json", 30)
    for read in (lambda: read_card(store.path), lambda: tagged_version(store.path, "paper")):
        with pytest.raises(Refused):
            read()
    for read in (lambda: store.card, lambda: store.tags):
        with pytest.raises(el.errors.CorruptStoreError, match="checksum"):
            read()


def imported(source: str) -> set[str]:
    """The top-level names of the modules that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
    return found


def test_the_readers_need_nothing_of_ours() -> None:
    """They import the standard library, pyarrow and each other."""
    modules = sorted(TESTS.glob("independent_*.py"))
    own = {path.stem: path.read_text("utf-8") for path in modules if path.stem != "independent_checks"}
    assert len(own) == 6
    found = {name for source in own.values() for name in imported(source)} - set(sys.stdlib_module_names)
    assert found - own.keys() == {"pyarrow"}

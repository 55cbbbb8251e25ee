"""Episodes whose source lacked the last observation: no reader invents it, and none of the rest is lost."""

import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.store.journal.episodes import EpisodeFacts
from episodelake.store.segments import seal as episode_table
from independent_checks import assert_agree
from waiting import PATIENCE

SPACE = spaces.Dict(
    {
        "place": spaces.Box(-9, 9, (2,), np.float32),
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    }
)
WORDS = spaces.Dict({**SPACE.spaces, "word": spaces.Text(4, charset="ab")})


@dataclass
class Rollout:
    """An episode as a source has it; without its last observation if `missing`."""

    observations: dict[str, Any]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool
    missing: bool

    @property
    def length(self) -> int:
        """Transitions."""
        return len(self.rewards)

    @property
    def known(self) -> int:
        """Transitions whose next observation is known."""
        return self.length - self.missing


def rollouts(space: spaces.Dict = SPACE, lengths: tuple[int, ...] = (3, 70, 1, 5, 66, 2)) -> list[Rollout]:
    """Seeded episodes, short and long, every second one without its last observation."""
    rng = np.random.default_rng(0)
    found = []
    for number, length in enumerate(lengths):
        missing = number % 2 == 0
        seen = length + (not missing)
        observations = {
            "place": rng.uniform(1, 2, (seen, 2)).astype(np.float32),
            "image": rng.integers(1, 256, (seen, 8, 8, 3), np.uint8),
        }
        if "word" in space.spaces:
            observations["word"] = ["ab"[: 1 + t % 2] for t in range(seen)]
        found.append(
            Rollout(observations, rng.integers(2, size=length), rng.random(length), number != 4, missing)
        )
    return found


def create(path: Path, space: spaces.Space = SPACE) -> el.EpisodeStore:
    """Create an empty store."""
    return el.create(path, observation_space=space, action_space=spaces.Discrete(2))


def by_arrays(writer: Any, source: list[Rollout]) -> None:
    """Write each episode from its arrays."""
    for number, each in enumerate(source):
        writer.write_episode(
            observations=each.observations,
            actions=each.actions,
            rewards=each.rewards,
            terminations=each.terminated,
            truncations=False,
            last_observation="missing" if each.missing else "present",
            infos={"cost": np.arange(each.length + (not each.missing))},
            metadata={"number": number},
        )


def stored(path: Path, source: list[Rollout]) -> el.EpisodeStore:
    """Return a store of some episodes, in two segments."""
    store = create(path, WORDS if "word" in source[0].observations else SPACE)
    for part in (source[:3], source[3:]):
        with store.writer() as writer:
            by_arrays(writer, part)
    return store.refresh()


def steps_of(each: Rollout, name: Any, *, rows: int) -> pa.Table:
    """Return the steps of an episode as a source has them: T rows, or T+1."""
    tail = rows - each.length
    padding = rows - len(each.observations["place"])
    flags = [False] * (each.length - 1) + [each.terminated] + [None] * tail
    columns = {
        "observation.place": pa.array(
            [*each.observations["place"].tolist(), *[None] * padding], pa.list_(pa.float32())
        ),
        "observation.image": [*(row.tobytes() for row in each.observations["image"]), *[None] * padding],
        "action": [*each.actions.tolist(), *[None] * tail],
        "reward": [*each.rewards.tolist(), *[None] * tail],
        "terminated": flags,
        "truncated": pa.array([False] * each.length + [None] * tail, pa.bool_()),
        "info.cost": pa.array([*range(len(each.observations["place"])), *[None] * padding], pa.int64()),
    }
    if "word" in each.observations:
        columns["observation.word"] = [*each.observations["word"], *[None] * padding]
    if name is not None:
        columns |= {"episode": [name] * rows, "t": list(range(rows))}
    return pa.table(columns)


def by_rows(writer: Any, source: list[Rollout]) -> None:
    """Write all episodes from one table, those without their last observation with an empty last row."""
    steps = pa.concat_tables([steps_of(each, n, rows=each.length + 1) for n, each in enumerate(source)])
    facts = {"last_observation": ["missing" if each.missing else None for each in source]}
    facts["metadata.number"] = list(range(len(source)))
    assert writer.write_episodes(steps, episodes=pa.table(facts)) == len(source)


def by_short_rows(writer: Any, source: list[Rollout]) -> None:
    """Write runs of alike episodes, those without their last observation from T rows each."""
    for number, each in enumerate(source):
        last = "missing" if each.missing else "present"
        steps = steps_of(each, number, rows=len(each.observations["place"]))
        facts = pa.table({"metadata.number": [number]})
        assert writer.write_episodes(steps, episodes=facts, last_observation=last) == 1


def assert_same(store: el.EpisodeStore, source: list[Rollout]) -> None:
    """The store is sound, and has the episodes as the source has them, by our reader and by another one."""
    assert store.verify().ok
    for episode in store:
        each = source[episode.metadata["number"]]
        assert episode.has_last_observation is not each.missing
        assert episode.length == each.length
        for name, values in each.observations.items():
            assert np.array_equal(episode.observations[name], values)
        assert episode.actions.tolist() == each.actions.tolist()
        assert episode.rewards.tolist() == each.rewards.tolist()
        seen = len(each.observations["place"])
        assert (
            episode.info_arrays["cost"].tolist() == list(range(seen))
            and len(episode.infos) == each.length + 1
        )
        assert (episode.terminated, episode.terminations[-1]) == (each.terminated, each.terminated)
    found = assert_agree(store.path)
    assert [each.row.get("last_observation") for each in found] == [
        None if each.has_last_observation else "missing" for each in store
    ]


@pytest.mark.parametrize("space", [pytest.param(SPACE, marks=pytest.mark.further), WORDS])
@pytest.mark.parametrize("write", [by_rows, by_short_rows, by_arrays])
def test_episodes_have_the_observations_that_were_given(write: Any, space: Any, tmp_path: Path) -> None:
    """T observations stay T, by arrays and Arrow data, beside episodes with all of theirs."""
    source = rollouts(space)
    store = create(tmp_path / "store", space)
    with store.writer() as writer:
        write(writer, source)
    assert_same(store.refresh(), source)


def test_many_episodes_of_t_rows_come_from_one_table(tmp_path: Path) -> None:
    """A column or lengths tell where each of the episodes ends."""
    source = [each for each in rollouts() if each.missing]
    whole = pa.concat_tables([steps_of(each, n, rows=each.length) for n, each in enumerate(source)])
    store = create(tmp_path / "store")
    facts = pa.table({"metadata.number": list(range(len(source)))})
    with store.writer() as writer:
        writer.write_episodes(whole.to_batches(max_chunksize=7), episodes=facts, last_observation="missing")
        bare = whole.drop_columns(["episode", "t"])
        lengths = [each.length for each in source]
        writer.write_episodes(bare, episodes=facts, lengths=lengths, last_observation="missing")
        writer.write_episodes(pl.DataFrame(whole), episodes=facts, last_observation="missing")
        with pytest.raises(el.errors.SpaceMismatchError, match="has T rows"):
            writer.write_episodes(bare, lengths=[9999], last_observation="missing")
    assert len(store.refresh()) == 3 * len(source)
    assert_same(store, source)


def test_other_engines_see_null(tmp_path: Path) -> None:
    """In the raw files the observation of row T is NULL, and that of no other row."""
    source = rollouts()
    store = stored(tmp_path / "store", source)
    found = duckdb.sql(
        f"""SELECT count(*), count("observation.place"), count("observation.image"), count(reward)
        FROM '{store.path}/steps/*.parquet'"""
    ).fetchall()
    seen = sum(len(each.observations["place"]) for each in source)
    transitions = sum(each.length for each in source)
    assert found == [(transitions + len(source), seen, seen, transitions)]
    raw = pl.scan_parquet(f"{store.path}/steps/*.parquet").filter(pl.col("observation.place").is_null())
    lacking = raw.select("episode_id", "t").collect().rows()
    assert sorted(lacking) == sorted(
        (each.id, each.length) for each in store if not each.has_last_observation
    )


def test_the_next_observation_of_a_query_is_null(tmp_path: Path) -> None:
    """SQL and Polars give NULL for the observation after the last transition, and the true one elsewhere."""
    source = rollouts()
    store = stored(tmp_path / "store", source)
    wanted = [
        each.observations["place"][t + 1].tolist() if t < each.known else None
        for each in source
        for t in range(each.length)
    ]
    text = 'SELECT "next_observation.place" AS found FROM transitions_with_next'
    assert store.query(text)["found"].to_list() == wanted
    frame = store.transitions_with_next.collect()
    assert frame["next_observation.place"].to_list() == wanted
    assert store.query("SELECT count(*) FROM episodes WHERE last_observation = 'missing'").item() == 3
    one = store.query(f"SELECT \"next_observation.place\" FROM transitions_of('{store[0].id}')")
    assert one.to_series().to_list() == wanted[:3]


def pairs(source: list[Rollout], n: int = 1) -> list[tuple[float, float, float, bool]]:
    """Return place, summed reward, next place and flag of each n-step transition whose end is known."""
    found = []
    for each in source:
        place = each.observations["place"][:, 0].tolist()
        for t in range(each.known):
            stop = min(t + n, each.known)
            last = stop == each.length and each.terminated
            found.append((place[t], sum(each.rewards[t:stop].tolist()), place[stop], last))
    return found


def drawn(batch: Any) -> list[tuple[float, float, float, bool]]:
    """Return the same of a batch."""
    places = (batch[name]["place"][:, 0].tolist() for name in ("observation", "next_observation"))
    here, after = places
    rewards = batch["reward"].tolist()
    return list(zip(here, rewards, after, batch["terminated"].tolist(), strict=True))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """One warning of each loader and buffer counts the transitions, and its advice keeps them all."""
    store = stored(tmp_path / "store", rollouts())
    relabel = el.Relabel("reward", lambda after: after["place"][:, 0], of=["next_observation"])
    three = r"leaves out 3 of 147 transitions, with their rewards: the last of 3 episodes .* is missing\. "
    kept: Any
    for options, advice, kept in (
        (
            {},
            "name 'next_observation_present'",
            {"columns": ["next_observation", "next_observation_present"]},
        ),
        ({"n_step": 2}, "without next observations", {"columns": ["observation", "reward"], "n_step": 2}),
        (
            {"units": el.Episodes()},
            "name 'observation_present' .* without observations",
            {"units": el.Episodes(), "columns": ["observation", "observation_present"]},
        ),
        (
            {"transforms": [relabel], "columns": ["reward"]},
            "load them, leave out Relabel",
            {"columns": ["reward"]},
        ),
        (
            {"follow": el.Follow(refresh_seconds=0)},
            "next_obs",
            {"follow": el.Follow(), "columns": ["reward"]},
        ),
    ):
        with pytest.warns(RuntimeWarning, match=f"^The loader {three}.*{advice}") as warned:
            loader = store.loader(10, **options)
            next(iter(loader))
        assert [each.filename for each in warned] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.loader(10, **kept)
            store.filter("last_observation IS NULL").loader(10, **options)
    with pytest.warns(RuntimeWarning, match=f"^The replay buffer {three}"):
        store.replay_buffer(1000)
    with pytest.warns(RuntimeWarning, match=r"1 of 69 transitions, .* 1 episode whose"):
        assert len(store.replay_buffer(68)) == 68


def test_no_unit_is_left(tmp_path: Path) -> None:
    """Where every transition is left out, the error names the key that keeps them."""
    store = stored(tmp_path / "store", rollouts(lengths=(1,)))
    with pytest.raises(el.errors.InvalidArgumentError, match="'next_observation_present'"):
        store.loader(10)
    (batch,) = store.loader(10, columns=["reward", "next_observation_present"])
    assert batch["next_observation_present"].tolist() == [False]


def test_a_loader_that_follows(tmp_path: Path) -> None:
    """New episodes come in with their last transitions left out; nothing else is drawn."""
    source = rollouts()
    store = create(tmp_path / "store")
    possible = set(pairs(source))
    loader = iter(store.loader(500, follow=el.Follow(refresh_seconds=0), seed=1))
    for part in (source[1:2], source[2:5]):
        with store.writer() as writer:
            by_arrays(writer, part)
        found = set(drawn(next(loader)))
        assert found <= possible
    assert found > set(pairs(source[3:4]))


def test_transforms_see_the_whole_episode(tmp_path: Path) -> None:
    """Returns to go have the last reward; a function of next observations never sees an absent one."""
    source = rollouts()
    store = stored(tmp_path / "store", source)
    (batch,) = store.loader(1000, transforms=[el.ReturnToGo()])
    wanted = [each.rewards[t:].sum() for each in source for t in range(each.known)]
    assert np.allclose(batch["return_to_go"], wanted)
    given = []

    def bonus(following: Any) -> np.ndarray:
        given.extend(following["place"][:, 0].tolist())
        return following["place"][:, 0]

    relabel = el.Relabel("reward", bonus, of=["next_observation"])
    (batch,) = store.loader(1000, columns=["observation", "reward"], transforms=[relabel])
    nexts = [after for _, _, after, _ in pairs(source)]
    assert given == nexts == batch["reward"].tolist()


def test_statistics_and_the_replay_buffer(tmp_path: Path) -> None:
    """Statistics measure the observations that there are, and a buffer has the loader's transitions."""
    source = rollouts()
    store = stored(tmp_path / "store", source)
    values = np.concatenate([each.observations["place"] for each in source]).astype(np.float64)
    stats = store.stats(["observation"])
    place, image = stats["observation.place"], stats["observation.image"]
    assert (place.rows, place.absent, image.rows) == (len(values), 3, len(values))
    assert np.allclose(place.mean, values.mean(0)) and np.array_equal(place.minimum, values.min(0))
    pixels = np.concatenate([each.observations["image"] for each in source])
    assert np.array_equal(image.minimum, pixels.min((0, 1, 2)))
    buffer = store.replay_buffer(1000)
    assert len(buffer) == len(pairs(source))
    assert set(drawn(buffer.sample(2000))) == set(pairs(source))


def test_a_replay_compares_what_was_recorded(tmp_path: Path) -> None:
    """A replay plays all transitions and compares T observations; a difference in the last one is found."""
    env = gymnasium.make("CartPole-v1")
    seen = [env.reset(seed=3)[0]]
    for action in (0, 1, 0, 1):
        seen.append(env.step(action)[0])
    store = el.create(tmp_path / "store", env)
    for change in (0, 1):
        seen[-2][0] += change
        with store.writer() as writer:
            writer.write_episode(
                observations=np.array(seen[:-1]),
                actions=np.array([0, 1, 0, 1]),
                rewards=np.ones(4),
                terminations=False,
                truncations=False,
                seed=3,
                last_observation="missing",
            )
    good, bad = (episode.replay(env) for episode in store.refresh())
    assert good.same and good.compared == 4
    assert not bad.same and bad.first_difference.step == 3


def test_pictures_cards_and_plots(tmp_path: Path) -> None:
    """What is drawn ends with the last observation that there is."""
    source = rollouts()
    store = stored(tmp_path / "store", source)
    episode = store[0]
    assert np.array_equal(episode.frames(), source[0].observations["image"])
    with pytest.raises(el.errors.InvalidArgumentError, match="steps 0 to 2"):
        episode.frames(3)
    assert "Error" not in episode._repr_html_() + store._repr_html_()
    assert episode.plot().to_dict()
    assert episode.flattened("observation.place").shape == (3, 2)
    assert episode.frame()["observation.place"].null_count() == 1


def test_maintenance_keeps_the_mark(tmp_path: Path) -> None:
    """Compaction, deletion, copies, merges and copies of tables have the same episodes."""
    source = rollouts(WORDS)
    store = stored(tmp_path / "store", source)
    with pytest.raises(el.errors.InvalidArgumentError, match="last_observation"):
        store.annotate(store.episodes.select("episode_id", last_observation=pl.lit("x")))
    for episode in store:
        each = next(each for each in source if np.array_equal(each.rewards, episode.rewards))
        assert episode.has_last_observation is not each.missing
    store.compact()
    store.delete(pl.col("length") == 1)
    assert store.verify().ok and len(assert_agree(store.path)) == 5
    copy = store.copy(tmp_path / "copy")
    el.merge([store.filter("length > 3")], into=tmp_path / "merged")
    again = create(tmp_path / "again", WORDS)
    with again.writer() as writer:
        assert writer.write_episodes(store.steps.collect(), episodes=store.episodes.collect()) == 5
    for other, episodes in ((copy, store), (el.open(tmp_path / "merged"), store.filter("length > 3"))):
        assert [each.id for each in other] == [each.id for each in episodes]
    for other in (copy, el.open(tmp_path / "merged"), again.refresh()):
        assert other.verify().ok
        for episode in other:
            each = next(each for each in source if np.array_equal(each.rewards, episode.rewards))
            assert episode.observations["word"] == each.observations["word"]
            assert np.array_equal(episode.observations["image"], each.observations["image"])


KILLED = """
import os, sys
sys.path[:0] = {tests!r}
import test_missing_observations as t
store = t.create(t.Path({path!r}), t.WORDS)
writer = store.writer()
t.by_arrays(writer, t.rollouts(t.WORDS))
writer.flush()
os._exit(9)
"""


@pytest.mark.further
def test_a_killed_writer_leaves_the_mark_in_its_journal(tmp_path: Path) -> None:
    """Recovery seals episodes of a dead writer without the observations that they lack."""
    path = tmp_path / "store"
    code = KILLED.format(tests=[str(each) for each in Path(__file__).parents[:2]], path=str(path))
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE).returncode == 9
    assert el.recover(path)
    store = el.open(path)
    assert len(store) == 6
    assert_same(store, rollouts(WORDS))


def test_verify_finds_what_contradicts_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without an observation that nothing announces is damage to every reader; so is one too many."""
    source = rollouts()
    monkeypatch.setattr(episode_table, "MISSING", "of a later version")
    silent = stored(tmp_path / "silent", source)
    monkeypatch.undo()
    (fault,) = {fault.message.partition(":")[0] for fault in silent.verify().faults}
    assert fault == "A row lacks its observation"
    with pytest.raises(el.errors.CorruptStoreError, match="observations"):
        silent[0].observations  # noqa: B018 (reading it raises)
    with pytest.raises(el.errors.CorruptStoreError, match="lacks observations"):
        silent.loader(10)
    of = EpisodeFacts.of
    monkeypatch.setattr(
        EpisodeFacts, "of", staticmethod(lambda *given: replace(of(*given), last_missing=True))
    )
    marked = stored(tmp_path / "marked", [each for each in source if not each.missing and each.length < 64])
    monkeypatch.undo()
    (fault,) = {fault.message.partition(":")[0] for fault in marked.verify().faults}
    assert "which is missing by the table episodes" in fault
    with pytest.raises(el.errors.CorruptStoreError, match="observations"):
        marked[0].observations  # noqa: B018


def test_what_is_refused(tmp_path: Path) -> None:
    """Values that make no sense raise before anything is written, and say what to do."""
    (each,) = rollouts(lengths=(3,))
    store = create(tmp_path / "store")
    arrays = {"actions": each.actions, "rewards": each.rewards, "terminations": True, "truncations": False}
    with store.writer() as writer:
        with pytest.raises(el.errors.SpaceMismatchError, match='pass last_observation="missing"'):
            writer.write_episode(observations=each.observations, **arrays)
        one_more = {name: np.concatenate([rows, rows[:1]]) for name, rows in each.observations.items()}
        with pytest.raises(el.errors.SpaceMismatchError, match="T observations"):
            writer.write_episode(observations=one_more, **arrays, last_observation="missing")
        with pytest.raises(el.errors.InvalidArgumentError, match="'present' or 'missing'"):
            writer.write_episode(observations=each.observations, **arrays, last_observation="drop")
        steps = steps_of(each, 0, rows=4)
        with pytest.raises(el.errors.SpaceMismatchError, match="row 3"):
            writer.write_episodes(steps)
        with pytest.raises(el.errors.InvalidArgumentError, match="expected NULL or 'missing'"):
            writer.write_episodes(steps, episodes=pa.table({"last_observation": ["gone"]}))
        filled = pa.concat_tables([steps.slice(0, 3), steps.slice(2, 1)])
        filled = filled.set_column(2, "action", pa.array([0, 0, 0, None]))
        for name in ("reward", "terminated", "truncated"):
            place = filled.column_names.index(name)
            values = [*filled.column(name).to_pylist()[:3], None]
            filled = filled.set_column(place, name, pa.array(values, filled.schema.field(name).type))
        filled = filled.set_column(filled.column_names.index("t"), "t", pa.array([0, 1, 2, 3]))
        with pytest.raises(el.errors.SpaceMismatchError, match="last observation of this episode is missing"):
            writer.write_episodes(filled, episodes=pa.table({"last_observation": ["missing"]}))
    assert len(store.refresh()) == 0
    assert "last_observation" not in store.episodes.collect_schema()
    nothing = create(tmp_path / "nothing", spaces.Dict({}))
    with nothing.writer() as writer, pytest.raises(el.errors.InvalidArgumentError, match="has no column"):
        writer.write_episode(observations={}, **arrays, last_observation="missing")

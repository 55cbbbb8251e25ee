"""Multi-agent stores on disk: raw files, queries, maintenance, recovery and damage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

import episodelake as el
from agent_environments import SPACES, Comings, Turns
from plain_agents import check_agents, play_parallel, play_turns, random_policy
from test_verify import put, rewrite
from waiting import PATIENCE


def comings(path: Path, seeds: range = range(4), **options: Any) -> el.EpisodeStore:
    """A store with one episode of `Comings` for each seed, in two runs."""
    store = el.create(path, Comings())
    half = len(seeds) // 2
    for part in (seeds[:half], seeds[half:]):
        with store.record(Comings(), **options) as recorder:
            for seed in part:
                play_parallel(recorder, random_policy(recorder, seed), seed)
    return store.refresh()


def check_comings(store: el.EpisodeStore) -> None:
    """Every episode is what a plain loop with its seed sees, and nothing is wrong with the store."""
    for episode in store:
        env = Comings()
        check_agents(episode, play_parallel(env, random_policy(env, episode.seed), episode.seed))
    assert not store.verify().faults


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the tests only read, or copy."""
    path = tmp_path_factory.mktemp("agents") / "store"
    comings(path)
    return path


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> el.EpisodeStore:
    """A copy of it that a test may change."""
    shutil.copytree(made, tmp_path / "store")
    return el.open(tmp_path / "store")


# What is on disk


def test_store_json_names_the_groups(made: Path) -> None:
    """The groups, their agents and their spaces stand in store.json, which opens to the same groups."""
    content = json.loads((made / "store.json").read_text())
    assert "spaces" not in content
    assert [(group["group"], group["agents"]) for group in content["agents"]] == [
        ("scout", ["scout_0", "scout_1"]),
        ("tank", ["tank_0", "tank_1"]),
    ]
    assert set(content["columns"]) == {
        "scout.observation",
        "scout.action",
        "tank.observation",
        "tank.action",
    }
    groups = el.open(made).agent_groups
    assert {agent: (g.observation_space, g.action_space) for g in groups for agent in g.agents} == SPACES


def test_a_single_agents_store_is_as_before(tmp_path: Path) -> None:
    """A store for one agent has no column and no key that only several agents need."""
    observation, action = SPACES["scout_0"]
    store = el.create(tmp_path / "store", observation_space=observation, action_space=action)
    with store.writer() as writer:
        episode = writer.begin(np.zeros(2, np.float32))
        episode.append(0, 1.0, np.zeros(2, np.float32), terminated=True)
        episode.end()
    content = json.loads((tmp_path / "store" / "store.json").read_text())
    assert set(content) == {"format", "store_id", "created_at", "spaces", "reward_shape", "columns", "crc32"}
    assert not [name for name in store.refresh().steps.collect_schema().names() if "agent" in name]
    assert not [name for name in store.episodes.collect_schema().names() if "agent" in name]
    assert store[0].agents == ()
    with pytest.raises(el.errors.InvalidArgumentError, match="single agent"):
        store[0].agent("red")


def test_raw_files_read_without_us(made: Path) -> None:
    """DuckDB and Polars on the bare files see, agent by agent, what a plain loop saw."""
    row = pl.read_delta(str(made / "episodes")).filter(pl.col("seed") == 1).row(0, named=True)
    steps = pq.read_table(made / "steps" / row["segment"]).slice(row["row_start"], row["row_count"])
    env = Comings()
    lanes = play_parallel(env, random_policy(env, 1), 1)
    assert row["agents"] == list(lanes)
    assert row["agent_groups"] == ["scout", "tank", "scout", "tank"]
    frame = pl.from_arrow(steps)
    assert isinstance(frame, pl.DataFrame)
    # One agent after the other, each from t = 0 on.
    runs = [(name, t) for name, lane in lanes.items() for t in range(len(lane.observations))]
    assert list(zip(frame["agent_id"], frame["t"], strict=True)) == runs
    for name, lane in lanes.items():
        own = frame.filter(pl.col("agent_id") == name)
        assert own["reward"].to_list() == [*lane.rewards, None]
        assert own["terminated"].to_list() == [*lane.terminations, None]
        assert own["env_step"].to_list() == lane.env_steps
        if name.startswith("tank"):
            views = [observation["view"].tobytes() for observation in lane.observations]
            assert own["tank.observation.view"].to_list() == views
            assert own["info.height"].to_list() == [info["height"] for info in lane.infos]
            assert own["scout.observation"].is_null().all() and own["scout.action"].is_null().all()
        else:
            assert own["scout.action"].to_list() == [*lane.actions, None]
            assert own["info.height"].is_null().all()
    found = duckdb.sql(
        f"select agent_id, count(reward), sum(reward) from '{made}/steps/{row['segment']}' "
        f"where episode_id = '{row['episode_id']}' group by 1"
    ).fetchall()
    assert {name: (count, pytest.approx(total)) for name, count, total in found} == {
        name: (len(lane.rewards), sum(lane.rewards)) for name, lane in lanes.items()
    }


def test_sql_over_agents(made: Path) -> None:
    """Queries group by agent_id, transitions leave out every agent's last row, lists unnest."""
    store = el.open(made)
    counted = dict(store.sql("select agent_id, count(*) from transitions group by 1").fetchall())
    assert counted == {"scout_0": 12, "tank_0": 28, "scout_1": 16, "tank_1": 8}
    unnested = store.sql(
        "select agent, sum(total) from "
        "(select unnest(agents) agent, unnest(agent_returns) total from episodes) group by 1"
    ).fetchall()
    summed = store.sql("select agent_id, sum(reward) from steps group by 1").fetchall()
    assert dict(unnested) == pytest.approx(dict(summed))
    frame = store.transitions.group_by("agent_id").len().collect()
    assert dict(frame.iter_rows()) == counted
    best = store.filter("list_max(agent_returns) > 2.5")
    assert {episode.id for episode in best} == {
        episode.id for episode in store if max(episode.agent_returns.values()) > 2.5
    }
    lengths = store.filter(pl.col("agent_lengths").list.get(0) == 3)
    assert len(lengths) == len(store)


def test_delta_readers_see_the_tables(made: Path) -> None:
    """A Delta reader with no code of ours reads all three tables."""
    for table in ("runs", "episodes", "steps"):
        assert deltalake.DeltaTable(str(made / table)).to_pyarrow_table().num_rows > 0


# Maintenance


def test_compaction_keeps_agents(copied: el.EpisodeStore) -> None:
    """Joining segments, and sorting them, leaves every agent's rows as they were."""
    returns = {episode.id: episode.episode_return for episode in copied}
    copied.compact()
    check_comings(copied)
    copied.compact(order_by="episode_return", descending=True)
    check_comings(copied)
    assert [episode.episode_return for episode in copied] == sorted(returns.values(), reverse=True)


def test_deletion_keeps_the_other_episodes(copied: el.EpisodeStore) -> None:
    """Deleting by seed takes all agents of the episode and no row of another."""
    copied.delete("seed in (0, 3)")
    assert [episode.seed for episode in copied] == [1, 2]
    check_comings(copied)
    assert copied.steps.select("episode_id").collect()["episode_id"].n_unique() == 2


def test_copies_and_merges_keep_the_groups(copied: el.EpisodeStore, tmp_path: Path) -> None:
    """A copy of some episodes, and a merge of two stores, have the agents of their sources."""
    part = copied.copy(tmp_path / "part", "seed < 2")
    assert part.agent_groups == copied.agent_groups and len(part) == 2
    check_comings(part)
    other = comings(tmp_path / "other", range(10, 12))
    el.merge([part, other], tmp_path / "all")
    everything = el.open(tmp_path / "all")
    assert [episode.seed for episode in everything] == [0, 1, 10, 11]
    check_comings(everything)
    turns = el.create(tmp_path / "turns", agents={"scout_0": SPACES["scout_0"]})
    with pytest.raises(el.errors.SpaceMismatchError, match="other agents"):
        el.merge([copied], turns)
    single = el.create(
        tmp_path / "one", observation_space=SPACES["scout_0"][0], action_space=SPACES["scout_0"][1]
    )
    with pytest.raises(el.errors.SpaceMismatchError, match="single agent"):
        el.merge([single], turns)


def test_annotations_of_an_agents_steps(copied: el.EpisodeStore) -> None:
    """Steps are annotated by episode, agent and t, also after compaction; others stay NULL."""
    keys = ("episode_id", "agent_id", "t")
    frame = copied.steps.select(*keys, "reward", "env_step").collect()
    scouts = frame.filter(pl.col("agent_id").str.starts_with("scout")).sample(
        fraction=1, shuffle=True, seed=1
    )
    copied.annotate(scouts.select(*keys, (pl.col("env_step") * 2).alias("twice")), on=keys)
    for episode in copied:
        for agent in episode.agents:
            found = episode.agent(agent).step_annotations["twice"]
            expected = episode.agent(agent).env_steps * 2
            if agent.startswith("scout"):
                assert np.array_equal(found, expected)
            else:
                assert not any(value is not None for value in found)
    copied.compact()
    assert not copied.verify().faults
    (joined,) = copied.sql("select count(*), count(twice), sum(twice) from steps").fetchall()
    assert joined == (len(frame), len(scouts), int(2 * scouts["env_step"].sum()))
    polars = copied.steps.filter(pl.col("twice").is_not_null()).collect()
    assert (polars["twice"] == polars["env_step"] * 2).all() and len(polars) == len(scouts)
    copied.annotate(copied.episodes.select("episode_id", good=pl.col("length") > 1).collect())
    assert all(episode.annotations == {"good": True} for episode in copied)
    copied.split({"train": 0.5, "val": 0.5})
    assert set(copied.episodes.collect()["split"]) <= {"train", "val"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"episode_id": 0, "agent_id": ["bomber"], "t": [0]}, "no agent 'bomber'"),
        ({"episode_id": 0, "agent_id": ["scout_0"], "t": [4]}, "no step t=4"),
        ({"episode_id": 0, "agent_id": ["scout_0", "scout_0"], "t": [1, 1]}, "more than once"),
        ({"episode_id": "x", "agent_id": ["scout_0"], "t": [1]}, "no episode 'x'"),
    ],
)
def test_annotations_that_mean_no_row(rows: dict, message: str, copied: el.EpisodeStore) -> None:
    """An unknown agent, step or episode, or one that is there twice, is named, and nothing changes."""
    count = len(rows["t"])
    key = rows["episode_id"]
    ids = [key if isinstance(key, str) else copied[key].id] * count
    frame = pl.DataFrame({**rows, "episode_id": ids, "mark": [1] * count})
    version = copied.version
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        copied.annotate(frame, on=("episode_id", "agent_id", "t"))
    with pytest.raises(el.errors.InvalidArgumentError, match="agent_id"):
        copied.annotate(frame, on=("episode_id", "t"))
    assert copied.refresh().version == version


def test_an_episode_longer_than_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents' rows that go over several row groups, and over many journal batches, come back whole."""
    from episodelake.store.rewrite import rows
    from episodelake.store.segments import steps_file as sealing

    for module in (sealing, rows):
        monkeypatch.setattr(module, "GROUP_ROWS", 7)
    store = el.create(tmp_path / "store", Turns())
    with store.record(Turns(60), flush_seconds=0.001) as recorder:
        for seed in range(2):
            play_turns(recorder, random_policy(recorder, seed), seed)
    store.refresh().compact()
    for seed, episode in enumerate(store):
        env = Turns(60)
        check_agents(episode, play_turns(env, random_policy(env, seed), seed))
    assert not store.verify().faults
    monkeypatch.setattr("episodelake.readers.verification.relations._BATCH_ROWS", 5)
    assert not store.verify().faults
    assert store.episodes.collect()["row_count"].to_list() == [63, 63]


# Crashes

KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np
import episodelake as el
from agent_environments import Comings, Turns
from plain_agents import random_policy, play_parallel, play_turns
from waiting import Path, wait_for_journal
env, play = {{"parallel": (Comings(), play_parallel), "aec": (Turns(), play_turns)}}[sys.argv[2]]
recorder = el.open(sys.argv[1]).record(env, flush_seconds=0.02, seal_seconds=1e6, state={state})
plain = [play(recorder, random_policy(recorder, 0), 0), play(recorder, random_policy(recorder, 1), 1, 4)]
steps = sum(len(lane.rewards) for lanes in plain for lane in lanes.values())
wait_for_journal(Path(sys.argv[1]) / "journal" / recorder.run_id, steps, ended=1)
os.kill(os.getpid(), 9)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["parallel", "aec"])
def test_a_killed_recorder_is_recovered(kind: str, tmp_path: Path) -> None:
    """After SIGKILL the finished episode is whole; the other is interrupted, up to each agent's last row."""
    env: Any = Comings() if kind == "parallel" else Turns()
    store = el.create(tmp_path / "store", env)
    program = textwrap.dedent(KILLED).format(tests=str(Path(__file__).parents[1]), state=kind == "parallel")
    done = subprocess.run(
        [sys.executable, "-c", program, str(store.path), kind], check=False, timeout=PATIENCE
    )
    assert done.returncode == -signal.SIGKILL
    (run,) = el.recover(store.path)
    assert (run.episodes, run.interrupted) == (2, 1)
    whole, cut = store.refresh()
    play: Any = play_parallel if kind == "parallel" else play_turns
    check_agents(whole, play(env, random_policy(env, 0), 0))
    lanes = play(env, random_policy(env, 1), 1, 4)
    assert cut.end_reason == "interrupted" and not cut.terminated and cut.seed == 1
    assert cut.length == 4
    for name in cut.agents:
        agent = cut.agent(name)
        # The outcome of a turn is known, and recorded, when its agent is selected again.
        assert agent.length == len(lanes[name].rewards)
        assert agent.actions.tolist() == np.array(lanes[name].actions[: agent.length]).tolist()
        assert agent.episode_return == pytest.approx(sum(lanes[name].rewards))
    if kind == "parallel":
        assert whole.states.shape == (9, 2) and cut.states.shape == (5, 2)
    assert not store.verify().faults
    assert el.recover(store.path) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["parallel", "aec"])
def test_a_recorder_killed_at_any_moment_is_recovered(kind: str, tmp_path: Path) -> None:
    """Of any prefix of the journal, each agent has a prefix of its rows, and no step is there by half."""
    env: Any = Comings() if kind == "parallel" else Turns()
    play: Any = play_parallel if kind == "parallel" else play_turns
    expected = play(env, random_policy(env, 3), 3)
    store = el.create(tmp_path / "store", env)
    recorder = store.record(env, flush_seconds=100)
    step, session = recorder.step, recorder._session

    def step_and_flush(action: Any) -> Any:
        result = step(action)
        session.flush()
        return result

    recorder.step = step_and_flush
    play(recorder, random_policy(recorder, 3), 3)
    (part,) = (tmp_path / "store" / "journal").rglob("*.frames")
    shutil.copytree(tmp_path / "store", tmp_path / "origin")
    recorder.close()
    origin = tmp_path / "origin" / part.relative_to(tmp_path / "store")
    size = origin.stat().st_size
    lengths = set()
    for cut in range(0, size + 1, size // 16):
        target = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "origin", target)
        os.truncate(target / part.relative_to(tmp_path / "store"), cut)
        el.recover(target)
        recovered = el.open(target)
        assert not recovered.verify().faults
        for episode in recovered:
            lengths.add(episode.length)
            for name in episode.agents:
                agent = episode.agent(name)
                assert agent.rewards.tolist() == expected[name].rewards[: agent.length]
                if kind == "parallel" and agent.end_reason == "interrupted":
                    assert agent.env_steps[-1] == episode.length
    assert len(lengths) > 5


# Damage


@pytest.mark.parametrize(
    ("column", "change", "kind"),
    [
        ("agent_returns", lambda values: [values[0] + 1, *values[1:]], "return"),
        ("agent_terminations", lambda values: [not values[0], *values[1:]], "flags"),
        ("agent_lengths", lambda values: [values[0] + 1, values[1] - 1, *values[2:]], "rows"),
        ("agent_lengths", lambda values: [*values[:-1], values[-1] + 1], "episode"),
        ("agents", lambda values: values[:-1], "episode"),
        ("agents", lambda values: [values[1], *values[1:]], "episode"),
        ("agents", lambda values: [values[1], values[0], *values[2:]], "rows"),
        ("agent_groups", lambda values: ["bomber", *values[1:]], "episode"),
        ("agent_groups", lambda values: [values[1], *values[1:]], "flags"),
        ("agent_lengths", lambda values: None, "episode"),
        ("length", lambda value: value + 1, "pointer"),
        ("episode_return", lambda value: value + 1, "return"),
        ("terminated", lambda value: not value, "flags"),
    ],
)
def test_verify_finds_what_agents_do_not_say(
    column: str, change: Any, kind: str, copied: el.EpisodeStore
) -> None:
    """Columns about agents that contradict the steps, or each other, are found."""
    file = sorted((copied.path / "episodes").glob("*.parquet"))[0]
    rewrite(copied, f"episodes/{file.name}", put(column, 1, change))
    store = el.open(copied.path)
    faults = store.verify().faults
    # The log has figures of the file of episodes, which other faults name already.
    assert {fault.kind for fault in faults} == ({kind, "listing"} if kind == "rows" else {kind}), faults
    if kind == "episode":
        with pytest.raises(el.errors.CorruptStoreError):
            [episode.agents for episode in store]


@pytest.mark.parametrize(
    ("agents", "problem"),
    [
        ([], "without agents"),
        ([{"group": "info", "agents": ["a"]}], "impossible"),
        ([{"group": "a", "agents": ["a"]}, {"group": "A", "agents": ["b"]}], "impossible"),
        ([{"group": "a", "agents": ["a"]}, {"group": "b", "agents": ["a"]}], "impossible"),
        ([{"group": 1, "agents": ["a"]}], "without names"),
        ([{"group": "a", "agents": [1]}], "without names"),
        ("abc", "damaged"),
    ],
)
def test_damaged_groups_are_refused(agents: Any, problem: str, copied: el.EpisodeStore) -> None:
    """A store.json whose groups cannot be is named as damaged."""
    file = copied.path / "store.json"
    content = json.loads(file.read_text())
    spaces = {key: content["agents"][0][key] for key in ("observation", "action")}
    content["agents"] = [each | spaces for each in agents] if isinstance(agents, list) else agents
    file.write_text(json.dumps(content))
    with pytest.raises(el.errors.CorruptStoreError, match=problem):
        el.open(copied.path)


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        (["red_0", "red_1", "blue_0"], ["red", "blue"]),
        (["agent_0", "agent_1"], ["agent_0", "agent_1"]),
        (["info", "reward_1"], ["info_group0", "reward_1"]),
        (["A", "a"], ["A", "a_group0"]),
        (["x.y_1", "größe"], ["x.y", "größe"]),
    ],
)
def test_groups_get_names_that_cannot_clash(agents: list[str], names: list[str], tmp_path: Path) -> None:
    """A group is called what its agents share, and never like another group or a standard column."""
    scout, tank = SPACES["scout_0"], SPACES["tank_0"]
    other = agents[-1]
    store = el.create(tmp_path / "store", agents={a: tank if a == other else scout for a in agents})
    assert [group.name for group in store.agent_groups] == names
    assert el.open(tmp_path / "store").agent_groups == store.agent_groups
    assert [group.name for group in store.copy(tmp_path / "copy").agent_groups] == names


def _journal_with(path: Path, events: list[dict]) -> None:
    """A dead writer's journal of a store for `Comings`: one scout with one transition, and these events."""
    from episodelake.store.dynamic.column_groups import STEP_GROUPS, ColumnSet
    from episodelake.store.journal.episodes import EpisodeFacts
    from episodelake.store.journal.records import RunHeader
    from episodelake.store.journal.run_journal import PartWriter, part_path
    from episodelake.writers.rows.agent_arrivals import AgentArrivals, Arrival, LiveAgent

    schema = el.create(path, Comings()).handle.schema
    facts = EpisodeFacts.of(None, None, None)
    scout = LiveAgent(0, 0, 0, facts, agent_id="scout_0")
    buffer = AgentArrivals(schema, 16)
    seen = np.zeros(2, np.float32)
    buffer.add_all(0, [Arrival(scout, seen, {})])
    buffer.add_all(1, [Arrival(scout, seen, {}, (1, 2.5, True, False))])
    batch = buffer.batch(0, 2, [ColumnSet(group, []) for group in STEP_GROUPS])
    directory = path / "journal" / "run-0123456789abcde"
    directory.mkdir()
    header = RunHeader("run-0123456789abcde", "run", 0, None, "{}", "{}")
    writer = PartWriter(part_path(directory, 0), header, sync=False)
    begin = {"event": "begin", "number": 0, "env_index": 0, "started_at": 0}
    writer.append(batch, [begin, *events], 0)
    writer.close()


SCOUT_0 = {"event": "agent", "number": 0, "agent": 0, "agent_id": "scout_0", "group": 0}


@pytest.mark.parametrize(
    "events",
    [
        [SCOUT_0],
        [SCOUT_0, SCOUT_0],
        [SCOUT_0, {"event": "end", "number": 0, "reason": "terminated", "flags": [7, None, []]}],
        [{**SCOUT_0, "number": 5}, SCOUT_0],
    ],
)
def test_a_journal_that_says_more_than_it_needs_is_recovered(events: list[dict], tmp_path: Path) -> None:
    """An agent told of twice, flags of nobody and agents of no episode do no harm."""
    _journal_with(tmp_path / "store", events)
    (run,) = el.recover(tmp_path / "store")
    assert (run.episodes, run.steps) == (1, 1)
    episode = el.open(tmp_path / "store")[0]
    assert episode.agent_returns == {"scout_0": 2.5} and episode.terminated
    assert not el.open(tmp_path / "store").verify().faults


@pytest.mark.parametrize(
    "event",
    [
        {**SCOUT_0, "group": 2},
        {**SCOUT_0, "group": -1},
        {**SCOUT_0, "group": None},
        {**SCOUT_0, "agent": -1},
        {**SCOUT_0, "agent_id": None},
        {**SCOUT_0, "agent": 1},
        {key: value for key, value in SCOUT_0.items() if key != "agent_id"},
    ],
)
def test_a_journal_with_impossible_agents_is_set_aside(event: dict, tmp_path: Path) -> None:
    """Such a journal was changed on purpose: it is named, set aside, and nothing of it is believed."""
    _journal_with(tmp_path / "store", [SCOUT_0, event])
    with pytest.raises(el.errors.CorruptStoreError, match="damaged"):
        el.recover(tmp_path / "store")
    assert len(el.open(tmp_path / "store")) == 0
    assert (tmp_path / "store" / "journal" / "run-0123456789abcde.damaged").is_dir()

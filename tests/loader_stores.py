"""Stores that have everything a loader may meet, views of them in odd orders, and the rows of their episodes.

The first was recorded, killed, recovered, deleted from, annotated, compacted and written to again, in several
row groups; some of its episodes lack their last observation. The second has agents that come and go.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl

import agent_environments as environments
import episodelake as el
import plain_agents
import plain_loader as plain

OBSERVATIONS = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (2, 3), np.uint8),
    pair=gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(5))),
)
ACTIONS = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), np.float64)))
ENDS = ("terminated", "truncated", "both", "cut")
#: Of the infos: what stands for an absent one.
INFOS = {"battery": np.float64(np.nan), "said": np.str_(""), "force": np.full(2, np.nan, np.float32)}
#: Columns of the table of episodes, likewise.
FACTS = {
    "episode_return": np.float64(np.nan),
    "length": np.int64(0),
    "score": np.int64(0),
    "level": np.str_(""),
    "run_id": np.str_(""),
    "metadata.task": np.str_(""),
}
_LACKING = pl.col("run_id").str.starts_with("lacking")


def _play(writer: Any, length: int, end: str, seed: int) -> None:
    """Write one random episode that ends in the way named, or that does not end."""
    OBSERVATIONS.seed(seed)
    ACTIONS.seed(seed)
    rng = np.random.default_rng(seed)

    def info() -> dict[str, Any]:
        all_infos = {
            "battery": float(rng.random()),
            "said": "caf\u00e9" * int(rng.integers(3)),
            "force": rng.random(2).astype(np.float32),
        }
        return {key: value for key, value in all_infos.items() if rng.random() < 0.6}

    metadata = {"task": f"pick {seed}"} if seed % 3 else {}
    episode = writer.begin(OBSERVATIONS.sample(), info(), seed=seed, metadata=metadata)
    for step in range(length):
        last = step == length - 1
        episode.append(
            ACTIONS.sample(),
            # One that is no number must not reach another episode.
            np.nan if seed == 1005 and last else float(rng.normal()),
            OBSERVATIONS.sample(),
            info=info(),
            terminated=last and end in ("terminated", "both"),
            truncated=last and end in ("truncated", "both"),
            policy={"value": float(rng.normal())},
        )
    if end == "cut":
        episode.end()


def _lacking(writer: Any, length: int, end: str, seed: int) -> None:
    """Write one random episode without its last observation."""
    rng = np.random.default_rng(seed)
    writer.write_episode(
        observations={
            "image": rng.integers(0, 255, (length, 2, 3), np.uint8),
            "pair": (rng.random((length, 2)).astype(np.float32), rng.integers(0, 5, length)),
        },
        actions=(rng.integers(0, 3, length), rng.random((length, 2))),
        rewards=rng.normal(size=length),
        terminations=end == "terminated",
        truncations=end == "truncated",
        policy={"value": rng.normal(size=length)},
        last_observation="missing",
    )


def _killed(path: Path) -> el.EpisodeStore:
    """A store whose first writer died with an episode open, as a copy made under its hands."""
    alive = el.create(path.with_name("alive"), observation_space=OBSERVATIONS, action_space=ACTIONS)
    writer = alive.writer(run="killed")
    _play(writer, 3, "terminated", 101)
    _play(writer, 4, "interrupted", 102)
    writer.flush()
    shutil.copytree(path.with_name("alive"), path)
    writer.close()
    el.recover(path)
    return el.open(path)


@dataclass
class World:
    """Views of a store, and what a plain loop has of them.

    Attributes:
        views: by name.
        rows: the episodes of each view that were made into rows so far.
    """

    views: dict[str, el.EpisodeView]
    rows: dict[Any, list[plain.Rows]] = field(default_factory=dict)

    def episodes(self, name: str) -> list[plain.Rows]:
        """The rows of a view's episodes, with all their columns."""
        if name not in self.rows:
            view = self.views[name]
            found = [plain.episode_rows(*pair, INFOS) for pair in enumerate(view)]
            plain.add_table(found, view.episodes.collect(), FACTS)
            steps = view.steps.collect().partition_by("episode_id", as_dict=True)
            for rows, episode in zip(found, view, strict=True):
                logged = list(episode.policy["value"])
                plain.add_cells(rows, "policy.value", logged, np.float64(np.nan))
                added = steps[episode.id,]
                plain.add_cells(rows, "quality", added["quality"].to_list(), np.float64(np.nan))
                plain.add_cells(rows, "caption", added["caption"].to_list(), np.str_(""))
            plain.add_parts(found, "observation.image", lambda observation: observation["image"])
            plain.add_parts(found, "observation.pair.1", lambda observation: observation["pair"][1])
            self.rows[name] = found
        return self.rows[name]

    def agents(self, name: str, names: tuple[str, ...], *, joint: str | None = None) -> list[plain.Rows]:
        """The rows of some agents' parts that have a transition; with a prefix, joined step by step."""
        if (name, names, joint) not in self.rows:
            view = self.views[name]
            table = view.episodes.collect()
            found: list[plain.Rows] = []
            for number, episode in enumerate(view):
                there = [each for each in names if each in episode.agents and episode.agent(each).length]
                parts = {
                    each: _part(number, episode.agent(each), slot, table) if each in there else None
                    for slot, each in enumerate(names)
                }
                if joint is None:
                    found += [part for part in parts.values() if part is not None]
                else:
                    steps = {each: episode.agent(each).env_steps for each, part in parts.items() if part}
                    found.append(plain.joint_rows(number, episode, parts, steps, joint))
            self.rows[name, names, joint] = found
        return self.rows[name, names, joint]


def _part(number: int, part: Any, slot: int, table: pl.DataFrame) -> plain.Rows:
    rows = plain.episode_rows(number, part, {"mask": np.zeros(3, np.int8), "turn": np.int64(0)})
    rows.agent = slot
    rows.columns["env_step"] = [np.int64(step) for step in part.env_steps]
    plain.add_table([rows], table, {"episode_id": np.str_(""), "length": np.int64(0)})
    return rows


def make_world(path: Path) -> World:
    """The store of single agents."""
    store = _killed(path)
    for run in range(2):
        with store.writer(run=f"run-{run}") as writer:
            for number in range(8):
                length = 1 if number == 3 else (2, 9, 5, 1, 3, 30, 4, 7)[number] + run
                _play(writer, length, ENDS[number % 4], 1000 * run + number)
                if number == 4:
                    writer.seal()
    store.refresh()
    level = pl.when(pl.col("length") > 2).then(pl.format("level {} \u00e9", "length"))
    score = pl.when(pl.col("length") % 3 != 1).then(pl.col("length") % 3)
    store.annotate(store.episodes.select("episode_id", score=score, level=level))
    t = pl.col("t")
    steps = store.steps.select(
        "episode_id",
        "t",
        quality=pl.when(t % 2 == 0).then(t * 0.5),
        caption=pl.when(t > 0).then(pl.format("at {}", "t")),
    )
    store.annotate(steps.collect(), on=("episode_id", "t"))
    store.refresh()
    early = el.open(path)
    ids = store.episodes.select("episode_id").collect()["episode_id"]
    store.delete(pl.col("episode_id").is_in([ids[3], ids[11]]))
    store.compact(order_by="length")
    with store.writer(run="late") as writer:
        for number in range(4):
            _play(writer, number + 1, ENDS[number], 9000 + number)
    with store.writer(run="lacking") as writer:
        for number, end in enumerate(("terminated", "truncated", "cut")):
            _lacking(writer, (3, 1, 6)[number], end, 9500 + number)
    store.refresh()
    whole = store.filter(~_LACKING)
    return World(
        {
            "all": whole,
            "backwards": whole[::-1],
            "long": whole.filter("length > 3"),
            "odd": whole[1::3],
            "early": early,
            "scattered": whole.filter(pl.col("score") == 2)[::-1],
            "lacking": store[-6:],
        }
    )


#: Every space whose values differ in length; the first part does not.
RAGGED = gym.spaces.Dict(
    number=gym.spaces.Discrete(9),
    words=gym.spaces.Sequence(gym.spaces.Box(-1, 1, (2,), np.float32)),
    said=gym.spaces.Text(7, min_length=0, charset="ab\u00e9\u6f22"),
    deep=gym.spaces.Sequence(gym.spaces.Sequence(gym.spaces.Box(0, 255, (), np.uint8))),
    parts=gym.spaces.Sequence(gym.spaces.Dict(one=gym.spaces.Discrete(3), two=gym.spaces.Text(3))),
    graph=gym.spaces.Graph(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(4)),
)
CHOICES = gym.spaces.Sequence(gym.spaces.Discrete(4), stack=True)
HITS = plain.Row([], np.int64(0))


class RaggedWorld(World):
    """A store whose values differ in length."""

    def episodes(self, name: str) -> list[plain.Rows]:
        """See `World`."""
        if name not in self.rows:
            forms = {"observation": RAGGED, "action": CHOICES}
            found = [
                plain.episode_rows(
                    number, episode, {"hits": HITS}, lambda key, value: plain.as_arrays(forms[key], value)
                )
                for number, episode in enumerate(self.views[name])
            ]
            plain.add_parts(found, "observation.words", lambda observation: observation["words"])
            self.rows[name] = found
        return self.rows[name]


def _some(rng: np.random.Generator, space: gym.Space) -> Any:
    """A value of a space, empty at times: Gymnasium samples no empty sequence of these."""
    match space:
        case gym.spaces.Dict():
            return {key: _some(rng, part) for key, part in space.items()}
        case gym.spaces.Sequence():
            values = [_some(rng, space.feature_space) for _ in range(rng.integers(4))]
            return np.array(values, space.feature_space.dtype) if space.stack else tuple(values)
        case gym.spaces.Graph():
            nodes, edges = rng.integers(4), rng.integers(3)
            return (
                space.sample(num_nodes=int(nodes), num_edges=int(edges))
                if nodes
                else space.sample(num_nodes=1)
            )
    return space.sample()


def make_ragged_world(path: Path) -> World:
    """The store of values of different lengths."""
    store = el.create(path, observation_space=RAGGED, action_space=CHOICES)
    RAGGED.seed(3), CHOICES.seed(4)
    rng = np.random.default_rng(5)

    def info() -> dict[str, Any]:
        return {"hits": rng.integers(9, size=rng.integers(4))} if rng.random() < 0.7 else {}

    for run in range(2):
        with store.writer(run=f"run-{run}") as writer:
            for number in range(7):
                length = (2, 7, 5, 1, 3, 11, 4)[number] + run
                episode = writer.begin(_some(rng, RAGGED), info())
                for step in range(length):
                    last = step == length - 1
                    episode.append(
                        _some(rng, CHOICES),
                        float(rng.normal()),
                        _some(rng, RAGGED),
                        info=info(),
                        terminated=last and number % 3 == 0,
                        truncated=last and number % 3 == 1,
                    )
                episode.end()
                if number == 3:
                    writer.seal()
    store.refresh()
    store.delete(pl.col("episode_id") == store[4].id)
    store.compact(order_by="length")
    with store.writer(run="lacking") as writer:
        for length in (3, 1, 6):
            writer.write_episode(
                observations=[_some(rng, RAGGED) for _ in range(length)],
                actions=[_some(rng, CHOICES) for _ in range(length)],
                rewards=rng.normal(size=length),
                terminations=length == 3,
                truncations=False,
                last_observation="missing",
            )
    store.refresh()
    whole = store.filter(~_LACKING)
    views = {"all": whole, "backwards": whole[::-1], "long": whole.filter("length > 3"), "odd": whole[1::3]}
    return RaggedWorld({**views, "early": whole[:4], "scattered": whole[::-2], "lacking": store[-6:]})


def make_agent_world(path: Path, env_type: Any = environments.Comings) -> World:
    """A store of agents that come and go or take turns; some episodes are cut before all agents came."""
    turns = env_type is environments.Turns
    play = plain_agents.play_turns if turns else plain_agents.play_parallel
    store = el.create(path, env_type())
    for half in range(2):
        with store.record(env_type(), **({} if turns else {"state": True})) as env:
            for number in range(3):
                seed = 10 * half + number
                policy = plain_agents.random_policy(env, seed)
                play(env, policy, seed, (10_000, 1, 4)[number])
    store.refresh()
    store.delete(pl.col("episode_id") == store[4].id)
    store.compact()
    store.refresh()
    return World({"all": store, "backwards": store[::-1], "long": store.filter(pl.col("length") > 1)})


#: Plain functions of the transforms that the contract uses.
def halved(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform of batches that changes the arrays that it gets."""
    for key in ("reward", "return_to_go"):
        if key in batch:
            batch[key] *= 0.5
    return batch


def moved(reward: Any, number: Any) -> Any:
    """A reward that depends on a part of the observation."""
    return reward + 2.0 * number

"""Every argument that is a number, an option or one of some texts: numpy's scalars work, nonsense is refused.

One table names the arguments of all public functions. Behind each stands a call with the argument alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import episodelake as el
from effort import some
from episodelake.testing.adapters import case
from nasty_environments import SmallEnv

COUNT, NUMBER, FLAG, CHOICE = "count", "number", "flag", "choice"
NAN = float("nan")
#: What is no such argument, by kind.
NONSENSE: dict[str, list[Any]] = {
    COUNT: [NAN, -1, "x", None, True, np.True_, 1.5, np.float64(2), np.array([1, 2]), [1], b"x", 1j],
    NUMBER: [NAN, "x", None, True, np.array([1.0, 2.0]), [0.5], 1j, -1.0],
    FLAG: ["x", "", None, 2, -1, 0.5, NAN, [True], np.array([True, False])],
    CHOICE: ["nonsense", "", 5, None, NAN, True, ["numpy"], np.array(["a"])],
}
WHOLE = {
    "observations": np.zeros((3, 3), np.float32),
    "actions": np.zeros((2, 2), np.float32),
    "rewards": [1.0, 2.0],
    "terminations": True,
    "truncations": False,
}
root = Path(tempfile.gettempdir())


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for this file, with a store and an export of it."""
    global root
    root = tmp_path_factory.mktemp("arguments")
    for each in (store, steps):
        each.cache_clear()
    store().export(root / "src.parquet", format="parquet")
    yield


@cache
def store() -> el.EpisodeStore:
    """Some episodes."""
    made = el.create(root / "store", SmallEnv())
    el.collect(SmallEnv(), None, made, episodes=12, seed=0)
    return made.refresh()


@cache
def steps() -> Any:
    """Their steps, in Polars' namespace of ours."""
    return store().steps.collect().rl  # type: ignore[attr-defined]


def new() -> Path:
    """A path where nothing is."""
    return Path(tempfile.mkdtemp(dir=root)) / "new"


def copied() -> el.EpisodeStore:
    """A store that may be changed."""
    return store().copy(new())


def rec(**options: Any) -> None:
    """Record nothing."""
    copied().record(SmallEnv(), **options).close()


def wr(**options: Any) -> None:
    """Write nothing."""
    copied().writer(**options).close()


def we(**options: Any) -> None:
    """Write an episode."""
    with copied().writer() as writer:
        writer.write_episode(**{**WHOLE, **options})


def beg(**options: Any) -> None:
    """Begin an episode."""
    with copied().writer() as writer:
        writer.begin(np.zeros(3, np.float32), **options)


def col(**options: Any) -> None:
    """Collect two steps."""
    el.collect(SmallEnv(), None, copied(), **{"steps": 2, **options})


def chart(**options: Any) -> None:
    """Save a chart."""
    store().plot.returns().save(new().with_suffix(".json"), **options)


def rb() -> el.ReplayBuffer:
    """A replay buffer."""
    return store().replay_buffer(50)


def reward() -> Any:
    """The column of rewards, in Polars' namespace of ours."""
    return pl.col("reward").rl  # type: ignore[attr-defined]


#: Name, call, kind, a good value, and whether None is one too.
ARGUMENTS: list[tuple[Any, ...]] = [
    ("Batches.size", lambda v: store().loader(el.Batches(v)), COUNT, 2),
    ("Batches.prefetch", lambda v: el.Batches(2, prefetch=v), COUNT, 2),
    ("Batches.drop_last", lambda v: el.Batches(2, drop_last=v), FLAG, True),
    ("loader.batch_size", lambda v: store().loader(v), COUNT, 2),
    ("loader.window", lambda v: store().loader(2, window=v), COUNT, 2, True),
    ("loader.n_step", lambda v: store().loader(2, n_step=v), COUNT, 2, True),
    ("loader.gamma", lambda v: store().loader(2, n_step=2, gamma=v), NUMBER, 0.5, True),
    ("loader.shuffle", lambda v: store().loader(2, shuffle=v), FLAG, True),
    ("loader.seed", lambda v: store().loader(2, seed=v), COUNT, 2),
    ("loader.output", lambda v: store().loader(2, output=v), CHOICE, "numpy"),
    ("loader.cache", lambda v: store().loader(2, cache=v), CHOICE, "memory"),
    ("loader.shard", lambda v: store().loader(2, shard=(v, 3)), COUNT, 1),
    ("loader.shard2", lambda v: store().loader(2, shard=(0, v)), COUNT, 1),
    ("loader.joint", lambda v: store().loader(2, joint=v), FLAG, False),
    ("loader.take", lambda v: store().loader(2).take(v), COUNT, 2),
    ("loader.set_epoch", lambda v: store().loader(2).set_epoch(v), COUNT, 2),
    ("Cache.kind", lambda v: el.Cache(v), CHOICE, "memory"),
    ("FrameStack.k", lambda v: el.FrameStack(k=v), COUNT, 2),
    ("GAE.gamma", lambda v: el.GAE(gamma=v), NUMBER, 0.5),
    ("GAE.lam", lambda v: el.GAE(lam=v), NUMBER, 0.5),
    ("GAE.missing", lambda v: el.GAE(missing=v), CHOICE, "zero"),
    ("NSteps.n", lambda v: el.NSteps(v), COUNT, 2),
    ("NSteps.gamma", lambda v: el.NSteps(2, gamma=v), NUMBER, 0.5),
    ("OneHot.n", lambda v: el.OneHot("action", n=v), COUNT, 2, True),
    ("Prioritized.alpha", lambda v: el.Prioritized(alpha=v), NUMBER, 0.5),
    ("Prioritized.beta", lambda v: el.Prioritized(beta=v), NUMBER, 0.5),
    ("Prioritized.epsilon", lambda v: el.Prioritized(epsilon=v), NUMBER, 0.5),
    ("Prioritized.weights", lambda v: el.Prioritized(weights=v), CHOICE, "all"),
    ("ReturnToGo", lambda v: el.ReturnToGo(gamma=v), NUMBER, 0.5),
    ("Shard.rank", lambda v: el.Shard(v, 3), COUNT, 1),
    ("Shard.world", lambda v: el.Shard(0, v), COUNT, 1),
    ("Shard.uneven", lambda v: el.Shard(0, 1, uneven=v), CHOICE, "pad"),
    ("Windows.length", lambda v: el.Windows(v), COUNT, 2),
    ("Windows.stride", lambda v: el.Windows(4, stride=v), COUNT, 2),
    ("Windows.burn_in", lambda v: el.Windows(4, burn_in=v), COUNT, 2),
    ("Follow.refresh", lambda v: el.Follow(refresh_seconds=v), NUMBER, 1.5),
    ("Follow.newest_steps", lambda v: el.Follow(newest_steps=v), COUNT, 5, True),
    ("Follow.newest_episodes", lambda v: el.Follow(newest_episodes=v), COUNT, 5, True),
    ("Follow.wait", lambda v: el.Follow(wait_seconds=v), NUMBER, 1.5),
    ("Output.kind", lambda v: el.Output(v), CHOICE, "numpy"),
    ("ColumnStats.quantile", lambda v: store().stats(["reward"])["reward"].quantile(v), NUMBER, 0.5),
    ("mix.batch", lambda v: el.mix([(store().loader(2), 1.0)], batch_size=v), COUNT, 2),
    ("mix.weight", lambda v: el.mix([(store().loader(2), v)], batch_size=2), NUMBER, 0.5),
    ("mix.seed", lambda v: el.mix([(store().loader(2), 1.0)], batch_size=2, seed=v), COUNT, 2),
    ("mix.exact", lambda v: el.mix([(store().loader(2), 1.0)], batch_size=2, exact=v), FLAG, True),
    ("mix.source", lambda v: el.mix([(store().loader(2), 1.0)], batch_size=2, source=v), FLAG, True),
    ("quality.gamma", lambda v: store().quality(gamma=v), NUMBER, 0.5),
    ("quality.alpha", lambda v: store().quality(alpha=v), NUMBER, 0.5),
    ("quality.neighbours", lambda v: store().quality(neighbours=v), COUNT, 5),
    ("quality.samples", lambda v: store().quality(samples=v), COUNT, 5),
    ("quality.seed", lambda v: store().quality(seed=v), COUNT, 5),
    ("quality.scores", lambda v: store().quality(scores=(0, v)), NUMBER, 5.0),
    ("sort.descending", lambda v: store().sort("length", descending=[v]), FLAG, True),
    ("sample.n", lambda v: store().sample_episodes(v), COUNT, 2),
    ("sample.seed", lambda v: store().sample_episodes(2, seed=v), COUNT, 2, True),
    ("sample.replace", lambda v: store().sample_episodes(2, replace=v), FLAG, True),
    ("check.finished", lambda v: store().check(finished=v), FLAG, True),
    ("check.unique", lambda v: store().check(unique=v), FLAG, True),
    ("connect.read_only", lambda v: store().connect(read_only=v).close(), FLAG, True),
    ("query.read_only", lambda v: store().query("select 1", read_only=v), FLAG, True),
    ("sql.read_only", lambda v: store().sql("select 1", read_only=v), FLAG, True),
    ("leave_out_damaged", lambda v: store().leave_out_damaged(steps=v), FLAG, True),
    ("export.overwrite", lambda v: store().export(new(), format="parquet", overwrite=v), FLAG, True),
    ("export.strict", lambda v: store().export(new(), format="parquet", strict=v), FLAG, False),
    ("copy.link", lambda v: store().copy(new(), link=v), FLAG, False),
    ("merge.link", lambda v: el.merge([store()], new(), link=v), FLAG, False),
    ("compact.segment_bytes", lambda v: copied().compact(segment_bytes=v), COUNT, 10**6),
    ("compact.descending", lambda v: copied().compact(order_by="length", descending=v), FLAG, True),
    ("delete.dry_run", lambda v: copied().delete("length>1", dry_run=v), FLAG, True),
    ("vacuum.dry_run", lambda v: copied().vacuum(dry_run=v), FLAG, True),
    ("vacuum.older", lambda v: copied().vacuum(older_than=v), CHOICE, timedelta(days=1)),
    ("verify.repair", lambda v: copied().verify(repair=v), FLAG, True),
    ("split.shares", lambda v: copied().split({"a": v, "b": 0.5}), NUMBER, 0.5),
    ("split.by", lambda v: copied().split({"a": 0.5, "b": 0.5}, by=v), CHOICE, "episode"),
    ("tag.version", lambda v: copied().tag("x", version=v), COUNT, 0, True),
    ("open.check_pages", lambda v: el.open(root / "store", check_pages=v), FLAG, False),
    ("recover.other_hosts", lambda v: el.recover(root / "store", other_hosts=v), FLAG, False),
    ("create.reward_shape", lambda v: el.create(new(), SmallEnv(), reward_shape=(v,)), COUNT, 2),
    ("plot.returns.over", lambda v: store().plot.returns(over=v), CHOICE, "steps"),
    ("plot.return_histogram.bins", lambda v: store().plot.return_histogram(bins=v), COUNT, 5, True),
    ("plot.visitation.bins", lambda v: store().plot.visitation(bins=v), COUNT, 5),
    (
        "chart.save.theme",
        lambda v: store().plot.returns().save(new().with_suffix(".json"), theme=v),
        CHOICE,
        "dark",
        True,
    ),
    ("to.pandas.table", lambda v: store().to.pandas(v), CHOICE, "steps"),
    ("FrameStack.pad", lambda v: el.FrameStack(2, pad=v), CHOICE, "zero"),
    ("replay.rtol", lambda v: store()[0].replay(SmallEnv(), rtol=v), NUMBER, 0.5),
    ("replay.atol", lambda v: store()[0].replay(SmallEnv(), atol=v), NUMBER, 0.5),
    ("store().replay.rtol", lambda v: list(store().replay(SmallEnv(), rtol=v)), NUMBER, 0.5),
    ("import.dry_run", lambda v: el.import_dataset(root / "src.parquet", new(), dry_run=v), FLAG, True),
    ("import.on_error", lambda v: el.import_dataset(root / "src.parquet", new(), on_error=v), CHOICE, "skip"),
    (
        "import.last_observation",
        lambda v: el.import_dataset(root / "src.parquet", new(), last_observation=v),
        CHOICE,
        "repeat",
    ),
    (
        "import.last_step",
        lambda v: el.import_dataset(root / "src.parquet", new(), last_step=v),
        CHOICE,
        "auto",
    ),
    ("import.cast", lambda v: el.import_dataset(root / "src.parquet", new(), cast=v), CHOICE, "safe"),
    ("import.trust", lambda v: el.import_dataset(root / "src.parquet", new(), trust=v), FLAG, True),
    (
        "import.max_bytes",
        lambda v: el.import_dataset(root / "src.parquet", new(), max_bytes=v),
        COUNT,
        10**9,
        True,
    ),
    ("collect.steps", lambda v: col(steps=v), COUNT, 2),
    ("collect.episodes", lambda v: el.collect(SmallEnv(), None, store(), episodes=v), COUNT, 2),
    ("collect.quotas", lambda v: el.collect(SmallEnv(), None, store(), episodes=2, quotas=v), FLAG, True),
    ("collect.policy_seed", lambda v: col(policy_seed=v), COUNT, 2, True),
    ("collect.random", lambda v: col(random=v), FLAG, True),
    ("Policy.record_state", lambda v: el.Policy(record_state=v), FLAG, True),
    ("collect.on_interrupt", lambda v: col(on_interrupt=v), CHOICE, "return"),
    ("record.state", lambda v: rec(state=v), FLAG, False),
    ("record.record_infos", lambda v: rec(record_infos=v), FLAG, True),
    (
        "record.autoreset",
        lambda v: store().record(SyncVectorEnv([SmallEnv]), autoreset_mode=v).close(),
        CHOICE,
        "NextStep",
        True,
    ),
    ("durability", lambda v: wr(durability=v), CHOICE, "none"),
    ("flush_seconds", lambda v: wr(flush_seconds=v), NUMBER, 0.5),
    ("flush_steps", lambda v: wr(flush_steps=v), COUNT, 5, True),
    ("seal_seconds", lambda v: wr(seal_seconds=v), NUMBER, 5.0),
    ("seal_steps", lambda v: wr(seal_steps=v), COUNT, 5, True),
    ("seal_episodes", lambda v: wr(seal_episodes=v), COUNT, 5, True),
    ("segment_bytes", lambda v: wr(segment_bytes=v), COUNT, 10**7),
    ("cast", lambda v: wr(cast=v), CHOICE, "safe"),
    ("on_duplicate", lambda v: wr(on_duplicate=v), CHOICE, "skip"),
    ("begin.env_index", lambda v: beg(env_index=v), COUNT, 3, True),
    ("write_episode.env_index", lambda v: we(env_index=v), COUNT, 3, True),
    ("write_episode.last_observation", lambda v: we(last_observation=v), CHOICE, "present"),
    ("replay_buffer.capacity", lambda v: store().replay_buffer(v), COUNT, 50),
    ("replay_buffer.seed", lambda v: store().replay_buffer(50, seed=v), COUNT, 5),
    ("replay_buffer.output", lambda v: store().replay_buffer(50, output=v), CHOICE, "numpy"),
    ("rb.batch_size", lambda v: rb().sample(v), COUNT, 5),
    ("rb.n_step", lambda v: rb().sample(4, n_step=v), COUNT, 2, True),
    ("rb.gamma", lambda v: rb().sample(4, n_step=2, gamma=v), NUMBER, 0.5, True),
    ("rb.seq", lambda v: rb().sample_sequences(v, length=2), COUNT, 2),
    ("rb.len", lambda v: rb().sample_sequences(2, length=v), COUNT, 2),
    ("frame.discounted", lambda v: steps().discounted_return(gamma=v), NUMBER, 0.5),
    ("frame.moving", lambda v: store().episodes.collect().rl.moving_return(episodes=v), COUNT, 3),
    ("frame.n_step", lambda v: steps().n_step(n=v, gamma=0.5), COUNT, 3),
    ("frame.n_step.gamma", lambda v: steps().n_step(n=2, gamma=v), NUMBER, 0.5),
    ("frame.rtg", lambda v: steps().returns_to_go(gamma=v), NUMBER, 0.5),
    ("expr.discounted", lambda v: reward().discounted(v), NUMBER, 0.5),
    ("expr.ema", lambda v: reward().ema(v), NUMBER, 0.5),
    ("expr.next", lambda v: reward().next(v), COUNT, 2),
    ("expr.previous", lambda v: reward().previous(v), COUNT, 2),
    ("to.pandas", lambda v: store().to.pandas(arrow=v), FLAG, False),
]


def good_values(kind: str, good: Any) -> list[Any]:
    """Give a good value as Python's own and as numpy's scalars."""
    if kind == COUNT:
        return [good, np.int64(good), np.uint32(good), *([np.int8(good)] if good < 100 else [])]
    if kind == NUMBER:
        return [good, np.float64(good), np.float32(good)]
    if kind == FLAG:
        return [good, np.bool_(good)]
    return [good, np.str_(good)] if isinstance(good, str) else [good]


@pytest.mark.parametrize("cases", some(ARGUMENTS, 20))
def test_arguments_are_checked(cases: Any) -> None:
    """Scalars of numpy are taken like Python's, and nonsense is the documented error."""
    for argument in cases:
        with case(argument):
            name, call, kind, good, *optional = argument
            for value in good_values(kind, good):
                call(value)
            for value in NONSENSE[kind]:
                if value is None and optional:
                    continue
                try:
                    call(value)
                except (el.errors.InvalidArgumentError, el.errors.VersionNotFoundError):
                    continue
                raise AssertionError(f"{name} takes {value!r}")


def fresh(name: str) -> Path:
    """A folder that is not there."""
    return root / name


REACH = {"aws_region": "eu-central-1"}
#: Options that have no effect in this combination, by what the error says.
IDLE: list[tuple[str, Any]] = [
    ("object stores", lambda: el.open(store().path, storage_options=REACH)),
    ("object stores", lambda: el.create(fresh("idle"), SmallEnv(), storage_options=REACH)),
    ("object stores", lambda: el.create("memory://idle", SmallEnv(), storage_options=REACH)),
    ("object stores", lambda: el.lake(root, storage_options=REACH)),
    ("object stores", lambda: el.recover(store().path, storage_options=REACH)),
    ("object stores", lambda: el.merge([store()], fresh("idle"), storage_options=REACH)),
    ("object stores", lambda: el.merge([store()], store(), storage_options=REACH)),
    ("object stores", lambda: store().copy(fresh("idle"), storage_options=REACH)),
    ("object stores", lambda: store().publish(fresh("idle"), tag="v1", storage_options=REACH)),
    ("object stores", lambda: store().explore(storage_options=REACH)),
    ("object stores", lambda: el.pull(root, fresh("idle"), storage_options=REACH)),
    ("object stores", lambda: el.published(root, storage_options=REACH)),
    ("object stores", lambda: el.import_dataset(root / "src.parquet", store(), storage_options=REACH)),
    (
        "for a new store",
        lambda: el.import_dataset(root / "src.parquet", store(), observation_space=spaces.Discrete(3)),
    ),
    ("without a filter", lambda: store().copy(fresh("idle"), parameters=[1])),
    ("order_by", lambda: store().compact(descending=True)),
    ("no such folder", lambda: el.recover(store().path, journals=root / "none")),
    ("no end", lambda: store().loader(el.Batches(2, drop_last=True), follow=el.Follow())),
    ("quotas=True", lambda: el.collect(SmallEnv(), None, steps=2, quotas=True)),
]


def test_options_without_effect_are_refused() -> None:
    """An option that a call has no use for raises, before anything is written."""
    for message, call in IDLE:
        with case((message, call)):
            with pytest.raises(el.errors.InvalidArgumentError, match=message):
                call()
            assert not any(root.glob("idle*"))


def test_workers_of_torch_are_needed_for_their_options() -> None:
    """Options of worker processes are refused where there are none."""
    pytest.importorskip("torch")
    for options in ({"timeout": 3}, {"worker_init_fn": print}):
        with pytest.raises(el.errors.InvalidArgumentError, match="worker processes"):
            store().loader(2, output="torch").torch_loader(**options)

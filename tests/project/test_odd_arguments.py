"""Arguments that make no sense: each is an error of the library's own that says what was expected instead."""

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_space
from mpe2 import simple_speaker_listener_v4
from typer.testing import CliRunner

import episodelake as el
from episodelake.store.common.habits import _HABITS
from episodelake.terminal.app import app
from episodelake.testing.adapters import case
from episodelake.writers.collecting.collection import RecordingOptions
from scripted_environment import Scripted


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """A store with three episodes."""
    made = el.create(tmp_path_factory.mktemp("odd") / "store", Scripted())
    el.collect(Scripted(), None, made, episodes=3, seed=0)
    return made.refresh()


def pair() -> SyncVectorEnv:
    """Two environments."""
    return SyncVectorEnv([Scripted, Scripted])


def still(observation: Any, info: Any, state: Any) -> Any:
    """A policy with a state that is one array."""
    return np.zeros(2, np.int64), {}, np.zeros((2, 1))


def copied(store: el.EpisodeStore) -> int:
    """Write the episodes again, with an annotation among the facts."""
    facts = store.episodes.collect().with_columns(label=pl.lit("good"))
    with store.writer() as writer:
        return writer.write_episodes(store.steps.collect(), episodes=facts)


QUESTIONS: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "open(None)": (el.errors.InvalidArgumentError, "None is not a path", lambda _: el.open(None)),  # type: ignore[arg-type]
    "open(3)": (el.errors.InvalidArgumentError, "3 is not a path", lambda _: el.open(3)),  # type: ignore[arg-type]
    "create(None)": (
        el.errors.InvalidArgumentError,
        "None is not a path",
        lambda _: el.create(None, Scripted()),
    ),  # type: ignore[arg-type]
    "export(5)": (
        el.errors.InvalidArgumentError,
        "5 is not a path; expected text or a path object",
        lambda store: store.export(5, format="parquet"),
    ),
    "a loader's misspelt column": (
        el.errors.InvalidArgumentError,
        "There is no column 'rewrd' to load. Did you mean reward?",
        lambda store: store.loader(2, columns=["rewrd"]),
    ),
    "a loader's column of episodes": (
        el.errors.InvalidArgumentError,
        "There is no column 'episode_ids' to load. Did you mean",
        lambda store: store.loader(2, columns=["episode_ids"]),
    ),
    "a policy that returns nothing": (
        el.errors.SpaceMismatchError,
        "The policy returned None as the action",
        lambda store: el.collect(Scripted(), lambda observation, info, state: None, store, steps=1),
    ),
    "a policy with extras alone": (
        el.errors.SpaceMismatchError,
        "The policy returned None as the action",
        lambda store: el.collect(Scripted(), lambda observation, info, state: (None, {}), store, steps=1),
    ),
    "annotations as facts of episodes": (
        el.errors.InvalidArgumentError,
        "Leave out annotations; call values of your own `metadata.label`",
        copied,
    ),
    "sql(None)": (el.errors.QueryError, "expected SQL text", lambda store: store.sql(None)),
    "two queries": (el.errors.QueryError, "2 statements", lambda store: store.sql("select 1; select 2")),
    "slice of text": (el.errors.InvalidArgumentError, "slice of positions", lambda store: store["x":"y"]),
    "slice of floats": (el.errors.InvalidArgumentError, "slice of positions", lambda store: store[1.5:3]),
    "slice by nothing": (el.errors.InvalidArgumentError, "no step of 0", lambda store: store[::0]),
    "sample None": (el.errors.InvalidArgumentError, "n=None", lambda store: store.sample_episodes(None)),
    "sample with a text": (
        el.errors.InvalidArgumentError,
        "seed='a'",
        lambda store: store.sample_episodes(1, "a"),
    ),
    "tolerance of text": (
        el.errors.InvalidArgumentError,
        "rtol='a'",
        lambda store: store[0].replay(Scripted(), rtol="a"),
    ),
    "order by a misspelt column": (
        el.errors.InvalidArgumentError,
        "Cannot order by 'lenght'. Did you mean length?",
        lambda store: store.compact(order_by="lenght"),
    ),
    "filter by a column of steps": (
        el.errors.QueryError,
        "reward is a column of steps, which is not read here.",
        lambda store: store.filter("reward > 1"),
    ),
    "an artifact from a path without a file": (
        el.errors.InvalidArgumentError,
        "There is no file 'nowhere.bin'",
        lambda store: store.artifacts.add("nowhere.bin", name="x"),
    ),
    "tag that reads like a version": (
        el.errors.InvalidArgumentError,
        "version",
        lambda store: store.tag("3"),
    ),
    "record(None)": (el.errors.InvalidArgumentError, "env=None", lambda store: store.record(None)),
    "record an unknown id": (
        el.errors.InvalidArgumentError,
        "cannot be made",
        lambda store: store.record("NoSuch-v0"),
    ),
    "collect many agents": (
        el.errors.InvalidArgumentError,
        "is a store for one agent; the environment has several",
        lambda store: el.collect(simple_speaker_listener_v4.parallel_env(), None, store, steps=1),
    ),
    "a seed for two": (
        el.errors.InvalidArgumentError,
        "seed is a list of 1, one for each episode; expected at least 2",
        lambda store: el.collect(Scripted(), None, store, episodes=2, seed=[1]),
    ),
    "too few seeds": (
        el.errors.InvalidArgumentError,
        "seed is a list of 1, one for each episode; expected at least 2",
        lambda store: el.collect(pair(), None, store, steps=1, seed=[1]),
    ),
    "initial state of another nesting": (
        el.errors.SpaceMismatchError,
        "nested otherwise",
        lambda store: el.collect(
            pair(), el.Policy(still, initial_state={"h": np.zeros((2, 1))}), store, steps=40, seed=0
        ),
    ),
}


def test_an_odd_argument_is_told(store: el.EpisodeStore) -> None:
    """The error is of the library's tree and says what was wrong."""
    for name, (kind, text, ask) in QUESTIONS.items():
        with case(name), pytest.raises(kind, match=re.escape(text)):
            ask(store)


def test_one_query_may_end_in_a_semicolon(store: el.EpisodeStore) -> None:
    """What follows the only query may be a semicolon, a comment or nothing."""
    for text in ("select 1", "select 1;", "select 1; -- that is all"):
        assert store.sql(text).fetchall() == [(1,)]


def test_seeds_of_numpy_are_seeds(store: el.EpisodeStore) -> None:
    """Environments take Python's numbers only, so numpy's are turned into them."""
    for env, seed in ((Scripted(), np.int64(7)), (pair(), np.uint32(7)), (pair(), [np.int64(7), None])):
        stats = el.collect(env, None, store, steps=6, seed=seed)  # type: ignore[arg-type]
        first = store.refresh().filter(f"run_id = '{stats.run_ids[0]}' and number = 0")[0]
        assert first.seed == 7


def test_agents_are_stepped_with_a_mapping(tmp_path: Path) -> None:
    """Actions that are no mapping do not reach the environment, and the episode goes on."""
    env = simple_speaker_listener_v4.parallel_env()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        with pytest.raises(el.errors.SpaceMismatchError, match="mapping"):
            recorder.step(None)  # type: ignore[arg-type]
        recorder.step(dict.fromkeys(recorder.agents, 0))
    assert store.refresh()[0].length == 1


def test_a_merge_that_cannot_be_leaves_nothing(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Sources of different spaces are refused before a new store is made of them."""
    other = el.create(tmp_path / "other", gymnasium.make("CartPole-v1"))
    with pytest.raises(el.errors.SpaceMismatchError):
        el.merge([store, other], into=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_no_store_is_made_within_another(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Copies and merges into a folder of their own source are refused, also by way of a link."""
    (tmp_path / "link").symlink_to(store.path)
    for into in (store.path / "inner", store.path / "steps" / "inner", tmp_path / "link" / "inner"):
        with pytest.raises(el.errors.InvalidArgumentError, match="is inside the store"):
            store.copy(into)
        with pytest.raises(el.errors.InvalidArgumentError, match="is inside the store"):
            el.merge([store], into=into)
        assert not into.exists()
    assert len(store.copy(store.path.parent / f"{store.path.name}-beside")) == len(store)


class Wider(CartPoleVectorEnv):
    """A vector environment that shows more than one of its environments would alone."""

    def __init__(self, num_envs: int = 2, **arguments: Any) -> None:
        super().__init__(num_envs, **arguments)
        self.single_observation_space = Box(-np.inf, np.inf, (5,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """As ever, and a column more."""
        observations, infos = super().reset(seed=seed, options=options)
        return np.pad(observations, ((0, 0), (0, 1))), infos

    def step(self, action: Any) -> Any:
        """As ever, and a column more."""
        observations, *rest = super().step(action)
        return np.pad(observations, ((0, 0), (0, 1))), *rest


def test_an_environment_that_comes_back_otherwise_is_told(tmp_path: Path) -> None:
    """A vector environment that preprocesses by itself is made again as one that does not, with a warning."""
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    gymnasium.register("Wider-v0", entry_point=entry, vector_entry_point=Wider)
    envs = gymnasium.make_vec("Wider-v0", num_envs=2, vectorization_mode="vector_entry_point")
    store = el.create(tmp_path / "store", envs)
    el.collect(envs, None, store, steps=4, seed=0)
    with pytest.warns(RuntimeWarning, match="observation space"):
        store.refresh().make_env()
    with pytest.raises(el.errors.EnvUnavailableError, match="observation space"):
        store.make_env(strict=True)
    with pytest.raises(el.errors.SpaceMismatchError), warnings.catch_warnings(action="ignore"):
        store[0].replay()


def test_what_was_of_many_agents_has_its_name(tmp_path: Path) -> None:
    """`info` names an environment of PettingZoo, which has no spec, by its own name."""
    env = simple_speaker_listener_v4.parallel_env()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        recorder.step(dict.fromkeys(recorder.agents, 0))
    told = CliRunner().invoke(app, ["info", str(tmp_path / "store")]).output
    assert "simple_speaker_listener_v4 (PettingZoo, parallel)" in told
    assert "damaged" not in told


HABITS = [
    ("store.num_episodes", "len(view)"),
    ("store.limit", "view[:n]"),
    ("store.filter('length > 0').add_episode", "write_episode"),
    ("store.loader(sequence_length=4)", "window"),
    ("store.loader(batchsize=4)", "batch_size"),
    ("el.create('x', observaton_space=None)", "Did you mean observation_space"),
    ("el.open(store.path, verson=1)", "Did you mean version"),
    ("el.import_dataset('x', 'y', formt='csv')", "Did you mean format"),
    ("el.collect('CartPole-v1', None, episode=3)", "Did you mean episodes"),
    ("store.record(None, metdata={})", "Did you mean metadata"),
    ("store.writer(metdata={})", "Did you mean metadata"),
    ("store.writer(num_envs=1)", "The options of a run are durability, flush_seconds"),
    ("el.open(f'{store.path}@t1')", "an argument of its own: episodelake.open("),
    ("el.open(f'{store.path}@3')", ", 3)"),
    ("el.lake(store.path.parent)[f'{store.path.name}@t1']", "Open it at 't1'"),
    ("store.filter(pl.col('run.name') == 'x')", 'as in filter("run.name'),
    ("store.sort(pl.col('run.nmae'))", "No run has a key 'nmae'. Did you mean name?"),
    ("store[0].to_polars", "frame()"),
    ("store[0]['reward']", "rewards"),
    ("store[0]['frame']", "episode.frame()"),
    ("store[0][3]", "episode.frame()"),
    ("list(store[0])", "not iterable"),
    ("el.load", "did you mean el.open?"),
    ("el.LeRobotDataset", "el.open"),
    ("el.from_minari", "el.import_dataset"),
    ("el.DataLoader", "store.loader(...)"),
    ("el.RecordEpisodes", "store.record(env)"),
    ("store.iterate_episodes", "for episode in view"),
    ("store.to_polars", "view.episodes.collect()"),
    ("store.push_to_hub", "store.publish(target)"),
    ("store.with_format", 'loader(output="torch")'),
    ("store.num_frames", "sum(length)"),
    ("store.close", "no open files"),
    ("store.observations", "view.steps"),
    ("store['observations']", "view.steps"),
    ("store['reward']", "view.loader()"),
    ("store[0].obs", "observations"),
    ("store[0].next_obs", "observations[1:]"),
    ("store[0].dones", "terminations"),
    ("store[0].total_reward", "episode_return"),
    ("store.loader(2, num_workers=4)", "torch_loader(num_workers=n)"),
    ("store.loader(2, drop_last=True)", "Batches"),
    ("store.loader(2, keys=['obs'])", "columns"),
    ("next(iter(torch.utils.data.DataLoader(store.loader(2))))", "torch_loader"),
    ("el.create('x', obs_space=None)", "observation_space"),
    ("el.open(store.path, revision=1)", "version"),
    ("el.collect('CartPole-v1', None, n_episodes=3)", "Did you mean episodes"),
    ("el.collect('CartPole-v1', None, total_timesteps=3)", "Did you mean steps"),
    ("store.record(None, name='x')", "Did you mean run"),
    ("store.writer(config={})", "Did you mean metadata"),
]


def test_names_from_habit_lead_to_the_right_ones(store: el.EpisodeStore) -> None:
    """Names of other libraries, and misspelt arguments, bring the name of this one."""
    wrong = AttributeError, TypeError, el.errors.EpisodelakeError
    for guess, meant in HABITS:
        with case(guess), pytest.raises(wrong, match=re.escape(meant)):
            eval(guess, {"store": store, "el": el, "pl": pl, "torch": torch})


#: The first words of hints that are no names of their place.
FREE = {"len", "view", "for", "nothing", "writer", "close", "torch_loader", "rollout"}


def test_names_of_other_libraries_lead_somewhere(store: el.EpisodeStore) -> None:
    """Each is listed once and is no name of this library; the names of its hint are."""
    functions: dict[str, Any] = {"loader()": store.loader, "create()": el.create, "open()": el.open}
    functions |= {"collect()": el.collect}
    places = {"module": el, "view": store, "episode": store[0]}
    roots = {**places, "el": el, "store": store, "writer": el.EpisodeWriter}
    for place, habits in _HABITS.items():
        names = Counter(name for each in habits.values() for name in each.split())
        own = {*RecordingOptions.__annotations__}
        if place in places:
            own = {*dir(places[place])}
        elif place in functions:
            own = {*inspect.signature(functions[place]).parameters}
        with case(place):
            assert {*names.values()} == {1} and own.isdisjoint(names)
        for target in habits:
            with case(f"{place} {target}"):
                found = re.findall(r"\b(el|view|store|episode|writer)\.([a-z_]\w*(?:\.[a-z_]\w*)*)", target)
                assert all(attrgetter(path)(roots[root]) is not None for root, path in found)
                assert found or re.match(r"\w+", target)[0] in own | FREE  # type: ignore[index]


def test_calls_of_other_libraries_name_the_method(store: el.EpisodeStore) -> None:
    """A call of `plot`, an unknown chart, and a condition as a text where a function is expected."""
    with pytest.raises(TypeError, match=r"plot\.learning_curve\(\)"):
        store.plot()  # type: ignore[operator]
    with pytest.raises(AttributeError, match="Did you mean returns"):
        store.plot.retuns()  # type: ignore[attr-defined]
    with pytest.raises(el.errors.InvalidArgumentError, match="goes to filter"):
        store.where("length > 3")  # type: ignore[arg-type]


def test_harmless_habits_work(store: el.EpisodeStore) -> None:
    """Episodes give attributes by name, and views the conversions of `view.to`."""
    for name in ("observations", "rewards", "episode_return", "length", "metadata"):
        assert repr(store[0][name]) == repr(getattr(store[0], name))
    assert store.to_pandas().equals(store.to.pandas()) and len(store[:1].to_pandas("episodes")) == 1


def test_tuples_of_values_are_batches(tmp_path: Path) -> None:
    """A tuple is taken like a list, also in a Dict space; in a Tuple space it has a batch for each part."""
    dict_space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3))
    tuple_space = gymnasium.spaces.Tuple([Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3)])
    row = np.zeros(2, np.float32)
    store = el.create(tmp_path / "store", observation_space=tuple_space, action_space=dict_space)
    with store.writer() as writer:
        common = {"rewards": (0.0, 1.0), "terminations": True, "truncations": False}
        writer.write_episode(observations=((row,) * 3, (0, 1, 2)), actions={"a": (0, 1)}, **common)
        with pytest.raises(el.errors.SpaceMismatchError, match="actions: got 3 values; expected 2"):
            writer.write_episode(observations=((row,) * 3, (0, 1, 2)), actions={"a": (0, 1, 2)}, **common)
    episode = store.refresh()[0]
    assert episode.actions["a"].tolist() == [0, 1] and episode.observations[1].tolist() == [0, 1, 2]


def test_options_of_a_reset_are_a_mapping(tmp_path: Path) -> None:
    """Anything else is refused before the environment is reset."""
    for number, vector in enumerate([False, True]):
        with case(vector):
            _check_options_of_a_reset_are_a_mapping(tmp_path / str(number), vector)


def _check_options_of_a_reset_are_a_mapping(tmp_path: Path, vector: bool) -> None:
    env = pair() if vector else Scripted()
    with el.create(tmp_path / "store", env).record(env) as recorder:
        with pytest.raises(el.errors.InvalidArgumentError, match="options is list; expected a mapping"):
            recorder.reset(options=["easy"])
        recorder.reset(seed=0, options={"easy": True})

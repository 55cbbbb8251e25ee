"""Arrays of PyTorch, JAX and others: the same numbers from every recorder and writer, whatever holds them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo import AECEnv, ParallelEnv

import episodelake as el
from effort import some, with_folders
from episodelake.store.environments.codecs import decode_argument, encode_argument, is_opaque, opaque_parts
from episodelake.testing.adapters import case
from pools import Pool


class Device:
    """A tensor on an accelerator that is part of a graph, with the protocol of PyTorch's.

    numpy may read it only after `detach` and `cpu`, and a bfloat16 one only after `float` too.
    """

    def __init__(self, values: Any, *, missing: tuple[str, ...] = ("detach", "cpu")) -> None:
        self.values, self.missing = np.asarray(values), missing
        self.shape, self.ndim = self.values.shape, self.values.ndim

    def _without(self, step: str) -> Device:
        return Device(self.values, missing=tuple(each for each in self.missing if each != step))

    def detach(self) -> Device:
        """Leave the graph."""
        return self._without("detach")

    def cpu(self) -> Device:
        """Leave the device."""
        return self._without("cpu")

    def float(self) -> Device:
        """Widen the numbers."""
        return self._without("float")

    def item(self) -> Any:
        """Return the one number."""
        return self.values.item()

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Device:
        return Device(self.values[key], missing=self.missing)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.missing:
            raise TypeError(f"cannot be read without {self.missing}")
        return self.values if dtype is None else self.values.astype(dtype)

    def numpy(self) -> np.ndarray:
        """Return the values."""
        return self.__array__()

    def __repr__(self) -> str:
        return "text instead of numbers"


class Lent:
    """An array that knows DLPack alone."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape = self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Lent:
        return Lent(self.values[key])

    def __bool__(self) -> bool:
        return bool(self.values)

    def item(self) -> Any:
        """Return the one number."""
        return self.values.item()

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.values.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def scalar(values: Any) -> Any:
    """Return numbers of numpy, one of them as a scalar."""
    return np.asarray(values)[()]


def half(values: Any) -> Device:
    """A tensor of a type that numpy lacks, on a device."""
    return Device(values, missing=("detach", "cpu", "float"))


def torch_of(dtype: str, **options: Any) -> Callable[[Any], Any]:
    """Return a maker of PyTorch tensors; integers and flags keep their own type."""

    def make(values: Any) -> Any:
        torch = pytest.importorskip("torch")
        array = np.asarray(values)
        if array.dtype.kind != "f":
            return torch.tensor(array)
        return torch.tensor(array, dtype=getattr(torch, dtype), **options)

    return make


def jax_of(dtype: str) -> Callable[[Any], Any]:
    """Return a maker of JAX arrays; integers and flags keep their own type."""

    def make(values: Any) -> Any:
        numbers = pytest.importorskip("jax.numpy")
        array = np.asarray(values)
        return numbers.asarray(array, dtype=dtype if array.dtype.kind == "f" else None)

    return make


KINDS: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "device": Device,
    "bfloat16 device": half,
    "lent": Lent,
    "torch": torch_of("float32"),
    "torch gradients": torch_of("float32", requires_grad=True),
    "torch bfloat16": torch_of("bfloat16", requires_grad=True),
    "jax": jax_of("float32"),
    "jax bfloat16": jax_of("bfloat16"),
}
#: Exact in bfloat16, so that all kinds give the same numbers.
NUMBER, VECTOR = np.float32(0.15625), np.array([0.5, -2.0, 3.0], np.float32)
BOX = spaces.Box(-9, 9, (3,), np.float32)


class Giving(gym.Env):
    """Gives one observation, reward, flag and info of a kind."""

    observation_space, action_space = BOX, spaces.Discrete(3)

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        self.kind, self.t = kind, 0

    def _info(self) -> dict[str, Any]:
        return {"number": self.kind(NUMBER), "nest": {"vector": self.kind(VECTOR)}}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin."""
        self.t = 0
        return self.kind(VECTOR), self._info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """End after two steps."""
        self.t += 1
        return self.kind(VECTOR), self.kind(NUMBER), self.kind(self.t == 2), self.kind(False), self._info()


class Batched(gym.vector.VectorEnv):
    """The same of two environments at once."""

    def __init__(self, kind: Callable[[Any], Any], mode: AutoresetMode) -> None:
        self.kind, self.num_envs, self.metadata, self.t = kind, 2, {"autoreset_mode": mode}, 0
        self.single_observation_space, self.single_action_space = BOX, spaces.Discrete(3)
        self.observation_space = gym.vector.utils.batch_space(BOX, 2)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 2)

    def _info(self) -> dict[str, Any]:
        numbers, vectors = np.repeat(NUMBER, 2), np.stack([VECTOR] * 2)
        return {"number": self.kind(numbers), "nest": {"vector": self.kind(vectors)}}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        return self.kind(np.stack([VECTOR] * 2)), self._info()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """End after two steps."""
        self.t += 1
        info = self._info()
        if self.t == 2 and self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            info = {"final_obs": self.kind(np.stack([VECTOR] * 2)), "final_info": self._info()}
        flags = np.full(2, self.t == 2), np.zeros(2, bool)
        rewards = self.kind(np.repeat(NUMBER, 2))
        return self.kind(np.stack([VECTOR] * 2)), rewards, *map(self.kind, flags), info


class Together(ParallelEnv):
    """Two agents that act at once."""

    metadata: ClassVar[dict] = {"name": "together_v0"}
    possible_agents: ClassVar[list] = ["a", "b"]

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        self.one, self.agents = Giving(kind), []

    def observation_space(self, agent: str) -> Any:
        """The same of both."""
        return BOX

    def action_space(self, agent: str) -> Any:
        """The same of both."""
        return spaces.Discrete(3)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        self.agents = [*self.possible_agents]
        results = {agent: self.one.reset() for agent in self.agents}
        return tuple({agent: result[place] for agent, result in results.items()} for place in range(2))  # type: ignore[return-value]

    def step(self, actions: Any) -> Any:
        """Go on."""
        result = self.one.step(None)
        given = [dict.fromkeys(self.agents, part) for part in result]
        if result[2]:
            self.agents = []
        return tuple(given)


class InTurns(AECEnv):
    """One agent whose turn it always is."""

    metadata: ClassVar[dict] = {"name": "turns_v0"}
    possible_agents: ClassVar[list] = ["a"]
    observation_space = Together.observation_space
    action_space = Together.action_space

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        super().__init__()
        self.one = Giving(kind)

    def reset(self, seed: Any = None, options: Any = None) -> None:
        """Begin."""
        self.agents, self.agent_selection = ["a"], "a"
        self.seen, info = self.one.reset()
        self.rewards, self._cumulative_rewards = {"a": 0.0}, {"a": 0.0}
        self.terminations, self.truncations, self.infos = {"a": False}, {"a": False}, {"a": info}

    def observe(self, agent: str) -> Any:
        """Return what was seen."""
        return self.seen

    def step(self, action: Any) -> None:
        """Go on."""
        if self.terminations["a"]:
            self.agents = []
            return
        self.seen, reward, terminated, truncated, info = self.one.step(action)
        self._cumulative_rewards = {"a": reward}
        self.terminations, self.truncations, self.infos = {"a": terminated}, {"a": truncated}, {"a": info}


def record_single(store: el.EpisodeStore, kind: Callable[[Any], Any]) -> None:
    """Record one environment, with every way to add values."""
    values = {"number": kind(NUMBER), "nest": {"vector": kind(VECTOR)}}
    with store.record(
        Giving(kind),
        metadata=values,
        step_callback=lambda step: values,
        episode_callback=lambda episode: values,
    ) as recorder:
        recorder.reset(options=values)
        for _ in range(2):
            recorder.log(**values)
            recorder.step(kind(2))


def record_vector(store: el.EpisodeStore, kind: Callable[[Any], Any]) -> None:
    """Record vectors in each mode, and one of single environments."""
    for mode in AutoresetMode:
        for envs in Batched(kind, mode), SyncVectorEnv([lambda: Giving(scalar)] * 2, autoreset_mode=mode):
            with store.record(envs) as recorder:
                recorder.reset()
                for _ in range(2):
                    recorder.log(number=kind(np.repeat(NUMBER, 2)), nest={"vector": [kind(VECTOR)] * 2})
                    recorder.step(kind([2, 2]) if isinstance(envs, Batched) else np.array([2, 2]))


def record_pool(store: el.EpisodeStore, kind: Callable[[Any], Any]) -> None:
    """Record a pool."""
    with store.record(Pool([Giving(scalar)], 1)) as recorder:
        recorder.async_reset()
        recorder.recv()
        for _ in range(2):
            recorder.log(number=kind(NUMBER[None]), nest={"vector": kind(VECTOR[None])})
            recorder.step(np.array([2]))


def collect(store: el.EpisodeStore, kind: Callable[[Any], Any]) -> None:
    """Collect from single and vector environments."""

    def one(observation: Any, info: Any, state: Any) -> Any:
        return kind(2), {"number": kind(NUMBER), "nest": {"vector": kind(VECTOR)}}

    def many(observation: Any, info: Any, state: Any) -> Any:
        return kind([2, 2]), {
            "number": kind(np.repeat(NUMBER, 2)),
            "nest": {"vector": kind(np.stack([VECTOR] * 2))},
        }

    el.collect(Giving(scalar), one, store, episodes=1)
    el.collect(SyncVectorEnv([lambda: Giving(scalar)] * 2), many, store, episodes=2)


def write_steps(store: el.EpisodeStore, kind: Callable[[Any], Any]) -> None:
    """Write step by step, whole episodes of arrays and of lists."""
    values = {"number": kind(NUMBER), "nest": {"vector": kind(VECTOR)}}
    with store.writer(metadata=values) as writer:
        episode = writer.begin(kind(VECTOR), info=values, metadata=values, extra=values)
        for t in range(2):
            episode.append(
                kind(2),
                kind(NUMBER),
                kind(VECTOR),
                terminated=kind(t == 1),
                info=values,
                policy=values,
                extra=values,
            )
        episode.end()
        stacked = {"number": kind(np.repeat(NUMBER, 3)), "nest": {"vector": kind(np.stack([VECTOR] * 3))}}
        for whole in True, False:
            writer.write_episode(
                observations=kind(np.stack([VECTOR] * 3)) if whole else [kind(VECTOR)] * 3,
                actions=kind([2, 2]) if whole else [kind(2)] * 2,
                rewards=kind(np.repeat(NUMBER, 2)) if whole else [kind(NUMBER)] * 2,
                terminations=kind([False, True]),
                truncations=kind(False),
                infos=stacked if whole else [values] * 3,
                policy=stacked,
                extra=stacked,
                metadata=values,
                options=values,
            )


def check(values: Mapping[str, Any], many: int | None = None) -> None:
    """Compare what was read, of one row or of many, with the numbers that went in."""
    number, nest = values["number"], values["nest"]
    for row in range(many or 1):
        own = number if many is None else number[row]
        vector = nest[row]["vector"] if isinstance(nest, list) else nest["vector"]
        vector = vector if many is None or isinstance(nest, list) else vector[row]
        assert not isinstance(own, np.ndarray | el.types.OpaqueValue) or own.dtype == np.float32, own
        assert float(own) == float(NUMBER)
        assert isinstance(vector, np.ndarray) and vector.tolist() == VECTOR.tolist()


_VALUES_OF_ANY_LIBRARY_BECOME_N: Any = [
    *itertools.product(KINDS.values(), [record_single, record_vector, record_pool, collect, write_steps])
]


@pytest.mark.parametrize("cases", some(_VALUES_OF_ANY_LIBRARY_BECOME_N))
def test_values_of_any_library_become_numbers(tmp_path: Path, cases: Any) -> None:
    """Observations, actions, rewards, flags, infos, logged values and metadata are the numbers of numpy."""
    for folder, (kind, record) in with_folders(cases, tmp_path):
        with case((kind, record)):
            store = el.create(folder / "store", Giving(kind))
            record(store, kind)
            episodes = list(store.refresh())
            assert episodes and store.verify().faults == ()
            for episode in episodes:
                assert episode.observations.tolist() == [VECTOR.tolist()] * 3
                assert episode.actions.tolist() == [2, 2] and episode.terminations.tolist() == [False, True]
                assert episode.rewards.tolist() == [float(NUMBER)] * 2
                for info in episode.infos:
                    if record is not record_pool:
                        check(info)
                check(episode.policy, 2)
                if episode.metadata:
                    check(episode.metadata)
                if episode.extra:
                    check(episode.extra, 3)
            if kind is np.asarray:
                return  # arrays of shape () stay arrays, beside the scalars of vectors
            columns = [*store.steps.collect_schema(), *store.runs.collect_schema()]
            assert not [name for name in columns if name.endswith("_json") and store_texts(store, name)]


def store_texts(store: el.EpisodeStore, column: str) -> list[Any]:
    """Return what a JSON column holds."""
    table = "steps" if column in store.steps.collect_schema() else "runs"
    return store.sql(f'select "{column}" from {table} where "{column}" is not null').fetchall()


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("make", [Together, InTurns])
def test_agents_values_of_any_library_become_numbers(
    tmp_path: Path, make: Callable[..., Any], kind: Callable[[Any], Any]
) -> None:
    """Recorders of several agents take what those of one take."""
    if kind is Lent and make is InTurns:
        pytest.skip("an AEC environment adds up rewards, which arrays of this kind cannot")
    env = make(kind)
    store = el.create(tmp_path / "store", make(np.asarray))
    with store.record(env) as recorder:
        recorder.reset()
        for _ in range(2):
            recorder.log("a", number=kind(NUMBER), nest={"vector": kind(VECTOR)})
            recorder.step(kind(2) if make is InTurns else {agent: kind(2) for agent in env.agents})
    lane = store.refresh()[0].agent("a")
    assert lane.observations.tolist() == [VECTOR.tolist()] * 3 and lane.actions.tolist() == [2, 2]
    assert lane.rewards.tolist() == [float(NUMBER)] * 2 and lane.terminations.tolist() == [False, True]
    for info in lane.infos:
        check(info)
    check(lane.policy, 2)


class Shy:
    """An object whose conversion fails in its own way."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise KeyError("no numbers here")

    def __repr__(self) -> str:
        return "shy"


def test_what_is_no_array_of_numbers_stays_what_it_is(tmp_path: Path) -> None:
    """Classes, objects and failing conversions are kept as text; mappings of any class are dicts."""
    store = el.create(tmp_path / "store", Giving(np.asarray))
    given = {"type": np.ndarray, "shy": Shy(), "objects": Lent, "mapping": MappingProxyType({"a": 1})}
    with store.record(Giving(np.asarray)) as recorder:
        recorder.reset()
        recorder.log(**given)
        recorder.step(2)
    policy = store.refresh()[0].policy
    assert policy["mapping"]["a"].tolist() == [1]
    assert [type(policy[key][0]).__name__ for key in ("type", "shy", "objects")] == ["OpaqueValue"] * 3
    assert policy["shy"][0].text == "shy"


def test_arguments_of_environments_are_not_converted() -> None:
    """A tensor among the arguments of an environment is not replaced by an array of numpy."""
    assert is_opaque(encode_argument(Device(VECTOR)))
    assert opaque_parts(decode_argument(encode_argument([Device(VECTOR)]), "here", Path))
    assert not opaque_parts(decode_argument(encode_argument([VECTOR]), "here", Path))


def test_loaders_refuse_arrays_of_several_shapes(tmp_path: Path) -> None:
    """An info of several shapes is refused unless only its first axis differs; arrays without items load, and
    have statistics.
    """
    rows: list[list[Any]] = [
        [np.full((4, 4), 7, np.uint8), np.full((2, 2), 9, np.uint8)],
        [np.ones((4, 1)), np.ones((4, 2))],
        [np.ones((1, 4)), np.ones((2, 4))],
        [1.0, np.ones(1)],
        [np.zeros((0, 4)), np.zeros((0, 4))],
    ]
    for number, (first, second) in enumerate(rows):
        store = el.create(tmp_path / str(number), Giving(scalar))
        with store.writer() as writer:
            writer.write_episode(
                observations=np.zeros((2, 3), np.float32),
                actions=[0],
                rewards=[0.0],
                terminations=True,
                truncations=False,
                infos=[{"a": {"x": first}}, {"a": {"x": second}}],
            )
        store.refresh()
        if np.shape(first) == np.shape(second):
            assert next(iter(store.loader(columns=["info.a.x"])))["info.a.x"].shape == (1, 0, 4)
            assert store.stats() is not None
        elif np.shape(first)[1:] == np.shape(second)[1:] == (4,):
            (batch,) = store.loader(columns=["info.a.x"])
            assert batch["info.a.x"].values.shape[1:] == (4,)
        else:
            with pytest.raises(el.errors.InvalidArgumentError, match=r"shapes.*one shape"):
                store.loader(columns=["info.a.x"])


class Skipping(Together):
    """Gives one of its agents nothing after a step, and keeps it."""

    def step(self, actions: Any) -> Any:
        """Go on."""
        return tuple({"a": part["a"]} for part in super().step(actions))


def test_an_action_without_a_row_is_refused(tmp_path: Path) -> None:
    """A step that gives an agent that acted neither observation nor reward is an error."""
    store = el.create(tmp_path / "store", Skipping(scalar))
    with store.record(Skipping(scalar)) as recorder:
        recorder.reset()
        with pytest.raises(el.errors.SpaceMismatchError, match=r"'b'.*no observation"):
            recorder.step({"a": 1, "b": 1})

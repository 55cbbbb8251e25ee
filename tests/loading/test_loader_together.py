"""Parts of loaders that meet: caches, transforms, outputs, priorities, following, mixing and workers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import episodelake as el
from loader_batches import assert_identical, flat, segmented_store

NESTED = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (3, 2), np.uint8),
    pair=gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(3))),
)
LENGTHS = [5, 1, 17, 9, 30, 2, 11, 8]
TRANSFORMS = [el.ReturnToGo(0.9), el.FrameStack(3, "observation.image"), el.OneHot("observation.pair.1", 3)]
CACHES = ("memory", "mmap", "stream")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Eight episodes of nested observations, 83 transitions, in four segments."""
    return segmented_store(tmp_path_factory.mktemp("together") / "store", LENGTHS, NESTED, 2)


@pytest.fixture(autouse=True)
def _cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped columns go to a folder of the test."""
    monkeypatch.setenv("EPISODELAKE_CACHE", str(tmp_path / "cache"))


def loader_of(view: el.EpisodeView, cache: Any = "memory", prefetch: int = 0, **options: Any) -> el.Loader:
    """Transitions, with what was derived and stacked on reading; a stream has several groups."""
    options = {"transforms": TRANSFORMS, **options}
    if cache == "stream":
        cache = el.Cache("stream", buffer_bytes=3000)
    return view.loader(el.Batches(4, prefetch=prefetch), cache=cache, seed=5, **options)


def as_numpy(batches: Any) -> Iterator[dict[str, np.ndarray]]:
    """Batches of tensors as flat dicts of arrays."""
    for batch in batches:
        yield {name: np.asarray(leaf) for name, leaf in flat(batch)}


def arrays(batches: Any) -> Iterator[dict[str, np.ndarray]]:
    """Batches as flat dicts."""
    return (dict(flat(batch)) for batch in batches)


def test_shuffled_states_fit_memory_and_mmap_but_no_stream(store: el.EpisodeStore) -> None:
    """Whose order is another one; and none of these is one of priorities."""
    memory, mapped, stream = (loader_of(store, cache, shuffle=True) for cache in CACHES)
    assert memory.state_dict() == mapped.state_dict()
    mapped.load_state_dict(memory.state_dict())
    drawing = loader_of(store, weights=el.Prioritized())
    for one, other in [(memory, stream), (stream, mapped), (memory, drawing), (drawing, memory)]:
        with pytest.raises(el.errors.LoaderStateError):
            one.load_state_dict(other.state_dict())


@pytest.mark.parametrize("cache", ["memory", "mmap"])
def test_priorities_of_mapped_and_stacked_tensors(store: el.EpisodeStore, cache: Any) -> None:
    """Each batch holds its units, as tensors; a state goes on elsewhere, and so does a pickled loader."""
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"weights": el.Prioritized(alpha=1.0, epsilon=0.0), "output": "torch"}
    loader, every = loader_of(store, cache, **options), next(iter(store.loader(83, transforms=TRANSFORMS)))
    loader.update_priorities(torch.arange(83), torch.arange(83) % 7)
    batches = iter(loader)
    for _ in range(5):
        batch = next(batches)
        numbers = batch["unit"].numpy()
        assert (numbers % 7 > 0).all()
        drawn = {
            name: leaf for name, leaf in next(as_numpy([batch])).items() if name[1:] not in ("unit", "weight")
        }
        assert_identical([drawn], [{name: leaf[numbers] for name, leaf in flat(every)}])
        loader.update_priorities(batch["unit"], batch["weight"] + 1)
    other = loader_of(store, "mmap" if cache == "memory" else "memory", **options)
    other.load_state_dict(loader.state_dict())
    copy = pickle.loads(pickle.dumps(loader))
    expected = list(as_numpy(batches))
    assert assert_identical(as_numpy(other), expected) == assert_identical(as_numpy(copy), expected) == 16


@pytest.mark.further
def test_following_derives_and_stacks_new_episodes(tmp_path: Path) -> None:
    """Whatever is drawn is what a loader of the newest version has, also after the arrays have moved."""
    space, actions = gym.spaces.Box(0, 255, (2, 2), np.uint8), gym.spaces.Discrete(2)
    store = el.create(tmp_path / "grown", observation_space=space, action_space=actions)
    transforms = [el.ReturnToGo(), el.FrameStack(3)]
    loader = store.loader(64, follow=el.Follow(refresh_seconds=0, newest_episodes=3), transforms=transforms)
    rng = np.random.default_rng(0)
    for length in [4, 1, 9, 2, 30, 3, 5]:
        with store.writer(run=f"run-{length}") as writer:
            writer.write_episode(
                observations=rng.integers(0, 255, (length + 1, 2, 2), np.uint8),
                actions=rng.integers(0, 2, length),
                rewards=rng.normal(size=length),
                terminations=np.arange(length) == length - 1,
                truncations=np.zeros(length, bool),
            )
        batch = loader.take(200)
        shown = store.refresh()[-3:]
        every = next(iter(shown.loader(100, transforms=transforms)))
        returns = every["return_to_go"]
        assert set(batch["return_to_go"]) == set(returns)
        numbers = np.argsort(returns)[np.searchsorted(np.sort(returns), batch["return_to_go"])]
        assert_identical([batch], [{key: values[numbers] for key, values in every.items()}])


def by_the_first(reward: np.ndarray) -> np.ndarray:
    """Whole numbers or not, as the first of some rewards has it."""
    return reward + 0.5 if reward[0] < 2 else reward.astype(np.int64)


def test_what_is_derived_of_new_episodes_has_the_dtype_of_the_others(tmp_path: Path) -> None:
    """A function that gives another one is refused: what is held would have to be rounded."""
    space, actions = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)
    store = el.create(tmp_path / "grown", observation_space=space, action_space=actions)
    transforms = [el.Relabel("moved", by_the_first)]
    loader = store.loader(8, columns=["reward"], follow=el.Follow(refresh_seconds=0), transforms=transforms)
    for reward in (1.0, 2.0):
        with store.writer(run=f"run-{reward}") as writer:
            writer.write_episode(
                observations=np.zeros((31, 1), np.float32),
                actions=np.zeros(30, np.int64),
                rewards=np.full(30, reward),
                terminations=np.arange(30) == 29,
                truncations=np.zeros(30, bool),
            )
        if reward == 1.0:
            assert set(loader.take(8)["moved"]) == {1.5}
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"'moved' of new episodes is int64 .* was float64"
    ):
        loader.take(8)


def test_a_mixture_of_tensors_from_streams(store: el.EpisodeStore) -> None:
    """Each part in its own order, handed out as tensors, by batches and by units; also from its state."""
    torch = pytest.importorskip("torch")

    def mixture(output: Any) -> el.types.MixedLoader:
        parts = [loader_of(view, "stream", shuffle=True, output=output) for view in (store, store[:5])]
        return el.mix([(parts[0], 0.75), (parts[1], 0.25)], 8, source=True)

    expected, tensors = list(mixture("numpy")), mixture("torch")
    assert assert_identical(as_numpy(tensors), arrays(expected)) == len(expected)
    resumed, batches = mixture("torch"), iter(tensors)
    next(batches)
    resumed.load_state_dict(tensors.state_dict())
    assert isinstance(resumed.take(3)["reward"], torch.Tensor)
    assert isinstance(loader_of(store, output="torch").take(3)["reward"], torch.Tensor)
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"Loader 0 .* TorchOutput.*, loader 1 NumpyOutput"
    ):
        el.mix([(loader_of(store, output="torch"), 1), (loader_of(store), 1)])


@pytest.mark.parametrize("how", [{"follow": el.Follow()}, {"weights": el.Prioritized()}])
def test_what_depends_on_the_moment_is_not_made_ahead(store: el.EpisodeStore, how: dict[str, Any]) -> None:
    """Neither in a thread nor in other processes; and what follows is held in memory."""
    pytest.importorskip("torch")
    with pytest.raises(el.errors.InvalidArgumentError, match="makes batches ahead"):
        store.loader(el.Batches(prefetch=2), **how)
    loader = store.loader(**how)
    for make in (loader.torch_loader, loader.iterable_dataset, loader.map_dataset):
        with pytest.raises(el.errors.InvalidArgumentError, match="makes batches ahead"):
            make()
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"holds its window in memory|a stream holds a part"
    ):
        store.loader(cache="stream", **how)
    with pytest.raises(el.errors.InvalidArgumentError, match="follows a store holds"):
        store.loader(follow=el.Follow(), cache="mmap")

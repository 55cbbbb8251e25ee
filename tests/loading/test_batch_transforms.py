"""Transforms of batches: normalize, one-hot, cast, clip, select, rename; alone and together."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import episodelake as el
from effort import looped
from episodelake.testing.adapters import case
from loader_batches import NESTED, random_store
from waiting import PATIENCE

DISCRETE = gym.spaces.Discrete(4, start=2)


def batch_of(rng: np.random.Generator) -> dict[str, Any]:
    """A batch of six transitions with nested observations."""
    observations = [
        {
            "image": rng.integers(0, 256, (6, 4, 3), np.uint8),
            "pair": (rng.integers(5, size=6), rng.normal(size=(6, 3)).astype(np.float32)),
        }
        for _ in range(2)
    ]
    return {
        "observation": observations[0],
        "next_observation": observations[1],
        "action": rng.integers(7, size=6),
        "reward": rng.normal(size=6) * 3,
        "policy.value": rng.normal(size=6),
    }


@pytest.fixture
def batch() -> dict[str, Any]:
    """A batch."""
    return batch_of(np.random.default_rng(0))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Three episodes with nested observations."""
    path = tmp_path_factory.mktemp("batches") / "store"
    return random_store(path, [5, 3, 8], ["terminated", "cut", "truncated"], NESTED, 3)


def test_cast(batch: dict[str, Any]) -> None:
    """Other dtypes, next observations along with observations; what was given stays as it was."""
    before = pickle.dumps(batch)
    found = el.Cast(["observation.image", "reward"], "float32")(batch)
    assert pickle.dumps(batch) == before
    for key in ("observation", "next_observation"):
        assert found[key]["image"].dtype == np.float32 and found[key]["pair"][1] is batch[key]["pair"][1]
        np.testing.assert_array_equal(found[key]["image"], batch[key]["image"].astype(np.float32))
    assert found["reward"].dtype == np.float32 and found["policy.value"].dtype == np.float64
    everything = el.Cast("observation", np.float64)(batch)
    assert everything["next_observation"]["pair"][0].dtype == np.float64


@given(
    arrays.arrays(np.float64, st.integers(0, 9), elements=st.floats(width=64)),
    st.floats(-9, 9),
    st.floats(0, 9),
)
def test_clip_of_floats(values: np.ndarray, low: float, width: float) -> None:
    """As Python's min and max do it, number by number; NaN stays."""
    found = el.Clip("reward", low, low + width)({"reward": values})["reward"]
    expected = [value if np.isnan(value) else min(max(value, low), low + width) for value in values.tolist()]
    np.testing.assert_array_equal(found, expected)


@given(
    arrays.arrays(st.sampled_from([np.uint8, np.int8, np.int64]), st.integers(0, 9)),
    st.one_of(st.none(), st.integers(-400, 10), st.floats(-300, 10)),
    st.one_of(st.none(), st.integers(11, 400), st.floats(11, 300)),
)
def test_clip_of_whole_numbers(values: np.ndarray, low: float | None, high: float | None) -> None:
    """The dtype stays, also where a bound lies outside of it or between two numbers."""
    if low is None and high is None:
        with pytest.raises(el.errors.InvalidArgumentError):
            el.Clip("action", low, high)
        return
    found = el.Clip("action", low, high)({"action": values})["action"]
    assert found.dtype == values.dtype
    info = np.iinfo(values.dtype)
    inside = [
        number
        for number in range(max(info.min, -600), min(info.max, 600) + 1)
        if (low is None or number >= low) and (high is None or number <= high)
    ]
    for value, clipped in zip(values.tolist(), found.tolist(), strict=True):
        if low is not None and value < low:
            assert clipped == inside[0]
        elif high is not None and value > high:
            assert clipped == inside[-1]
        else:
            assert clipped == value


def test_one_hot(batch: dict[str, Any]) -> None:
    """One where the number stands, of the space's start on."""
    found = el.OneHot(["action", "observation.pair.0"], 7)(batch)
    for values, vectors in (
        (batch["action"], found["action"]),
        (batch["next_observation"]["pair"][0], found["next_observation"]["pair"][0]),
    ):
        assert vectors.shape == (6, 7) and vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, np.eye(7)[values])
    shifted = el.OneHot("action", 3, start=-1, dtype=bool)({"action": np.array([[-1, 1]])})["action"]
    assert shifted.tolist() == [[[True, False, False], [False, False, True]]]
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"'action' has the value 6; OneHot expects 0 to 5"
    ):
        el.OneHot("action", 6)({"action": np.array([1, 6])})
    with pytest.raises(el.errors.InvalidArgumentError, match="'reward' is float64"):
        el.OneHot("reward", 6)(batch)


def test_one_hot_of_padding(tmp_path: Path) -> None:
    """Padded steps are all zeros, with spaces that do not begin at 0 too."""
    store = el.create(tmp_path / "store", observation_space=DISCRETE, action_space=DISCRETE)
    with store.writer(run="starts") as writer:
        for length in (2, 5):
            writer.write_episode(
                observations=np.arange(length + 1) % 4 + 2,
                actions=np.arange(length) % 4 + 2,
                rewards=np.ones(length),
                terminations=True,
                truncations=False,
            )
    one_hot = el.OneHot(["observation", "action"], 4, start=2)
    loader = store.refresh().loader(10, el.Windows(3, pad="left"), transforms=[one_hot])
    for batch in loader:
        for key in ("observation", "action"):
            np.testing.assert_array_equal(batch[key].sum(axis=-1), batch["mask"])
    (batch,) = store.loader(2, el.Episodes(), transforms=[one_hot])
    assert batch["observation"].sum(axis=-1).tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    np.testing.assert_array_equal(batch["action"].sum(axis=-1), batch["mask"])


def test_select_and_rename(batch: dict[str, Any]) -> None:
    """Keys in the order asked for, parts of nested values under their dotted names, and other names."""
    found = el.SelectKeys(["reward", "observation.pair.1", "policy.value"])(batch)
    assert list(found) == ["reward", "observation.pair.1", "policy.value"]
    assert found["observation.pair.1"] is batch["observation"]["pair"][1]
    renamed = el.RenameKeys({"reward": "r", "policy.value": "reward"})(found)
    assert list(renamed) == ["r", "observation.pair.1", "reward"] and renamed["r"] is batch["reward"]
    for names, text in [
        ({"rewards": "r"}, "no 'rewards' to rename.*reward"),
        ({"action": "reward"}, "another key"),
    ]:
        with pytest.raises(el.errors.InvalidArgumentError, match=text):
            el.RenameKeys(names)(batch)
    with pytest.raises(el.errors.InvalidArgumentError, match="same name"):
        el.RenameKeys({"action": "x", "reward": "x"})


@pytest.mark.parametrize(
    "transform",
    [
        el.Cast("observation.imgae", "float32"),
        el.Clip("observation.imgae", 0, 1),
        el.OneHot("observation.imgae", 3),
        el.SelectKeys("observation.imgae"),
        el.Normalize({"observation.imgae": (0, 1)}),
    ],
)
def test_an_unknown_key_names_those_that_are(transform: Any, batch: dict[str, Any]) -> None:
    """Parts of nested values included."""
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"no 'observation.imgae'.*observation.pair.1.*reward"
    ):
        transform(batch)


def test_normalize_by_given_numbers(batch: dict[str, Any]) -> None:
    """Frames become float32, float64 stays float64, and `inverse` leads back."""
    transform = el.Normalize({"observation.image": (0, 255), "reward": (1.5, 2), "action": (3, 0)})
    found = transform(batch)
    for key in ("observation", "next_observation"):
        assert found[key]["image"].dtype == np.float32
        np.testing.assert_allclose(found[key]["image"], batch[key]["image"] / 255.0, rtol=1e-6)
    assert found["reward"].dtype == np.float64
    np.testing.assert_allclose(found["reward"], (batch["reward"] - 1.5) / 2, rtol=1e-15)
    np.testing.assert_array_equal(found["action"], batch["action"] - 3)
    back = transform.inverse()(found)
    np.testing.assert_allclose(back["reward"], batch["reward"], rtol=1e-14)
    np.testing.assert_allclose(back["observation"]["image"], batch["observation"]["image"], atol=1e-4)
    assert transform.inverse().inverse()(batch)["reward"].tolist() == found["reward"].tolist()
    big = np.array([2**53 - 1, 2**53 - 3])
    assert el.Normalize({"action": (2**53 - 3, 1)})({"action": big})["action"].tolist() == [2.0, 0.0]


def test_normalize_by_statistics(store: el.EpisodeStore) -> None:
    """What a loader then gives has the mean 0 and the deviation 1, or lies between -1 and 1."""
    stats = store.stats(["observation", "reward"])
    keys = ["observation.pair.1", "reward"]
    for method in ("standard", "range"):
        transform = el.Normalize.from_stats(stats, keys, method)
        (batch,) = store.loader(100, el.Episodes(), transforms=[transform])
        rewards = batch["reward"][batch["mask"]]
        real = np.concatenate([np.ones((3, 1), bool), batch["mask"]], axis=1)
        pairs = batch["observation"]["pair"][1][real]
        assert batch["observation"]["image"].dtype == np.uint8
        if method == "standard":
            np.testing.assert_allclose([rewards.mean(), *pairs.mean(axis=0)], 0, atol=1e-6)
            np.testing.assert_allclose([rewards.std(), *pairs.std(axis=0)], 1, rtol=1e-6)
        else:
            np.testing.assert_allclose([rewards.min(), *pairs.min(axis=0)], -1, rtol=1e-6)
            np.testing.assert_allclose([rewards.max(), *pairs.max(axis=0)], 1, rtol=1e-6)
    outer = el.Normalize.from_stats(stats, "reward", "quantiles", (0.05, 0.95))
    rewards = np.concatenate([episode.rewards for episode in store])
    low, high = np.quantile(rewards, [0.05, 0.95])
    np.testing.assert_allclose(outer({"reward": np.array([low, high])})["reward"], [-1, 1], rtol=1e-12)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"0.3 of 'reward' was not measured"):
        el.Normalize.from_stats(stats, "reward", "quantiles", (0.3, 0.9))
    with pytest.raises(el.errors.InvalidArgumentError, match=r"No statistics of 'action'.*reward"):
        el.Normalize.from_stats(stats, "action")


def test_what_makes_no_sense_is_refused() -> None:
    """With an error of ours."""
    cases: list[Any] = [
        lambda: el.Cast("reward", "no dtype"),
        lambda: el.Cast([], "float32"),
        lambda: el.Cast("reward", "datetime64[s]"),
        lambda: el.Cast("reward", None),
        lambda: el.OneHot("action", 3, dtype="no dtype"),
        lambda: el.OneHot("action", 3, start=0.5),  # pyright: ignore[reportArgumentType]
        lambda: el.Clip("reward", np.zeros(3), 1),  # pyright: ignore[reportArgumentType]
        lambda: el.Clip("reward", 2, 1),
        lambda: el.Clip("reward", float("nan"), 1),
        lambda: el.OneHot("action", 0),
        lambda: el.SelectKeys([3]),  # pyright: ignore[reportArgumentType]
        lambda: el.Normalize({}),
        lambda: el.Normalize({"reward": 3}),  # pyright: ignore[reportArgumentType]
        lambda: el.Normalize({"reward": (0, -1)}),
        lambda: el.Normalize({"reward": (float("nan"), 1)}),
        lambda: el.Clip("action", 0.2, 0.8)({"action": np.arange(3)}),
        lambda: el.Normalize({"observation": (0, 1)})(batch_of(np.random.default_rng(0))),
        lambda: el.Normalize({"reward": (np.zeros(4), 1)})(batch_of(np.random.default_rng(0))),
        lambda: el.Normalize({"reward": (0, np.ones(6))})(batch_of(np.random.default_rng(0))),
        lambda: el.Normalize({"observation.image": (0, np.ones(4))})(batch_of(np.random.default_rng(0))),
    ]
    for make in cases:
        with case(make), pytest.raises(el.errors.InvalidArgumentError):
            make()


@pytest.mark.further
def test_they_go_together_and_into_a_new_process(store: el.EpisodeStore, tmp_path: Path) -> None:
    """In the order of the list, in a fresh interpreter as here; each says what it does."""
    transforms = [
        el.ReturnToGo(),
        el.FrameStack(2, "observation.image"),
        el.Normalize({"observation.image": (0, 255), "return_to_go": (0, np.array(10.0))}),
        el.Clip("return_to_go", -1, 1),
        el.OneHot("action", 7),
        el.Cast(["return_to_go", "reward"], np.float32),
        el.SelectKeys(["observation.image", "action", "return_to_go"]),
        el.RenameKeys({"observation.image": "pixels"}),
    ]
    (batch,) = store.loader(100, transforms=transforms)
    assert [(key, batch[key].shape, batch[key].dtype.name) for key in batch] == [
        ("pixels", (16, 2, 4, 3), "float32"),
        ("action", (16, 7), "float32"),
        ("return_to_go", (16,), "float32"),
    ]
    assert repr(transforms[2:]) == (
        "[Normalize({'observation.image': (0.0, 255.0), 'return_to_go': (0.0, 10.0)}), "
        "Clip(keys=('return_to_go',), low=-1, high=1), "
        "OneHot(keys=('action',), n=7, start=0, dtype='float32'), "
        "Cast(keys=('return_to_go', 'reward'), dtype='float32'), "
        "SelectKeys(keys=('observation.image', 'action', 'return_to_go')), "
        "RenameKeys(names={'observation.image': 'pixels'})]"
    )
    (tmp_path / "given").write_bytes(pickle.dumps((str(store.path), transforms)))
    code = (
        "import pickle, episodelake as el\n"
        "path, transforms = pickle.load(open('given', 'rb'))\n"
        "(batch,) = el.open(path).loader(100, transforms=transforms)\n"
        "pickle.dump(batch, open('found', 'wb'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=PATIENCE)
    found = pickle.loads((tmp_path / "found").read_bytes())
    for key in batch:
        np.testing.assert_array_equal(found[key], batch[key])


@looped("scalar", [np.float64, np.float32, np.int64, np.uint8])
@looped("dtype", ["float32", "float64", "float16", "int32", "uint8", "bool"])
def test_numpy_scalars_change_no_dtype(scalar: Any, dtype: str) -> None:
    """A bound, offset, scale, number or start of numpy's gives what Python's own gives, with its dtype."""
    batch = {"x": np.array([0, 1, 1, 0]).astype(dtype)}
    made: list[Any] = [
        lambda one: el.Clip("x", one, None),
        lambda one: el.Clip("x", None, one),
        lambda one: el.Normalize({"x": (one, one)}),
    ]
    if np.dtype(dtype).kind in "iu" and np.dtype(scalar).kind in "iu":
        made.append(lambda one: el.OneHot("x", 2, start=one - one))
    for make in made:
        plain, found = make(1)(batch)["x"], make(scalar(1))(batch)["x"]
        assert found.dtype == plain.dtype and np.array_equal(found, plain)
        assert found.dtype == dtype or not isinstance(make(1), el.Clip)

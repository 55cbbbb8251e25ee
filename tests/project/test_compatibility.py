"""The oldest supported releases of the dependencies, and what stands in for what they lack."""

import re
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

import episodelake as el
from checkout import REPOSITORY
from episodelake.store.common import compatibility


def test_constraints_are_the_bounds() -> None:
    """`make test-lowest` installs exactly the lower bounds of pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = [re.fullmatch(r"([a-z0-9-]+)>=([\d.]+)", each) for each in project["dependencies"]]
    pinned = (REPOSITORY / "tests" / "lowest.txt").read_text("utf-8").splitlines()
    assert pinned == [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]
    assert all(bounds)


class _OtherEnvs(VectorEnv):
    """A vector environment of another package, as it is under Gymnasium 1.0."""

    def __init__(self) -> None:
        self.num_envs, self.metadata, self.count = 2, {}, 0
        self.single_observation_space = self.single_action_space = spaces.Discrete(2)
        self.observation_space = self.action_space = spaces.MultiDiscrete([2, 2])

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin all episodes."""
        return np.zeros(2, np.int64), {}

    def step(self, actions: Any) -> tuple[np.ndarray, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take two transitions; the third call resets."""
        self.count = (self.count + 1) % 3
        ended = np.full(2, self.count == 2)
        return np.full(2, int(self.count > 0)), np.ones(2), ended, np.zeros(2, bool), {}  # pyright: ignore[reportReturnType]


def test_other_environments_of_gymnasium_1_0_reset_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any vector environment without an autoreset mode is NextStep there."""
    monkeypatch.setattr(compatibility, "_NAMES_MODES", False)
    envs = _OtherEnvs()
    store = el.create(tmp_path, envs)
    with store.record(envs) as recorded:
        recorded.reset()
        for _ in range(6):
            recorded.step(np.zeros(2, np.int64))
    whole = [each for each in store.refresh() if each.terminated]
    assert [each.observations.tolist() for each in whole] == [[0, 1, 1]] * 4


def _without_mode(envs: SyncVectorEnv) -> SyncVectorEnv:
    """The environments as Gymnasium 1.0 makes them."""
    envs.metadata = {key: value for key, value in envs.metadata.items() if key != "autoreset_mode"}
    return envs


def test_sub_environments_of_gymnasium_1_0_reset_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `SyncVectorEnv` that does not name its autoreset mode is recorded, also below a wrapper."""
    monkeypatch.setattr(compatibility, "_NAMES_MODES", False)
    envs = _without_mode(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2))
    store = el.create(tmp_path, envs)
    with store.record(VectorWrapper(envs)) as recorded:
        recorded.reset(seed=3)
        for _ in range(60):
            recorded.step(np.array([0, 1]))
    store.refresh()
    env, ended = gymnasium.make("CartPole-v1"), [each for each in store if each.terminated]
    first = ended[0]
    observations: list[Any] = [env.reset(seed=3)[0]]
    observations += [env.step(action)[0] for action in first.actions]
    np.testing.assert_array_equal(first.observations, np.stack(observations))
    assert len(ended) > 5
    assert not any(np.array_equal(each.observations[0], each.observations[1]) for each in ended)


def test_a_discrete_space_without_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Gymnasium has int64 only, other types are refused with the release that has them."""

    class Old(spaces.Discrete):
        """As Gymnasium 1.0 has it."""

        def __init__(self, n: int, seed: int | None = None, start: int = 0) -> None:
            super().__init__(n, seed, start)

    monkeypatch.setattr(compatibility, "Discrete", Old)
    assert compatibility.discrete_space(3, -1, np.dtype("int64")) == Old(3, start=-1)
    with pytest.raises(el.errors.UnsupportedSpaceError, match=r"one of uint8. Install gymnasium>=1.2.2"):
        compatibility.discrete_space(3, 0, np.dtype("uint8"))

"""`record_infos`: which infos every recorder stores, against those of a full recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

import episodelake as el
from nasty_environments import SmallEnv
from scripted_environment import Scripted, assert_same_value, by_place

pytestmark = pytest.mark.filterwarnings("ignore:record_infos")
SCRIPTED: Any = Scripted.observation_space, Scripted.action_space


class Untouchable:
    """An info that must not be looked at."""

    def __repr__(self) -> str:
        """Tell that somebody does."""
        raise AssertionError("An info that was not chosen was copied.")

    __str__ = __reduce_ex__ = __deepcopy__ = __repr__  # type: ignore[assignment]


class Telling(SmallEnv):
    """Tells an info that must not be looked at beside another."""

    def tell(self) -> dict[str, Any]:
        """Tell both."""
        return {"big": Untouchable(), "cost": self.t}


def chosen(info: dict[Any, Any], choice: Any) -> dict[Any, Any]:
    """Return the entries that a choice leaves."""
    if choice is True:
        return info
    return {key: value for key, value in info.items() if choice and key in choice}


def pair(folder: Path, *source: Any) -> list[el.EpisodeStore]:
    """Create two stores of the same spaces."""
    arguments = (
        {} if len(source) == 1 else dict(zip(("observation_space", "action_space"), source, strict=True))
    )
    env = source[:1] if len(source) == 1 else ()
    return [el.create(folder / name, *env, **arguments) for name in ("some", "all")]


def make_scripted() -> gym.Env:
    """An environment of a worker."""
    return Scripted()


def by_place_of(observation: Any, info: Any, state: Any) -> Any:
    """A policy of a worker: what to do follows from what is seen."""
    return int(by_place(observation))


@pytest.mark.further
@pytest.mark.parametrize("workers", [None, 2])
def test_collect_stores_the_chosen_infos(tmp_path: Path, workers: int | None) -> None:
    """`collect` hands the choice on, also to its workers."""
    some, everything = pair(tmp_path, *SCRIPTED)
    for store, keys in ((some, ["speed"]), (everything, True)):
        el.collect(
            make_scripted,
            by_place_of,
            store,
            episodes=6,
            seed=2,
            workers=workers,
            quotas=True,
            record_infos=keys,
        )
    infos = [{tuple(each.rewards): each.infos for each in store.refresh()} for store in (some, everything)]
    assert len(infos[0]) == 6 and infos[0].keys() == infos[1].keys()
    for rewards, told in infos[0].items():
        for mine, true in zip(told, infos[1][rewards], strict=True):
            assert_same_value(mine, chosen(true, ["speed"]))


@pytest.mark.parametrize("vector", [False, True])
def test_other_infos_are_never_copied(tmp_path: Path, vector: bool) -> None:
    """An info that cannot even be shown does no harm where it is not chosen, and a callback still sees it."""
    seen: list[Any] = []
    env: Any = SyncVectorEnv([Telling, Telling]) if vector else Telling()
    store = el.create(tmp_path / "store", Telling())
    for callback in (None, lambda step: seen.append(type(step.info["big"]))):
        with store.record(env, record_infos=["cost"], step_callback=callback) as recorder:
            recorder.reset(seed=1)
            for _ in range(3):
                recorder.step(recorder.action_space.sample())
    for episode in store.refresh():
        assert [list(info) for info in episode.infos] == [["cost"]] * (episode.length + 1)
    assert set(seen) == {Untouchable}

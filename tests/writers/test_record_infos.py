"""`record_infos`: which infos every recorder stores, against those of a full recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv

import episodelake as el
from nasty_environments import SmallEnv

pytestmark = pytest.mark.filterwarnings("ignore:record_infos")


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

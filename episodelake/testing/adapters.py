"""How the rules drive a recorder or a writer: an adapter opens it, a driver plays environments through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from .. import EpisodeStore, create
from .environments import PlayedEpisode, ScriptedEnv
from .infos import ODD_INFOS


class Driver(ABC):
    """An open recorder or writer, and the environments that are played through it.

    It hands over what the environments give and keeps no reference to actions: the environments may overwrite
    both.

    Attributes:
        recorder: the object under test.
    """

    recorder: Any

    @abstractmethod
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode of every environment; a running one ends as `cut`."""

    @abstractmethod
    def step(self) -> None:
        """Take the next step of the script (`ScriptedEnv.action`) where an episode runs, and begin the next
        episode, by whatever way, where one has ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the recorder; a running episode ends as `cut`."""

    def log(self, values: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Log policy values for the current observation of each environment; return for which it could."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RecorderAdapter(ABC):
    """One way into a store, as the rules use it.

    Attributes:
        name: for messages.
        lanes: how many environments it records at a time.
        faithful: whether the recorder gets the environment's own values; a vector environment of Gymnasium
            copies them into arrays of the space's dtype first.
        reuses: whether environments may overwrite what they gave with the next call.
        wraps: whether the recorder steps the environment itself.
        casts: whether `open` hands the option `cast` to what gets the values.
        infos: infos that come to the recorder as the environment gave them.
    """

    name: str = "recorder"
    lanes: int = 1
    faithful: bool = True
    reuses: bool = True
    wraps: bool = True
    casts: bool = True
    infos: Sequence[Mapping[Any, Any]] = ODD_INFOS

    @abstractmethod
    def open(self, store: EpisodeStore, envs: Sequence[ScriptedEnv], **options: Any) -> Driver:
        """Return a driver for `lanes` environments; options are those of `EpisodeStore.record`."""

    def create(self, path: Any, env: ScriptedEnv, **options: Any) -> EpisodeStore:
        """Create a store for environments like this one."""
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        return create(path, **spaces, **options)

    def episodes(self, store: EpisodeStore, lane: int) -> list[Any]:
        """Return the episodes of an environment in the order in which they began."""
        episodes = [each for each in store if (each.env_index or 0) == lane]
        return sorted(episodes, key=lambda each: (each.run_id, each.number))

    def lane_infos(self, lane: int) -> Sequence[Mapping[Any, Any]]:
        """Return the infos that an environment gives in turn."""
        return [*self.infos[3 * lane :], *self.infos[: 3 * lane]]

    def carries(self, info: Mapping[Any, Any]) -> bool:
        """Return whether an info comes to the recorder as the environment gave it."""
        return True

    def kept_infos(self, rollout: PlayedEpisode, lane: int) -> list[Mapping[Any, Any]]:
        """Return the infos that a recorder of this kind must keep of an episode."""
        return rollout.infos


def play(driver: Driver, envs: Sequence[ScriptedEnv], episodes: int, seed: int | None = None) -> None:
    """Play until each environment has ended so many episodes."""
    driver.reset(seed)
    while any(env.ended() < episodes for env in envs):
        driver.step()


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case of a loop in the message of whatever fails in it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name}")
        raise

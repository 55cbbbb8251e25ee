"""The protocol between a source format and the importer: a dataset, and its parts in order.

A format's module has one object with `name`, `extra`, `rule`, `detect` and `open`; see `SourceFormat`.
"""

from __future__ import annotations

import datetime
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import gymnasium
import numpy as np

from ...store.errors import DatasetError, EpisodelakeError, InvalidArgumentError
from ...store.losses import Losses
from ...store.suggestions import suggest

#: For sources with T observations only: leave the last transition out, repeat the last observation, or state
#: that it is missing.
LastObservation = Literal["drop", "repeat", "missing"]
#: What the action of the last step of an RLDS episode means.
LastStep = Literal["auto", "observation", "transition"]
#: The loss of sources without rewards.
NO_REWARDS = "rewards, which the source does not have: NaN"


@dataclass(frozen=True)
class ImportOptions:
    """What the caller of `import_dataset` chose.

    Attributes:
        mapping: columns of ours to columns of the source, for formats without fixed names.
        observation_space, action_space: in place of those that the source states or its values suggest.
        last_observation: for sources with T observations.
        last_step: for RLDS.
        trust: read columns that need pickle or other code.

    Raises:
        InvalidArgumentError: `last_observation` or `last_step` is unknown.
    """

    mapping: Any = None
    observation_space: gymnasium.Space | None = None
    action_space: gymnasium.Space | None = None
    last_observation: LastObservation = "drop"
    last_step: LastStep = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        for name, known in (("last_observation", LastObservation), ("last_step", LastStep)):
            value, expected = getattr(self, name), get_args(known)
            if value not in expected:
                raise InvalidArgumentError(
                    f"{name}={value!r} is unknown.{suggest(str(value), list(expected))} Expected one of "
                    f"{', '.join(map(repr, expected))}."
                )


@dataclass(frozen=True)
class Match:
    """Whether a source has a format.

    Attributes:
        reason: what was found, or what the source lacks.
        lacks: how many of the format's marks are missing; 0 where the source has the format.
        related: whether the container is that of the format, so that `reason` may help.
    """

    reason: str
    lacks: int = 0
    related: bool = True


@dataclass(frozen=True)
class ForeignEpisode:
    """One episode of T transitions, as `EpisodeWriter.write_episode` takes it.

    Attributes:
        last_observation: "missing" if there are T observations only.
    """

    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any
    infos: Any = None
    policy: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None
    seed: int | None = None
    options: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    last_observation: Literal["present", "missing"] = "present"


@dataclass(frozen=True)
class ForeignTable:
    """Many episodes as Arrow data, as `EpisodeWriter.write_episodes` takes them.

    Attributes:
        steps: T+1 rows for each episode, with a column `episode`. The last observation is NULL where it is
            missing.
        episodes: one row for each episode in the same order, or None. The column `last_observation` is
            "missing" for episodes whose last observation is. Its `source_key` is set by the importer
            to the key of the part.
    """

    steps: Any
    episodes: Any = None


@dataclass(frozen=True)
class Part:
    """One or more episodes of a source that can be read by themselves.

    Attributes:
        keys: the name of each episode within the dataset; never the same twice.
        load: reads them; raises `DatasetError` where they are damaged.
        singles: yields a part for each of them, so that one that is damaged can be left out.
    """

    keys: tuple[str, ...]
    load: Callable[[], ForeignEpisode | ForeignTable]
    singles: Callable[[], Iterator[Part]] | None = None


def fingerprint(*parts: Any) -> str:
    """Return a digest of what the first episode of a dataset holds, which tells datasets apart.

    It must not change when the dataset is copied, renamed, or grows at its end.

    Args:
        parts: arrays, bytes, texts, numbers, and mappings and sequences of these; of others only the class
            counts.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            digest.update(b"%d:%b" % (len(piece), piece))
    return digest.hexdigest()[:16]


def _pieces(part: Any) -> Iterator[bytes]:
    if isinstance(part, np.ndarray) and part.dtype != object:
        yield f"{part.dtype}{part.shape}".encode()
        yield part.tobytes()
    elif isinstance(part, Mapping):
        yield b"{"
        for key, value in part.items():
            yield from _pieces(str(key))
            yield from _pieces(value)
        yield b"}"
    elif isinstance(part, list | tuple | np.ndarray):
        yield b"["
        for value in part:
            yield from _pieces(value)
        yield b"]"
    elif isinstance(part, bytes):
        yield part
    else:
        plain = isinstance(part, str | int | float | np.generic | datetime.date | None)
        yield (repr(part) if plain else type(part).__qualname__).encode()


@contextmanager
def guard_source(place: str) -> Iterator[None]:
    """Turn whatever a library raises at damaged data into a `DatasetError`.

    Args:
        place: the dataset or the episode, for the message.

    Raises:
        DatasetError: the block failed with an error that is none of ours.
    """
    try:
        yield
    except (EpisodelakeError, MemoryError):
        raise
    except Exception as error:
        told = str(error)[:500].rstrip(".")
        raise DatasetError(
            f"{place} cannot be read: {type(error).__name__}: {told}. The source is damaged, or its "
            "form is not supported."
        ) from error


class ForeignDataset(ABC):
    """An open source.

    Attributes:
        identity: names the dataset in the source keys of its episodes, the same at every import: the
            format, a name that the data themselves state, if they do, and a `fingerprint`.
        settings: whatever else decides what its episodes hold, as plain JSON: an import that was interrupted
            goes on only with the same settings.
        observation_space, action_space: of every episode.
        reward_shape: () for scalar rewards.
        card: the card of a new store.
        mapping: for the report, columns of ours and where they come from.
        losses: what does not come over; formats add to it while they read.
        source: the source in messages; set by the importer.
        count: how many episodes there are; None if that is not known before reading.
    """

    identity: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_shape: tuple[int, ...] = ()
    source: str = "The source"
    count: int | None = None
    settings: Any = None

    def __init__(self) -> None:
        self.card: dict[str, Any] = {}
        self.mapping: dict[str, str] = {}
        self.losses = Losses()

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """Yield the parts in the order of the source.

        Raises:
            DatasetError: the source is damaged, so that nothing behind this place can be read.
        """

    def guarded_parts(self) -> Iterator[Part]:
        """Yield the parts, with errors as those of `parts`, whatever a library raises."""
        parts = self.parts()
        while True:
            with guard_source(self.source):
                part = next(parts, None)
            if part is None:
                return
            yield part

    def close(self) -> None:  # noqa: B027 (most formats hold nothing open)
        """Close files; called once."""


class SourceFormat(Protocol):
    """A format that can be imported.

    Attributes:
        name: as `format=` takes it.
        extra: what to install, as `pip install` takes it; None if nothing more is needed.
        rule: how the format is recognised, in a sentence.
    """

    name: str
    extra: str | None
    rule: str

    def detect(self, source: Any) -> Match:
        """Compare a source with the format; quick, and without an error for whatever it is."""
        ...

    def open(self, source: Any, options: ImportOptions) -> ForeignDataset:
        """Open a source.

        Raises:
            DatasetError: it has not this format, or is damaged.
            MissingPackageError: a package is not installed.
        """
        ...

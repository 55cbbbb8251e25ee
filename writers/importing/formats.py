"""The protocol between a source format and the importer, and the format that a source has.

A format's module has one object with `name`, `extra`, `rule`, `detect` and `open`, a `Format`. A dataset
yields its parts in order.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import gymnasium
import pyarrow as pa

from ...store.common.arguments import suggest
from ...store.common.exchange import Losses, entries, find_format, formats
from ...store.errors import (
    DatasetError,
    EpisodelakeError,
    InvalidArgumentError,
    StoreAccessError,
    StoreUnavailableError,
)
from ...store.files import exists, is_file, is_folder, names_in
from ...store.frames import Video
from ...store.names import ACTION, OBSERVATION
from .boundary import Files, check_access, check_not_empty, reading
from .columns import numbered, numbered_columns

#: For sources with T observations only: leave the last transition out with its reward, repeat the last
#: observation, or state that it is missing.
LastObservation = Literal["drop", "repeat", "missing"]
#: What the action of the last step of an RLDS episode means.
LastStep = Literal["auto", "observation", "transition"]
#: Options of an import that only some formats take.
SPACES = ("observation_space", "action_space")
OPTIONAL = ("mapping", "last_step", *SPACES)
#: The loss of sources without rewards.
NO_REWARDS = "rewards, which the source does not have: NaN"


@dataclass(frozen=True)
class ImportOptions:
    """Choices of the caller of `import_dataset`.

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
    last_observation: LastObservation = "missing"
    last_step: LastStep = "auto"
    trust: bool = False

    def check_taken(self, source_format: SourceFormat, source: Any) -> None:
        """Refuse what the caller has given and the format has no use for.

        Args:
            source: the source; of the formats that take the option, those that read it are named.

        Raises:
            InvalidArgumentError: names the option, and those that the format takes.
        """
        taken = _options_of(source_format)
        default = ImportOptions()
        for name in OPTIONAL:
            if name not in taken and getattr(self, name) != getattr(default, name):
                takers = [each for each, format in source_formats().items() if takes(format, name)]
                takers = [each for each in takers if _reads(source_formats()[each], source)] or takers
                raise InvalidArgumentError(
                    f"{name} is no option of an import of the format {source_format.name!r}, which takes "
                    f"{', '.join(taken) or 'none of ' + ', '.join(OPTIONAL)}. Leave it out, or choose "
                    f"a format that takes it with format= (--format): {', '.join(takers)}."
                )

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
        mappable: whether `mapping=` can name what is missing, so that a source with a mapping has the format
            where it has no other.
    """

    reason: str
    lacks: int = 0
    related: bool = True
    mappable: bool = False

    @staticmethod
    def of_names(names: Collection[str], *needed: str) -> Match:
        """Return the match of a source with some arrays or columns, by those that the format needs."""
        lacking = [name for name in needed if name not in names]
        reason = f"it has no {', '.join(lacking)}" if lacking else f"it has {', '.join(needed)}"
        return Match(reason, len(lacking))

    def check(self, problem: str) -> None:
        """Refuse a source that has not the format.

        Raises:
            DatasetError: names the problem, and what the source lacks.
        """
        if self.lacks:
            raise DatasetError(f"{problem}: {self.reason}.")


def look_into_json(file: Path, key: str) -> Match:
    """Return whether a file is a JSON object with a key."""
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return Match(f"{file} is not JSON", 1)
    if not isinstance(content, dict) or key not in content:
        return Match(f"{file} has no {key}", 1)
    return Match(f"{file.name} has {key} {content[key]!r}")


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
    extra: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None
    seed: int | None = None
    options: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    last_observation: Literal["present", "missing"] = "present"


@dataclass(frozen=True)
class ForeignTable:
    """Many episodes as tables, or data frames that export Arrow, with the columns of `write_episodes`.

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
        load: reads them; raises `DatasetError` where they are damaged. None: no transition is left of the
            episode, which the losses count.
        singles: yields a part for each of them, so that one that is damaged can be left out.
        source_keys: the source keys that the source itself gives its episodes; None where an episode has
            none, and the importer makes one of the dataset's identity and its key.
    """

    keys: tuple[str, ...]
    load: Callable[[], ForeignEpisode | ForeignTable | None]
    singles: Callable[[], Iterator[Part]] | None = None
    source_keys: tuple[str | None, ...] | None = None

    @property
    def name(self) -> str:
        """The episodes as the subject of a sentence."""
        first, *others = self.keys
        return f"Episodes {first} to {others[-1]}" if others else f"Episode {first}"


@contextmanager
def guard_limits(place: str) -> Iterator[None]:
    """Turn errors of values that are too deep or too large for Python into a `DatasetError`.

    Args:
        place: the dataset or the episode, for the message.

    Raises:
        DatasetError: the block failed with such an error.
    """
    try:
        yield
    except (RecursionError, MemoryError, OverflowError) as error:
        raise DatasetError(
            f"{place} cannot be written: {type(error).__name__}: {error!s:.200}. A value is nested too deep "
            "or too large."
        ) from error


class ForeignDataset(ABC):
    """An open source.

    Attributes:
        identity: names the dataset in the source keys of its episodes, the same at every import; None, and
            the importer sets it from the format and the source.
        observation_space, action_space: of every episode.
        reward_shape: () for scalar rewards.
        rollouts: of a dataset of rollouts of language agents, what its store declares as `Rollouts`; the
            importer sets it to that of a store that is there.
        encodings: how a new store encodes frames, by column; of a store that is there, its own.
        card: the card of a new store.
        mapping: for the report, columns of ours and where they come from.
        losses: what does not come over; formats add to it while they read.
        source: the source in messages; set by the importer.
        count: how many episodes there are; None if that is not known before reading.
    """

    identity: str | None = None
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_shape: tuple[int, ...] = ()
    rollouts: Mapping[str, Any] | None = None
    source: str = "The source"
    count: int | None = None

    def __init__(self) -> None:
        self.encodings: Mapping[str, Video] = {}
        self.card: dict[str, Any] = {}
        self.mapping: dict[str, str] = {}
        self.losses = Losses()

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """Yield the parts in the order of the source.

        Raises:
            DatasetError: the source is damaged, so that nothing after this place can be read.
        """

    def guarded_parts(self) -> Iterator[Part]:
        """Yield the parts, with errors as those of `parts`, whatever a library raises."""
        with reading(self.source):
            yield from self.parts()

    def load(self, part: Part) -> ForeignEpisode | ForeignTable | None:
        """Load a part; booleans of Discrete spaces are 0 and 1.

        Raises:
            DatasetError: it is damaged, whatever error a library raises.
        """
        with reading(f"{part.name} of {self.source}"):
            loaded = part.load()
            if isinstance(loaded, ForeignTable):
                steps = pa.table(loaded.steps)
                for space, root in ((self.observation_space, OBSERVATION), (self.action_space, ACTION)):
                    steps = numbered_columns(space, root, steps)
                return replace(loaded, steps=steps)
        if loaded is None:
            return None
        observations = numbered(self.observation_space, loaded.observations)
        actions = numbered(self.action_space, loaded.actions)
        if observations is loaded.observations and actions is loaded.actions:
            return loaded
        return replace(loaded, observations=observations, actions=actions)

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


@dataclass(frozen=True)
class Format:
    """A format that can be imported.

    Attributes:
        name: as `format=` takes it.
        extra: what to install for it, as `pip install` takes it; None if nothing more is needed.
        rule: a phrase about the sources that it reads, for `el.formats()`.
        detect: compares any source with the format; quick, and without an error.
        open: opens a source; raises a `DatasetError` where it is damaged.
        options: those of "mapping", "last_step", "observation_space" and "action_space" that an import takes;
            others are refused.
        general: whether it reads any content, so that another format that has a source comes first.
        named: returns the folder of a dataset that a tool has installed under a name, or None; without it,
            the format has no such names.
    """

    name: str
    extra: str | None
    rule: str
    detect: Callable[[Any], Match]
    open: Callable[[Any, ImportOptions], ForeignDataset]
    options: tuple[str, ...] = SPACES
    named: Callable[[str], Path | None] | None = None
    general: bool = False


def source_formats() -> Mapping[str, SourceFormat]:
    """Return the formats that are tried, by their own names: an entry point under another one is an alias."""
    return {name: each for name, each in formats("sources").items() if each.name == name}


def installed_dataset(name: str) -> Path | None:
    """Return the folder of a dataset that is known by its name to a format's tool; None if there is none."""
    for each in source_formats().values():
        named = getattr(each, "named", None)
        if named is not None and (path := named(name)) is not None:
            return path
    return None


def _options_of(source_format: SourceFormat) -> tuple[str, ...]:
    return getattr(source_format, "options", OPTIONAL)


def takes(source_format: SourceFormat, option: str) -> bool:
    """Return whether a format takes an option of `OPTIONAL`."""
    return option in _options_of(source_format)


def chosen_format(source: Any, name: str | None, *, mapped: bool = False) -> tuple[SourceFormat, str]:
    """Return the format of a source, and why.

    Args:
        name: as the caller says; None to detect it.
        mapped: whether there is a mapping, for formats that take one: it names what a source without a
            recognised format lacks.

    Raises:
        InvalidArgumentError: there is no format of this name.
        DatasetError: the source has no known format, or several.
    """
    if name is not None:
        named = find_format("sources", name)
        if named is None:
            known = [*entries("sources")]
            raise InvalidArgumentError(
                f"format={name!r} is unknown.{suggest(str(name), known)} Formats of import: "
                f"{', '.join(known)}."
            )
        return named, "as asked"
    if isinstance(source, str | PathLike) and "://" not in str(source) and not exists(Path(source)):
        raise DatasetError(
            f"{source} does not exist, and no installed dataset of Minari has this name. Check the path."
        )
    if isinstance(source, str | PathLike) and is_file(Path(source)):
        check_not_empty(Path(source))
    if isinstance(source, str | PathLike) and os.access(source, os.R_OK) and _is_empty_folder(source):
        raise DatasetError(f"{source} is an empty folder. Check the path.")
    if isinstance(source, list | tuple | dict) and not source:
        raise DatasetError(f"The source is an empty {type(source).__name__}. Pass files, arrays or rows.")
    sources = source_formats()
    compared: dict[str, Match] = {}
    errors: dict[str, EpisodelakeError] = {}
    # The files of a library's dataset may be tables or trees of arrays as well, which take long to look at.
    general = {name for name, each in sources.items() if getattr(each, "general", False)}
    matches: list[str] = []
    for name in sorted(sources, key=general.__contains__):
        if matches and name in general:
            break
        try:
            compared[name] = match = _detected(sources[name], source)
        except StoreUnavailableError:
            # Another format might match in its place.
            raise
        except (DatasetError, StoreAccessError) as error:
            errors[str(error)] = error
            continue
        if not match.lacks:
            matches.append(name)
    compared = {name: compared[name] for name in sources if name in compared}
    if mapped and not matches:
        matches = [
            name for name, match in compared.items() if match.mappable and takes(sources[name], "mapping")
        ]
    if len(matches) == 1:
        match = compared[matches[0]]
        return sources[matches[0]], "by the mapping" if match.lacks else match.reason
    if matches:
        raise DatasetError(
            f"{source!s:.200} fits several formats: {', '.join(matches)}. Choose one with format= (--format)."
        )
    if errors:
        raise next(iter(errors.values()))
    raise DatasetError(_unknown(source, compared))


def _detected(format: SourceFormat, source: Any) -> Match:
    try:
        return format.detect(source)
    except EpisodelakeError:
        raise
    except Exception as error:  # of whatever library, at whatever data
        check_access(source, error)
        return Match(f"it cannot be looked at: {type(error).__name__}: {error!s:.200}", 1)


def _reads(format: SourceFormat, source: Any) -> bool:
    """Return whether a format has a source, also by a mapping alone."""
    try:
        match = _detected(format, source)
    except EpisodelakeError:
        return False
    return match.mappable or not match.lacks


def _is_empty_folder(path: str | PathLike[str]) -> bool:
    return is_folder(path) and not names_in(Path(path))


def _unknown(source: Any, compared: Mapping[str, Match]) -> str:
    nearest = sorted(
        (name for name in compared if compared[name].related), key=lambda name: compared[name].lacks
    )[:3]
    reasons: dict[str, list[str]] = {}
    for name in nearest:
        reasons.setdefault(compared[name].reason, []).append(name)
    tried = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    shown = str(source) if isinstance(source, str | PathLike | Files) else type(source).__name__
    return (
        f"{shown} has no known format{f' ({tried})' if tried else ''}. Formats: {', '.join(compared)}. Name "
        "one with format= (--format), or describe columns of a table with mapping=el.ColumnMapping(...) "
        "(--map)."
    )

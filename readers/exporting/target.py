"""Protocol between the export of a view and a target format, and shared helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pyarrow as pa

from ...store.card import CardEntries
from ...store.common.arguments import one_of, positive_number, whole_number
from ...store.common.exchange import Losses
from ...store.dynamic.column_groups import EXTRA, ColumnGroup
from ...store.errors import CorruptStoreError, DatasetError
from ...store.frames import EncodedFrames
from ..context import ReadContext
from ..episode import Episode
from ..episodes import iterate_episodes
from .capabilities import (
    LOST_RUN,
    Holds,
    RunFacts,
    count_columns,
    count_ends,
    count_environments,
    count_facts,
    count_spaces,
    ends_frame,
    fitting,
    lost_metadata,
)

ENV_SPEC = "env_spec"


@dataclass(frozen=True)
class Export:
    """The episodes to export, as far as the format has a place for them.

    Attributes:
        context: the episodes.
        losses: what the target cannot hold, by its declaration; formats add what only their files show.
        options: keyword arguments of the format, by name, under `export_format` all of them with defaults.
        progress: called with the number of episodes done.
        holds: the declaration of the format.
        target: where the result will be; None if it is an object in memory.
    """

    context: ReadContext
    losses: Losses
    options: dict[str, Any]
    progress: Callable[[int], Any]
    holds: Holds = field(default_factory=Holds)
    target: Path | None = None

    @cached_property
    def runs(self) -> RunFacts:
        """The runs of the episodes."""
        return RunFacts(self.context)

    @cached_property
    def ends(self) -> pl.DataFrame:
        """Length, flags and end of each episode, and whether its last observation is `missing`."""
        return ends_frame(self.context)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes in the order of the view."""
        for done, episode in enumerate(iterate_episodes(self.context)):
            yield episode
            self.progress(done + 1)

    def transitions_of(self, episode: Episode) -> int:
        """Return how many transitions have a next observation; an episode without any has to be left out."""
        return episode._observation_count - 1

    def observed(self, episode: Episode, column: str) -> Any:
        """Return the observations of an episode in a column, without decoding others."""
        codec = self.context.snapshot.schema.observation.part(column)
        assert codec is not None
        return episode._seen(codec)

    def encoded(self, episode: Episode, column: str) -> tuple[EncodedFrames, Any]:
        """Return the frames before the transitions of an episode as they are stored, and their packets.

        Args:
            column: that the store encodes.

        Returns:
            The frames, and a `PacketStream`; None in its place where the frames have to be decoded.

        Raises:
            CorruptStoreError: they are damaged.
        """
        (image,) = (each.image for each in self.context.snapshot.schema.video if each.name == column)
        cells = episode._block.table([pa.field(column, pa.binary())], episode._start, episode.length)
        frames = EncodedFrames(cells.column(0).combine_chunks(), image)
        try:
            return frames, frames.stream()
        except ValueError as error:
            raise CorruptStoreError(f"{episode.id!r}, column '{column}': {error}.") from error

    @cached_property
    def card(self) -> CardEntries:
        """The entries of the card that have a place, with the environment that all runs share."""

        def lose(path: tuple[Any, ...], value: Any) -> None:
            self.losses.add(f"{'.'.join(map(str, path))} of the card")

        card, _ = self._summed_up
        specs = self.runs.environments
        if len(specs) == 1:
            card = {**card, ENV_SPEC: card.get(ENV_SPEC, specs[0])}
        return CardEntries(fitting(card, self.holds.card, lose))

    @cached_property
    def _summed_up(self) -> tuple[dict[str, Any], list[str]]:
        return self.runs.card(self.context.snapshot.card)

    @property
    def differing(self) -> list[str]:
        """The facts that the card has no entry for, since the datasets of the episodes differ in them."""
        return self._summed_up[1]

    def seed(self, episode: Episode) -> int | None:
        """Return the seed of an episode, if it has a place; call it once for each."""
        seed = episode.seed
        if seed is None or self.holds.seed((), seed):
            return seed
        self.losses.add("a seed beyond 64 bits")
        return None

    def reset_options(self, episode: Episode) -> dict[Any, Any] | None:
        """Return the options of an episode that have a place; None if there are none."""

        def lose(path: tuple[Any, ...], value: Any) -> None:
            self.losses.add(".".join(map(str, ("options", *path))))

        return fitting(episode.options or {}, self.holds.options, lose) or None

    def metadata(self, episode: Episode) -> dict[Any, Any]:
        """Return the metadata of an episode that have a place, its run among them."""
        metadata, hidden = self.runs.join(episode.run_id, episode.metadata)
        for key in hidden:
            self.losses.add(LOST_RUN.format(key))
        return fitting(
            metadata, self.holds.metadata, lambda path, value: self.losses.add(lost_metadata(path))
        )

    def of_steps(self, group: ColumnGroup, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those infos, policy outputs or own columns by key that have a place, and count the others.

        Args:
            group: what they are.
            values: as `Episode.info_arrays`, `policy` and `extra` give them, or the first rows of these.
        """

        def lose(path: tuple[Any, ...], value: Any) -> None:
            name = ".".join(map(str, path))
            what = f"the column {name}" if group is EXTRA else f"{group.prefix}{name}"
            self.losses.add(f"{what}, which is not a {self.holds.form} at every step", _rows(value))

        return fitting(values, self.holds.of_steps(group), lose)

    def refuse_vector_rewards(self, target: str) -> None:
        """Refuse rewards that are not a number.

        Args:
            target: the name of the format, for the message.

        Raises:
            DatasetError: the store has rewards of several objectives.
        """
        shape = self.context.snapshot.manifest.reward_shape
        if shape:
            raise DatasetError(
                f"{target} holds one number as a reward; the store has rewards of shape {shape}. Combine the "
                "objectives into one number, write the episodes with it to another store, and convert that."
            )

    def count_losses(self) -> None:
        """Count what the declaration has no place for, as far as columns and facts of all episodes show it.

        Raises:
            CorruptStoreError: a file of the store is damaged.
        """
        self.count_losses_of_transitions()
        count_spaces(self.context.snapshot, self.holds, self.losses)
        _ = self.card  # counts the entries without a place
        count_environments(self.context.snapshot, self.runs, self.losses)
        count_facts(self.context, self.runs, self.holds, self.losses)
        for name in self.differing:
            self.losses.add(f"{name} of a dataset, since there are several")

    def count_losses_of_transitions(self) -> None:
        """Count the same without the facts of episodes, runs and stores, which no replay buffer holds."""
        count_columns(self.context, self.holds, self.losses)
        count_ends(self.ends, self.holds, self.losses)


def _rows(values: Any) -> int:
    while isinstance(values, Mapping):
        values = next(iter(values.values()), ())
    return len(values)


class TargetFormat(Protocol):
    """A format that can be exported to.

    Attributes:
        name: as `format=` takes it.
        extra: what to install, as `pip install` takes it; None if nothing more is needed.
        folder: whether the target is a folder, not a file.
        options: the keyword arguments that it takes, by name, with what they mean.
        agents: whether it can hold several agents.
    """

    name: str
    extra: str | None
    folder: bool
    options: dict[str, str]
    agents: bool

    def holds(self, options: Mapping[str, Any]) -> Holds:
        """Return what it has a place for with these options; all else counts as lost."""
        ...

    def write(self, export: Export, target: Path) -> None:
        """Write the episodes to a path at which nothing is yet.

        Raises:
            DatasetError: the format cannot hold them; the message names the episode.
            MissingPackageError: a package is not installed.
        """
        ...


@dataclass(frozen=True)
class Option:
    """An option of a format.

    Attributes:
        meaning: for people.
        default: the value where it is not given.
        check: takes the name and a value that is given, and returns that value; it raises
            InvalidArgumentError if the value is none of this option. None passes where it is the default.
    """

    meaning: str
    default: Any = None
    check: Callable[[str, Any], Any] | None = None

    @classmethod
    def choice(cls, meaning: str, *choices: str) -> Option:
        """Return an option with some values; the first is the default."""
        return cls(meaning, choices[0], lambda name, value: one_of(name, value, choices))

    @classmethod
    def count(cls, meaning: str, default: int | None = None) -> Option:
        """Return an option that is a positive integer."""
        return cls(meaning, default, partial(whole_number, least=1))

    @classmethod
    def positive(cls, meaning: str, default: float | None = None, **limits: float) -> Option:
        """Return an option that is a number above 0."""
        return cls(meaning, default, partial(positive_number, **limits))


@dataclass(eq=False)
class ExportFormat:
    """A format that `export_format` declares; see `TargetFormat`."""

    name: str
    extra: str | None
    folder: bool
    options: dict[str, str]
    checked: Callable[[dict[str, Any]], dict[str, Any]]
    holds: Callable[[Mapping[str, Any]], Holds]
    write: Callable[[Export, Path], None]
    agents: bool = False


def export_format(
    name: str,
    /,
    *,
    extra: str | None = None,
    folder: bool = False,
    holds: Holds | Callable[[Mapping[str, Any]], Holds],
    **options: Option,
) -> Callable[[Callable[[Export, Path], None]], ExportFormat]:
    """Declare the function that writes a format, called with an `Export` and the new path to write to.

    Args:
        name: as `format=` takes it.
        extra: what to install for it.
        folder: whether the target is a folder.
        holds: what the format has a place for, or a function of the options that returns that.
        options: by name; the driver checks them before anything is written.
    """

    def checked(given: dict[str, Any]) -> dict[str, Any]:
        values = {key: option.default for key, option in options.items()}
        for key, value in given.items():
            check, default = options[key].check, options[key].default
            if check is None or (value is None and default is None):
                values[key] = value
            else:
                values[key] = check(key, value)
        return values

    meanings = {key: option.meaning for key, option in options.items()}
    of = holds if callable(holds) else lambda given: holds
    return lambda write: ExportFormat(name, extra, folder, meanings, checked, of, write)


def refuse_agents(context: ReadContext, target: str) -> None:
    """Refuse a store of several agents.

    Raises:
        DatasetError: it is one.
    """
    agents = [agent for group in context.snapshot.schema.groups for agent in group.agents]
    if agents:
        raise DatasetError(
            f"{target} holds episodes of a single agent; the store has the agents "
            f"{', '.join(agents[:8])}. Write the episodes of one, `episode.agent(name)`, to a store of their "
            "own, and take that."
        )

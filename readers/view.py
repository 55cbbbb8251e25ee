"""`ReadView`: a choice of episodes of one snapshot, and every way to look at them.

The whole store is the view of all its episodes. Filtering and slicing give smaller views with the same API;
they read the episodes table only. Steps are read when an episode, a frame or a query asks for them.

The top of this package: a view holds a `ReadContext` and hands it to what does the work. The views of
`episodelake` also make new stores; see `episode_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload

import numpy as np
import polars as pl

from ..store.common.arguments import flag
from ..store.common.progress import Progress
from ..store.errors import InvalidArgumentError
from . import episodes
from .charts.plots import Plots
from .context import Parameters, ReadContext, SqlCondition
from .episode import Episode
from .episodes import (
    checked_positions,
    checked_slice,
    describe_episode,
    find_episode,
    has_episode,
    iterate_episodes,
)
from .formatting import counted
from .loading.feeding_view import FeedingView
from .measures import health, measuring, quality
from .view_base import DescribedView

if TYPE_CHECKING:
    from .exporting.conversions import Conversions
    from .exporting.export import ExportReport


#: The views that a view gives: those of `episodelake` make stores, too.
View = TypeVar("View")


class ReadView(DescribedView, FeedingView, Generic[View]):
    """Some episodes of a snapshot, in an order, with length, positions, slices and iteration."""

    sample_episodes = episodes.sample_episodes
    selection = episodes.selection
    make_env = episodes.make_env
    replay = episodes.replay
    stats = measuring.stats
    quality = quality.quality
    health = health.health

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.context)

    @overload
    def __getitem__(self, key: int | str) -> Episode: ...

    @overload
    def __getitem__(self, key: slice | list[int] | np.ndarray | pl.Series) -> View: ...

    def __getitem__(self, key: int | str | slice | list[int] | np.ndarray | pl.Series) -> Episode | View:
        """Return an episode by position in this view (negative: from the end) or by id; another view by
        slice, by a list or array of positions, in its order, or by a mask: True for each episode to keep.

        Raises:
            EpisodeNotFoundError: there is no such position or id in this view.
            InvalidArgumentError: the key is of another kind, or a slice or an array of other things than
                positions, or of one position twice; a mask has another length than the view.
        """
        if isinstance(key, slice):
            return self._view(self.context.choose(self.context.all_positions[checked_slice(key)]))
        if isinstance(key, np.ndarray | list | pl.Series):
            chosen = checked_positions(key, len(self))
            return self._view(self.context.choose(self.context.all_positions[chosen]))
        return find_episode(self.context, key)

    def __iter__(self) -> Iterator[Episode]:
        """Yield every episode; each row group is read and decoded once."""
        return iterate_episodes(self.context)

    def __contains__(self, key: object) -> bool:
        """Return whether an episode id is in this view."""
        return has_episode(self.context, key)

    @property
    def positions(self) -> np.ndarray:
        """int64, shape (n,): positions of its episodes in the store's version, in the order of the view."""
        return self.context.all_positions

    def described(self, key: int | str) -> Episode:
        """Return an episode like `view[key]`, also where its steps cannot be read: what its row says is
        there.

        Attributes that need steps raise `CorruptStoreError`.

        Raises:
            EpisodeNotFoundError: there is no such position or id in this view.
        """
        return describe_episode(self.context, key)

    # Choosing

    def _view(self, context: ReadContext) -> View:
        """Return a view of a choice of its episodes."""
        return cast(View, ReadView(context))

    def filter(self, condition: pl.Expr | str | SqlCondition, parameters: Parameters | None = None) -> View:
        """Return the episodes that fulfil a condition over the episodes table.

        Args:
            condition: a Polars expression, or the text of an SQL condition.
            parameters: values of `?` or `$1` in the text, in order, or of `$name`, by name.

        Raises:
            QueryError: the condition is not valid, or names a column that is not there; the message lists
                those that are.
        """
        from .filters import filter_episodes

        return self._view(filter_episodes(self.context, condition, parameters))

    def where(self, predicate: Callable[[Episode], object]) -> View:
        """Return the episodes for which a Python function returns True.

        It is called once for each episode, in order; what it looks at is read and decoded. Conditions over
        columns of the episodes table are much faster with `filter`.

        Raises:
            InvalidArgumentError: it is no function, or returned neither True nor False, such as None for want
                of a `return`; the message names the episode.
        """
        if not callable(predicate):
            raise InvalidArgumentError(
                f"where() takes a function of an episode, not {predicate!r:.200}. A condition as a text goes "
                "to filter('length > 3')."
            )
        kept = [_answer_of(predicate, episode) for episode in self]
        return self._view(self.context.choose(self.context.all_positions[np.array(kept, bool)]))

    def check(self, *, finished: bool = True, unique: bool = True) -> Self:
        """Return this view if a learner can use its episodes as they are; else raise an error.

        It reads the episodes table and the numbers `t` of the steps. `verify` checks everything else.

        Args:
            finished: refuse episodes whose last transition is neither terminated nor truncated.
            unique: refuse episodes with the `source_key` of an earlier episode of the view.

        Raises:
            CorruptStoreError: the steps of an episode are not numbered t = 0, 1, 2, ... to its end, or a file
                is damaged.
            InvalidArgumentError: an episode is unfinished or repeated; the message says how to leave it out.
        """
        from .filters import check_episodes

        finished = flag("finished", finished)
        unique = flag("unique", unique)
        check_episodes(self.context, finished=finished, unique=unique)
        return self

    def sort(
        self, by: str | pl.Expr | Sequence[str | pl.Expr], *, descending: bool | Sequence[bool] = False
    ) -> View:
        """Return the same episodes in the order of columns of the episodes table.

        Equal values keep their order. NULL comes last either way, and NaN counts as the largest number.

        Args:
            by: a column, an SQL expression (`"episode_return / length"`), or a Polars expression that gives a
                value for each episode; or several, of which each orders what is equal in those before it.
            descending: largest first; for several, a value for all or for each.

        Raises:
            QueryError: there is no such column, or it holds lists; the message lists those that are there.
            InvalidArgumentError: `descending` is neither True nor False, nor a list of them.
        """
        from .filters import sort_episodes

        return self._view(sort_episodes(self.context, by, descending=descending))

    def decode_frames(self, rows: Any, column: str) -> np.ndarray:
        """Return the images that some rows of steps have, also where a column's frames are encoded.

        In the frame `steps` and in SQL a cell of an encoded column is a frame, a group of pictures, or empty.

        Args:
            rows: a frame of Polars, a table of Arrow or a relation of DuckDB with the columns `episode_id`
                and `t`, and `agent_id` where there are several agents: rows of `steps`, or a query's result.
            column: of images of uint8, as `observation.front`.

        Returns:
            An array of shape `(n, *shape)` in the order of the rows. It belongs to the caller.

        Raises:
            InvalidArgumentError: there is no such column; the rows lack a column, or name a step that is not
                there.
            EpisodeNotFoundError: the rows name an episode that this view lacks.
            CorruptStoreError: a file of the store is damaged.
        """
        from .video_frames import decode_frames

        return decode_frames(self.context, rows, column)

    @property
    def plot(self) -> Plots:
        """Interactive charts of these episodes: `store.plot.returns()` and others; see `Plots`."""
        return Plots(self.context, self)

    def report(
        self, file: str | PathLike[str], *, site: bool = False, progress: bool | Progress = False
    ) -> Path:
        """Write a report on these episodes: one HTML file without scripts, which loads nothing.

        It has the card, the findings of `health`, and the charts of returns, lengths, actions and visited
        states. A part that cannot be read is replaced by the reason.

        Args:
            file: its path; a file that is there is replaced. Of a site a new or empty folder.
            site: write a folder for any web server: the report as `index.html`, and a page for each of up to
                200 episodes, evenly spaced, with its card and videos of its cameras.
            progress: as for `health`, which takes the longest.

        Returns:
            The path of the file or folder.

        Raises:
            MissingPackageError: Altair or vl-convert-python is not installed.
            StoreExistsError: the folder is not empty.
            StoreAccessError: the file cannot be written.
        """
        checked = partial(self.health, progress=progress)
        if flag("site", site):
            from .charts.site import chosen_positions, write_site

            chosen: Any = self[chosen_positions(len(self))] if len(self) else ()
            kind = type(self).__name__
            return write_site(self.context, self.plot, kind, checked, file, chosen, progress)
        from .charts.report import write_report

        return write_report(self.context, self.plot, self._repr_html_(), checked, file)

    @property
    def to(self) -> Conversions:
        """These episodes as objects of other libraries, in memory: `store.to.pandas()`; see `Conversions`."""
        from .exporting.conversions import Conversions

        return Conversions(self)

    def export(
        self,
        target: str | PathLike[str],
        *,
        format: str,
        overwrite: bool = False,
        strict: bool = False,
        progress: bool | Progress = False,
        **options: Any,
    ) -> ExportReport:
        """Write these episodes as a dataset of another library, atomically.

        Args:
            target: a file or folder of this machine that does not exist yet, outside of every store.
            format: its name; `formats()` lists them.
            overwrite: replace an export that is there, with all that its folder contains; nothing else.
            strict: raise if the format cannot hold everything.
            progress: True for a bar on the terminal, or a function called with the episodes done and all of
                them.
            options: of the format, see docs/exchange.md.

        Returns:
            What was written, and what the format could not hold.

        Raises:
            InvalidArgumentError: the format or an option is unknown, there is no episode, or `target` is the
                store, contains it or lies in a store.
            StoreExistsError: there is something at `target`; the message says what.
            DatasetError: the format cannot hold the episodes, or with `strict` not everything of them.
            MissingPackageError: the format needs a package that is not installed.
            StoreAccessError: the target cannot be written.
        """
        from .exporting.export import export_view

        overwrite = flag("overwrite", overwrite)
        strict = flag("strict", strict)
        return export_view(
            self.context,
            target,
            format,
            overwrite=overwrite,
            strict=strict,
            progress=progress,
            options=options,
        )

    def _repr_html_(self) -> str:
        """Return a card: how much there is, how episodes ended, their returns, runs and spaces."""
        from .charts.cards import view_card

        return view_card(self.context, type(self).__name__, lambda: self[0])

    def __repr__(self) -> str:
        """Return the number of episodes and where they are."""
        snapshot = self.context.snapshot
        place = f"{str(snapshot.layout.root)!r}, version {snapshot.version}"
        return f"{type(self).__name__}({counted(len(self), 'episode')}, {place})"


def _answer_of(predicate: Callable[[Episode], object], episode: Episode) -> bool:
    """Return the answer of a user's function; arrays and tensors of one boolean count.

    Raises:
        InvalidArgumentError: it is neither True nor False.
    """
    answer = predicate(episode)
    plain = answer.item() if np.ndim(answer) == 0 and hasattr(answer, "item") else answer  # type: ignore
    if isinstance(plain, bool):
        return plain
    hint = " Does it lack a return?" if answer is None else ""
    raise InvalidArgumentError(
        f"The function of where() returned {answer!r:.200} of type {type(answer).__name__} for the episode "
        f"{episode.id!r}; expected True or False.{hint}"
    )

"""`MaintainedStore`: what an open store can do about its committed episodes, in one place.

Every method works on the newest version, and moves the object to the version that it made. Only versions
change; files go with `vacuum` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, get_args

import polars as pl
import pyarrow as pa
from polars.selectors import by_name

from .readers.context import Parameters, SqlCondition
from .readers.view import EpisodeView
from .store.common.arguments import flag, is_integer, one_of
from .store.common.engines import Engine
from .store.common.progress import Progress, progress_meter
from .store.errors import InvalidArgumentError, StoreAccessError
from .store.files import access_class
from .store.schema import StoreHandle
from .store.snapshot import Snapshot

if TYPE_CHECKING:
    from ._mapping import MapReport, Of, OnError
    from .readers.episode import Episode
    from .store.maintenance.compaction import CompactReport
    from .store.maintenance.rewriting import DeleteReport
    from .store.maintenance.vacuum import VacuumReport
    from .store.maintenance.verification import VerifyReport

_WEEK = timedelta(days=7)


class MaintainedStore(EpisodeView):
    """The maintenance half of `EpisodeStore`."""

    handle: StoreHandle

    def refresh(self) -> Self:
        """Move to the newest version and return this object."""
        raise NotImplementedError

    def _show_newest(self) -> None:
        """Refresh after a commit, which an error does not undo."""
        try:
            self.refresh()
        except StoreAccessError as error:
            raise access_class(error)(
                f"The change is committed, but the store could not be read again: {error} Call refresh()."
            ) from error

    def compact(
        self,
        *,
        segment_bytes: int = 256 << 20,
        order_by: str | None = None,
        descending: bool = False,
        progress: bool | Progress = False,
    ) -> CompactReport:
        """Join small segments into large ones. Ids, contents and positions stay.

        Args:
            segment_bytes: how large a segment may become, as a compressed file.
            order_by: sort all episodes by this column of episodes instead, so that a filter on it reads few
                files; positions then follow the new order. NULLs come last, NaN before them.
            descending: the largest first.
            progress: True for a bar on the terminal, or a function called with the rows written so far and
                all rows.

        Raises:
            InvalidArgumentError: there is no such column.
            CorruptStoreError: a file is damaged; no segment was changed.
            StoreAccessError, ConcurrentCommitError: no segment was changed, unless the message says that it
                is committed; call again.
        """
        from .store.maintenance.compaction import compact

        descending = flag("descending", descending)
        with progress_meter(progress, "Compacting", "rows") as tell:
            report = compact(self.handle, segment_bytes, order_by, descending=descending, progress=tell)
        self._show_newest()
        return report

    def delete(
        self,
        filter: pl.Expr | str | SqlCondition,
        parameters: Parameters | None = None,
        *,
        dry_run: bool = False,
        progress: bool | Progress = False,
    ) -> DeleteReport:
        """Take the episodes that fulfil a condition out of the newest version.

        Older versions show them until `vacuum`, which deletes the files.

        Args:
            filter, parameters: as for `EpisodeView.filter`.
            dry_run: only say what would go.
            progress: True for a bar on the terminal, or a function called with the rows written so far and
                all rows.

        Raises:
            QueryError: the condition is not valid.
            CorruptStoreError: a file is damaged; nothing was changed.
            StoreAccessError, ConcurrentCommitError: nothing was changed, unless the message says that it
                is committed; call again.
        """
        from .store.maintenance.rewriting import delete

        dry_run = flag("dry_run", dry_run)
        if not dry_run:
            self.refresh()
        ids = self.filter(filter, parameters).episodes.select("episode_id").collect()["episode_id"].to_list()
        with progress_meter(progress, "Deleting", "rows") as tell:
            report = delete(self.handle, ids, dry_run=dry_run, progress=tell)
        if not dry_run:
            self._show_newest()
        return report

    def vacuum(
        self, older_than: timedelta = _WEEK, *, dry_run: bool = False, progress: bool | Progress = False
    ) -> VacuumReport:
        """Delete the files that no retained version needs.

        Retained are the newest version, those that were the newest at some time since `older_than` ago, and
        tagged ones. An object that still shows an older version can no longer read it.

        Args:
            older_than: with timedelta(0), only the newest version and tagged ones are retained. What loaders
                keep of the others in this machine's cache folder goes too; see docs/loading.md.
            dry_run: only say what would go.
            progress: True for a bar on the terminal, or a function called with the files deleted so far and
                all of them.

        Raises:
            InvalidArgumentError: `older_than` is negative.
            CorruptStoreError: a log or a tag is damaged; nothing was deleted.
            StoreAccessError: a file could not be deleted; call again.
        """
        from .readers.columns.cache_folder import CacheFolder, chosen_folder
        from .readers.columns.mapped import forget_vacuumed
        from .store.maintenance.vacuum import vacuum

        dry_run = flag("dry_run", dry_run)
        with progress_meter(progress, "Deleting", "files") as tell:
            report = vacuum(self.handle, older_than, dry_run=dry_run, progress=tell)
        if not dry_run:
            forget_vacuumed(self.context.snapshot, CacheFolder(chosen_folder(None)))
        return report

    def verify(
        self,
        *,
        repair: bool = False,
        engine: str = "local",
        workers: int | None = None,
        progress: bool | Progress = False,
    ) -> VerifyReport:
        """Read everything in the newest version, and check it against everything else.

        Args:
            repair: mend what can be mended; see `VerifyReport`.
            engine, workers: where the segments are read, as for `map_episodes`; the report is the same.
            progress: True for a bar on the terminal, or a function called with the segments read so far and
                all of them.

        Raises:
            StoreAccessError: a file may not be read or cannot be reached.
            ComputationError: a process that reads died; nothing was mended.
        """
        from .store.maintenance.verification import verify

        repair = flag("repair", repair)
        chosen = Engine.of(engine, workers)
        with progress_meter(progress, "Reading", "segments") as tell:
            report = verify(self.handle, repair=repair, engine=chosen, progress=tell)
        if any(fault.mended for fault in report.faults):
            self._show_newest()
        return report

    # Versions

    def tag(self, name: str, version: int | None = None) -> None:
        """Give a version a name that `open` takes, and keep it from being vacuumed.

        Args:
            name: letters, digits, dots, dashes and underscores.
            version: which one; None for the one that this object shows.

        Raises:
            InvalidArgumentError: the name is none, or the version no whole number.
            StoreExistsError: another version has this name.
            VersionNotFoundError: there is no such version, or it was vacuumed.
        """
        from .store.maintenance.operation import Operation
        from .store.maintenance.tags import write_tag

        with Operation.begin(self.handle, "tag"):
            wanted = self.context.snapshot.version if version is None else version
            if not is_integer(wanted):
                raise InvalidArgumentError(f"version={version!r:.200}: expected a whole number.")
            snapshot = Snapshot(self.handle.layout, self.handle.manifest, wanted)
            snapshot.check_retained()
            write_tag(self.handle.layout, name, snapshot.version)

    def untag(self, name: str) -> None:
        """Take a tag away; its version is then retained no longer than others.

        Raises:
            VersionNotFoundError: there is no such tag.
        """
        from .store.maintenance.tags import remove_tag

        remove_tag(self.handle.layout, name)

    # Columns that come later

    def annotate(self, frame: Any, on: str | tuple[str, ...] = "episode_id") -> None:
        """Add columns to episodes or steps, or overwrite their values, without rewriting any step.

        Every column of the frame besides the keys becomes an annotation: a column of `episodes` (or of
        `steps` and `transitions`) in frames, queries and filters, and `Episode.annotations` (or
        `Episode.step_annotations`). Rows that the frame leaves out keep what they have, at first NULL.

        Args:
            frame: a Polars, pandas or Arrow frame, or anything with `__arrow_c_stream__`.
            on: "episode_id"; or ("episode_id", "t"), in a multi-agent store ("episode_id", "agent_id", "t").

        Raises:
            InvalidArgumentError: a key is missing, unknown or there twice; a column's name or type cannot be
                stored, or differs from what the annotation has.
            StoreAccessError, ConcurrentCommitError: nothing was changed, unless the message says that it
                is committed; call again.
        """
        from .store.maintenance.annotations import annotate_episodes, annotate_steps

        keys = (on,) if isinstance(on, str) else on
        step_keys = tuple(name for name, _ in self.handle.schema.step_keys)
        table = _arrow_table(frame)
        if keys == ("episode_id",):
            annotate_episodes(self.handle, table)
        elif isinstance(keys, tuple | list) and tuple(keys) == step_keys:
            annotate_steps(self.handle, table)
        else:
            raise InvalidArgumentError(f"on={on!r}: expected 'episode_id' or {step_keys!r}.")
        self._show_newest()

    def label(self, episodes: int | str | EpisodeView, /, **labels: Any) -> pl.DataFrame:
        """Write labels of episodes, such as `good=False, note="gripper slipped"`.

        A label is an annotation: a column of `episodes` in frames, queries and filters. Episodes without one
        have NULL.

        Args:
            episodes: the position or id of one episode, or a view for all of its episodes.
            labels: values by name: a boolean, number, text, datetime, or a list of those. None clears a
                label.

        Returns:
            The columns `episode_id` and the labels, with the values before; `store.annotate(frame)` undoes
            the change.

        Raises:
            EpisodeNotFoundError: there is no such episode.
            InvalidArgumentError: a name or value cannot be an annotation, or None is given for an unknown
                label.
            StoreAccessError, ConcurrentCommitError: nothing was changed, unless the message says that it
                is committed; call again.
        """
        if not labels:
            raise InvalidArgumentError("There is no label; give some by name, such as good=True.")
        if isinstance(episodes, EpisodeView):
            ids = episodes.episodes.select("episode_id").collect()
        else:
            ids = pl.DataFrame({"episode_id": [self[episodes].id]})
        self.refresh()
        known = self.episodes.collect_schema()
        unknown = [name for name, value in labels.items() if value is None and name not in known]
        if unknown:
            there = ", ".join(name for name in self.annotations.get_column("name")) or "none"
            raise InvalidArgumentError(
                f"{unknown[0]}=None: there is no annotation {unknown[0]!r} to clear; there are: {there}."
            )
        try:
            frame = ids.with_columns(
                pl.lit(value, known[name] if value is None else None).alias(name)
                for name, value in labels.items()
            )
        except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise InvalidArgumentError(
                f"{labels!r:.200} cannot be labels: {str(error).partition(chr(10))[0]}. Expected booleans, "
                "numbers, texts, datetimes or lists of those."
            ) from error
        # By name, since `select` takes some names for patterns.
        before = self.episodes.select(by_name("episode_id", *(name for name in labels if name in known)))
        self.annotate(frame)
        missing = (pl.lit(None, frame.schema[name]).alias(name) for name in labels if name not in known)
        return ids.join(before.collect(), on="episode_id", how="left").with_columns(missing)

    def map_episodes(
        self,
        function: Callable[[Episode], Any],
        into: str | Sequence[str],
        *,
        of: Of,
        where: pl.Expr | str | SqlCondition | None = None,
        engine: str = "local",
        workers: int | None = None,
        job_id: str | None = None,
        on_error: OnError = "raise",
        progress: bool | Progress = False,
    ) -> MapReport:
        """Compute annotations by a function of an episode, on many processes or machines; commit them once.

        The function gets an `Episode`, as iterating does, and only what it looks at is read. For steps of a
        multi-agent store it is called with each `AgentEpisode`. Values have the types that `annotate` takes;
        integers become doubles where other episodes have those. Nothing is visible before the commit, whose
        values are in the memory of this process.

        Args:
            function: returns the values.
            into: the annotation; or several, and the function returns a dict of them.
            of: "episode": a value is a scalar, or a vector, such as an embedding. "step": values have the
                shape (T,) for transitions, or (T+1,) for observations; vectors (T, n). None and what a mask
                of NumPy hides are NULL.
            where: only the episodes that fulfil this condition, as for `filter`. Others keep what they have.
            engine: "local"; or "ray" for tasks of Ray, on a cluster whose machines all see the store.
            workers: how many local processes or tasks of Ray at a time. None for this process, or for as many
                tasks as there are CPUs. Local processes need a function that pickle takes.
            job_id: names the job. If it is interrupted, the same call goes on with the version that it began
                with, and after its commit adds nothing. Choose another one if the function changes. Until
                then results wait in `.writing` in the store; `vacuum` deletes those of jobs that do not run.
            on_error: "raise", or "skip" episodes for which the function fails, and report them. A
                StoreAccessError always raises, since the episode may be readable later.
            progress: True for a bar on the terminal, or a function called with the episodes done and all of
                them.

        Raises:
            ComputationError: the function failed, or its values do not fit the episode, which the message
                names; or a process died.
            InvalidArgumentError: an argument is not valid, a name is taken, types differ between episodes, or
                the function cannot be pickled.
            QueryError: `where` is not valid.
            MissingPackageError: Ray is not installed.
            ConcurrentCommitError: another process runs this job; or as below.
            StoreAccessError, ConcurrentCommitError: nothing was changed, unless the message says that it
                is committed; call again.
        """
        single = isinstance(into, str)
        names = (into,) if single else tuple(into) if isinstance(into, Iterable) else ()
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"into={into!r:.200}: expected the name of an annotation, or several different ones."
            )
        if not callable(function):
            raise InvalidArgumentError(f"function={function!r:.200}: expected a function of an episode.")
        from ._mapping import EpisodeMap, MapJob, Of, OnError

        one_of("of", of, get_args(Of))
        one_of("on_error", on_error, get_args(OnError))
        if job_id is not None and (not isinstance(job_id, str) or not job_id):
            raise InvalidArgumentError(f"job_id={job_id!r:.200}: expected text that names the job.")
        self.refresh()
        engine_chosen = Engine.of(engine, workers)
        job = MapJob(self.handle, of, names, where, job_id)
        mapped = partial(EpisodeMap, function, names, single, of, on_error == "skip")
        with progress_meter(progress, "Computing", "episodes") as tell:
            report = job.run(mapped, self.context.snapshot.version, engine_chosen, tell)
        self._show_newest()
        return report

    def drop_annotation(self, name: str) -> None:
        """Take an annotation away; older versions still show it.

        Raises:
            InvalidArgumentError: there is no such annotation; the message lists those that are.
            StoreAccessError, ConcurrentCommitError: nothing was changed, unless the message says that it
                is committed; call again.
        """
        from .store.maintenance.annotations import drop_annotation

        drop_annotation(self.handle, name)
        self._show_newest()

    def rename(self, names: Mapping[str, str], *, progress: bool | Progress = False) -> None:
        """Give columns of your own other names: annotations, and what was recorded of steps.

        The cure for a store in which two columns share a name. Of an annotation and a recorded column of one
        name, the annotation is renamed. Segments with recorded columns are written anew, and `steps` keeps an
        empty column of the old name; older versions show the old one. Writers that are open go on with the
        names that they know.

        Args:
            names: new names by old ones, as `steps` and `episodes` have them: `{"info.cost": "info.price"}`.
            progress: True for a bar on the terminal, or a function called with the rows written so far and
                all rows.

        Raises:
            InvalidArgumentError: there is no such column, or a name is taken; nothing was changed.
            CorruptStoreError: a file is damaged; nothing was changed.
            StoreAccessError, ConcurrentCommitError: call again; each kind of column has one commit.
        """
        from .store.maintenance.renaming import rename

        with progress_meter(progress, "Renaming", "rows") as tell:
            rename(self.handle, names, progress=tell)
        self._show_newest()

    def split(
        self, shares: Mapping[str, float], by: str = "episode", seed: int = 0, name: str = "split"
    ) -> None:
        """Annotate every episode with the part that it belongs to.

        The part follows from the key and the seed alone: call it again when episodes were added, and those
        that had a part keep it.

        Args:
            shares: the parts and their shares, which add up to 1, as in `{"train": 0.9, "val": 0.1}`.
            by: what stays together: "episode", "run", or a column of episodes.
            seed: another seed gives another split.
            name: of the annotation.

        Raises:
            InvalidArgumentError: the shares or the column are not valid.
        """
        from .store.maintenance.annotations import parts_of

        self.refresh()
        column = {"episode": "episode_id", "run": "run_id"}.get(by, by) if isinstance(by, str) else ""
        known = self.context.snapshot.episodes_schema.names
        if column not in known:
            raise InvalidArgumentError(
                f"Cannot split by {by!r}: expected 'episode', 'run' or a column of episodes: "
                f"{', '.join(known)}."
            )
        frame = self.episodes.select("episode_id", pl.col(column).alias("key")).collect()
        parts = parts_of(frame["key"].to_list(), shares, seed)
        self.annotate(frame.select("episode_id", pl.Series(name, parts, dtype=pl.String)))


def _arrow_table(frame: Any) -> pa.Table:
    try:
        if isinstance(frame, pl.LazyFrame):
            frame = frame.collect()
        # Polars before 2.0 ends the process when it hands them out.
        if isinstance(frame, pl.DataFrame) and pl.Object in frame.dtypes:
            raise InvalidArgumentError(
                "The frame has a column of Python objects (Object), which no store holds."
            )
        if isinstance(frame, pl.DataFrame) and pl.Int128 in frame.dtypes:
            raise InvalidArgumentError("The frame has integers beyond 64 bits, which no store holds.")
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
    except (pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise InvalidArgumentError(f"The frame cannot be read: {str(error).partition(chr(10))[0]}") from error
    raise InvalidArgumentError(f"frame is {type(frame).__name__}; expected a Polars, pandas or Arrow frame.")

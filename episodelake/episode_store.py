"""`EpisodeStore`: the one object that users hold, made of the store, its writers and its readers.

Only this package knows both sides; it forwards, and decides nothing. Every method that maintains works on the
newest version, and moves the object to the version that it made. Only versions change; files go with `vacuum`
alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack, overload

import polars as pl

from .readers.context import Parameters, ReadContext, SqlCondition
from .readers.corruption import without_damaged_files
from .readers.frames import arrow_table, collected
from .readers.view import ReadView
from .store.card import CardEntries
from .store.common.arguments import argument_names, expect, flag, is_integer
from .store.common.progress import Progress, progress_meter
from .store.creation import check_free, created_atomically
from .store.errors import InvalidArgumentError
from .store.files import afterwards, refuse_unused
from .store.frames import Video
from .store.layout import Layout, check_identity
from .store.manifest import Manifest, with_encodings, write_card
from .store.schema import StoreHandle
from .store.snapshot import Snapshot

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import VectorEnv

    from .annotations.mapping import MapReport, Of, OnError
    from .environments import Artifacts
    from .explorer_process import Explorer
    from .publishing.report import PublishReport
    from .readers.episode import Episode
    from .readers.loading.outputs import Output, OutputName
    from .readers.loading.priorities import Prioritized
    from .readers.verification.inspection import VerifyReport
    from .replay_buffer.buffer import ReplayBuffer
    from .rollouts.rollout import Rollout
    from .store.common.compatibility import AutoresetMode
    from .store.environments.records import SavedEnvironment
    from .store.rewrite.compaction import CompactReport
    from .store.rewrite.rewriting import DeleteReport
    from .store.vacuum import VacuumReport
    from .writers.episodes.episode_writer import EpisodeWriter
    from .writers.episodes.source_keys import OnDuplicate
    from .writers.episodes.team_writer import TeamWriter
    from .writers.recorders.callbacks import EpisodeCallback, StepCallback
    from .writers.recorders.choice import AnyRecorder, RecordOptions, RunObserver, TeamOptions, VectorOptions
    from .writers.recorders.env_checks import PettingZooEnv
    from .writers.recorders.observed import ObservationChoice
    from .writers.recorders.pettingzoo_recorders import AECRecorder, ParallelRecorder
    from .writers.recorders.recorder import Recorder
    from .writers.recorders.vector_recorder import VectorRecorder
    from .writers.recorders.vector_values import RecordInfos
    from .writers.session.journal import SessionKeywords

_WEEK = timedelta(days=7)


class EpisodeView(ReadView["EpisodeView"]):
    """Some episodes of a snapshot, in an order, with length, positions, slices and iteration."""

    def _view(self, context: ReadContext) -> EpisodeView:
        return EpisodeView(context)

    def rollout(self, key: int | str) -> Rollout:
        """Return a rollout of a store that was created with `Rollouts`, by position or id as for `view[key]`.

        Raises:
            EpisodeNotFoundError: there is no such position or id in this view.
            InvalidArgumentError: its episodes are no rollouts, or the key is that of several.
        """
        from .rollouts.declaration import check_rollouts
        from .rollouts.rollout import Rollout

        check_rollouts(self.context.snapshot.manifest.rollouts)
        episode = self[key]
        if isinstance(episode, EpisodeView):
            raise InvalidArgumentError(f"{key!r:.100} is no single rollout; expected a position or an id.")
        return Rollout(episode)

    def copy(
        self,
        into: str | PathLike[str],
        filter: pl.Expr | str | SqlCondition | None = None,
        parameters: Parameters | None = None,
        *,
        link: bool = False,
        encodings: Mapping[str, Video] | None = None,
        storage_options: Mapping[str, str] | None = None,
        progress: bool | Progress = False,
    ) -> EpisodeStore:
        """Make a new `EpisodeStore` of these episodes, under their ids, with their runs and card.

        Segments whose episodes are all wanted are taken over as files, so the episodes stand in the order of
        the store, also those of a sorted view; `compact(order_by=...)` writes the new store in another order.

        Args:
            into: where; as for `create`.
            filter, parameters: only the episodes that fulfil this condition, as for `EpisodeView.filter`.
            link: share files on the same file system instead of copying them.
            encodings: store these columns of frames as video, as for `create`; beside those that are.
            storage_options: how to reach the object store `into`; if they are not given, this store's own for
                a URL of the same kind.
            progress: True for a bar on the terminal, or a function called with the segments done and all
                segments.

        Raises:
            StoreExistsError: there is a store already, or other files.
            InvalidArgumentError: `into` lies in this store.
            QueryError: the condition is not valid; nothing was created.
        """
        link = flag("link", link)
        if filter is None and parameters is not None:
            raise InvalidArgumentError(f"parameters={parameters!r:.100} came without a filter that has them.")
        view = self if filter is None else self.filter(filter, parameters)
        with progress_meter(progress, "Copying", "segments") as meter:
            return copy_views(
                [view],
                into,
                link=link,
                encodings=encodings,
                storage_options=storage_options,
                progress=meter,
            )

    def publish(
        self,
        target: str | PathLike[str],
        *,
        tag: str,
        where: pl.Expr | str | SqlCondition | None = None,
        card: Mapping[str, Any] | None = None,
        private: bool | None = None,
        storage_options: Mapping[str, str] | None = None,
        dry_run: bool = False,
        progress: bool | Progress = False,
    ) -> PublishReport:
        """Publish these episodes as a version that never changes, for others to open, query and pull.

        The version is a store of its own, with the runs, environments, artifacts and annotations that belong
        to it, a README and checksums. Its episodes have the order of this view, those of a `copy` that of the
        store. Every page of its files is checked. It appears at the target in one step; if the call is
        interrupted, call it again. See docs/publishing.md.

        Args:
            target: a folder or a URL of an object store, which gets the version as `target/tag`; or a dataset
                of the Hugging Face Hub, `hf://organisation/name`.
            tag: the version's name, new at this target.
            where: only the episodes that fulfil this condition, as for `EpisodeView.filter`.
            card: entries of the card that replace or extend the store's.
            private: whether a new dataset on the Hub is private; None for the Hub's default.
            storage_options: how to reach the object store.
            dry_run: build the version, and report it; nothing is sent.
            progress: True for a bar on the terminal, or a function called with the segments written so far
                and all segments.

        Returns:
            A `PublishReport`.

        Raises:
            StoreExistsError: the target has this tag already, or holds other things; nothing was changed.
            InvalidArgumentError: there is no episode, the tag or the card is not valid, or the target lies in
                a store.
            QueryError: the condition is not valid.
            CorruptStoreError: a file of the store is damaged; nothing was published.
            StoreAccessError: the target cannot be written; call again.
        """
        from .publishing.publishing import publish_view

        return publish_view(
            self,
            target,
            tag,
            where=where,
            card=card,
            private=private,
            storage_options=storage_options,
            dry_run=dry_run,
            progress=progress,
        )


class EpisodeStore(EpisodeView):
    """An open store: all episodes of one version, with recording and maintenance.

    Made by `create` and `open`. What it shows does not change until `refresh`.
    """

    def __init__(self, layout: Layout, manifest: Manifest, snapshot: Snapshot | None = None) -> None:
        self.handle = StoreHandle(layout, manifest)
        super().__init__(ReadContext.of(snapshot or Snapshot(layout, manifest)))

    @EpisodeView.card.setter
    def card(self, card: Mapping[str, Any]) -> None:
        """Replace the card."""
        self._write_card(card)

    def _write_card(self, card: Mapping[str, Any]) -> None:
        check_identity(self.handle.layout)
        write_card(self.handle.layout, CardEntries.to_bytes(card))

    def refresh(self) -> EpisodeStore:
        """Move to the newest version and return this object; views made before keep theirs.

        It costs what was committed since, unless files were rewritten.
        """
        self._show(Snapshot(self.handle.layout, self.handle.manifest, after=self.context.snapshot))
        return self

    def leave_out_damaged(self, *, steps: bool = False) -> list[str]:
        """Show the same version without the files of episodes and runs that cannot be read.

        So the rest of a damaged store stays explorable. Positions then count the episodes that are left;
        ids stay. `refresh` goes back to all files. A damaged file of steps is not left out unless `steps`
        says so: its episodes are listed in any case, and reading one of them says what is wrong.

        Args:
            steps: read every file of steps too, and leave the rows of damaged ones out of frames and queries.

        Returns:
            For each file that is left out, what is wrong with it; empty if every one can be read.
        """
        steps = flag("steps", steps)
        snapshot, damaged = without_damaged_files(self.context.snapshot, steps=steps)
        self._show(snapshot)
        return damaged

    def explore(
        self,
        *,
        browser: bool = False,
        height: int = 760,
        write: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> Explorer:
        """Start the explorer; in a notebook its page appears below the cell.

        A process of its own serves the page, to this machine and this user alone, and ends with `stop()` or
        with this process. It follows running writers; a store opened at an older version stays there.

        Args:
            browser: also open the page in the browser.
            height: of the page in the notebook, in pixels.
            write: let the page label episodes; see `label`.
            storage_options: how to reach a store on an object store.

        Raises:
            MissingPackageError: a package of the extra `explore` is not installed.
            InvalidArgumentError: the height is no whole number from 1, an option neither True nor False, or
                `write` is given for an older version.
            StoreAccessError, CorruptStoreError: the store cannot be read.
            ComputationError: the process ended before its page answered.
        """
        from .explorer_process import Explorer

        refuse_unused(storage_options, self.url)
        browser, write = flag("browser", browser), flag("write", write)
        version = None if self.context.snapshot.newest else self.version
        return Explorer.start(
            self.url, version, browser=browser, height=height, write=write, storage_options=storage_options
        )

    def _show(self, snapshot: Snapshot) -> None:
        self.context = ReadContext.of(snapshot)
        # Their connections belong to the snapshot that was shown.
        self.__dict__.pop("_queries", None)

    def _with_checked_pages(self) -> EpisodeView:
        shown = self.context.snapshot
        layout = replace(shown.layout, check_pages=True)
        return EpisodeView(ReadContext.of(Snapshot(layout, shown.manifest, shown.version)))

    # Recording

    @overload
    def record(
        self,
        env: gymnasium.Env | str | EnvSpec | Callable[[], gymnasium.Env],
        **options: Unpack[RecordOptions],
    ) -> Recorder: ...

    @overload
    def record(self, env: VectorEnv, **options: Unpack[VectorOptions]) -> VectorRecorder: ...

    @overload
    def record(
        self, env: PettingZooEnv, **options: Unpack[TeamOptions]
    ) -> ParallelRecorder | AECRecorder: ...

    def record(
        self,
        env: Any,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        step_callback: StepCallback | None = None,
        episode_callback: EpisodeCallback | None = None,
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
        record_infos: RecordInfos = True,
        observation: ObservationChoice | None = None,
        state: bool = False,
        autoreset_mode: AutoresetMode | str | None = None,
        buffer: RunObserver | None = None,
        **options: Unpack[SessionKeywords],
    ) -> AnyRecorder:
        """Wrap an environment so that every episode is recorded.

        A Gymnasium environment gives a `Recorder`, a vector environment a `VectorRecorder`, one of
        PettingZoo a `ParallelRecorder` or an `AECRecorder`; see these and `SessionOptions`.

        Args:
            env: the environment; or an id, a spec or a function without arguments to make one from, such as
                `"CartPole-v1"`. Closing the recorder closes it.
            run: a readable name for the run.
            metadata: of the run.
            step_callback, episode_callback: see `StepData` and `EpisodeSummary`.
            files, packages: what the environment needs beside its spec: files, by the names under which they
                are to be unpacked, and distributions.
            record_infos: whether to store the environment's infos, or the keys to store, such as
                `("cost", "success")`. The others are never copied; the caller and the step callback see all.
            observation: what to store of each observation, where the store's observation space is a part of
                the environment's: a key of its Dict space, several keys, or a function from an observation of
                one environment to the stored one. The caller and policies see whole observations.
            state: of PettingZoo: record `env.state()` as well.
            autoreset_mode: of a vector environment whose metadata does not state it.
            options: see `SessionOptions`: `durability`, `seal_seconds`, `cast` and the others.
            buffer: a `ReplayBuffer` of this store, which shows each step as soon as it is recorded.

        Raises:
            SpaceMismatchError: the environment's spaces are not the store's.
            InvalidArgumentError: there is no environment of that id; an option is for another kind of
                environment; the store is for one agent and the environment has several, or vice versa; a file
                cannot be kept.
            StoreAccessError: the store cannot be written.
        """
        from .writers.recorders.choice import recorder_of
        from .writers.session.journal import SessionOptions

        return recorder_of(
            env,
            self,
            run=run,
            metadata=metadata,
            step_callback=step_callback,
            episode_callback=episode_callback,
            options=SessionOptions.of(options, argument_names(EpisodeStore.record)),
            files=files,
            packages=packages,
            record_infos=record_infos,
            observation=observation,
            state=state,
            autoreset_mode=autoreset_mode,
            buffer=buffer,
        )

    def replay_buffer(
        self,
        capacity: int,
        *,
        seed: int = 0,
        prioritized: Prioritized | None = None,
        output: OutputName | Output = "numpy",
    ) -> ReplayBuffer:
        """Return a replay buffer with the newest transitions of this version, for recorders to go on with.

        The newest transitions are those of the episodes committed last. Call `recover` before the store is
        opened if its last writer was killed.

        Args:
            capacity: transitions. Memory for them is allocated at once.
            seed: of the draws.
            prioritized: draw by priority; None to draw all transitions alike.
            output: "numpy" arrays, "torch" tensors, "jax" arrays or a "tensordict"; `Output` for a device.

        Raises:
            InvalidArgumentError: an argument makes no sense, values have no fixed shape, or episodes have
                several agents.
            MissingPackageError: the package of the output is not installed.
            CorruptStoreError: a file of the store is damaged.
        """
        from .replay_buffer.buffer import ReplayBuffer

        return ReplayBuffer(self.context, capacity, seed=seed, prioritized=prioritized, output=output)

    def writer(
        self,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        env: gymnasium.Env | VectorEnv | EnvSpec | str | None = None,
        on_duplicate: OnDuplicate = "error",
        buffer: RunObserver | None = None,
        **options: Unpack[SessionKeywords],
    ) -> EpisodeWriter:
        """Return a writer that needs no environment; see `EpisodeWriter` and `SessionOptions`.

        That of a store of rollouts is a `types.RolloutWriter`.

        Args:
            run, metadata, env, on_duplicate, options: see `EpisodeWriter`.
            buffer: a `ReplayBuffer` of this store, which shows each step as soon as it is appended. Such a
                writer takes steps (`begin`, `append`), not whole episodes.

        Raises:
            InvalidArgumentError: an option has no such value, `env` is no environment and names none, or the
                buffer belongs to another store.
            StoreAccessError: the store cannot be written.
        """
        from .writers.episodes.episode_writer import EpisodeWriter
        from .writers.session.journal import SessionOptions

        if buffer is not None:
            buffer.check_store(self.handle)
        kind = EpisodeWriter
        if self.handle.manifest.rollouts is not None:
            from .rollouts.writing import RolloutWriter as kind
        writer = kind(
            self,
            run=run,
            metadata=metadata,
            env=env,
            options=SessionOptions.of(options, argument_names(EpisodeStore.writer)),
            on_duplicate=on_duplicate,
        )
        if buffer is not None:
            buffer.observe(writer.session)
        return writer

    def team_writer(
        self,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[SessionKeywords],
    ) -> TeamWriter:
        """Return a writer of episodes with several agents; see `TeamWriter` and `SessionOptions`.

        Raises:
            InvalidArgumentError: the store is for a single agent.
            StoreAccessError: the store cannot be written.
        """
        from .writers.episodes.team_writer import TeamWriter
        from .writers.session.journal import SessionOptions

        return TeamWriter(
            self,
            run=run,
            metadata=metadata,
            options=SessionOptions.of(options, argument_names(EpisodeStore.team_writer)),
        )

    # Environments and artifacts

    @property
    def artifacts(self) -> Artifacts:
        """The named artifacts of the store."""
        from .environments import Artifacts

        return Artifacts(self.handle.layout)

    def save_environment(
        self,
        env: Any,
        *,
        name: str,
        description: str | None = None,
        difficulty: str | None = None,
        version: int | None = None,
        release: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
    ) -> SavedEnvironment:
        """Save an environment under a name, so that `make_env(name)` makes it again.

        It may have other spaces than the episodes. If the same content has this name already, nothing is
        saved; a description, difficulty, release and metadata that are given replace those of before.

        Args:
            env: a Gymnasium environment with a spec, as `gymnasium.make` gives it.
            name: a printable text of up to 200 bytes, such as "ALE/Pong-v5".
            description, difficulty: texts for people.
            version: from 1; several are kept side by side. None stands for the one with this content, or 1.
            release: the version as you call it, such as "1.2-beta"; `make_env("pole@1.2-beta")` finds it.
                One version of a name has it.
            metadata: of your choice; plain JSON.
            files, packages: as for `record`.

        Raises:
            EnvUnavailableError: it could not be made again; the message names what is missing.
            StoreExistsError: other content has this name and version, or another version the release.
            InvalidArgumentError: an argument is not valid, or a file cannot be kept.
            StoreAccessError: the store cannot be written.
        """
        from .environments import save_environment

        texts = {"description": description, "difficulty": difficulty}
        kept = {"files": files, "packages": packages}
        return save_environment(self.handle.layout, env, name, version, release, metadata, texts, **kept)

    def delete_environment(self, name: str, *, episodes: bool = False) -> int:
        """Delete a saved environment: all versions of a name, or that of `name@version` or `name@release`.

        `vacuum` deletes its files when nothing else refers to them.

        Args:
            name: its name.
            episodes: also delete the episodes that were recorded in it: those of runs with the same spec,
                arguments and files. Older versions of the store show them until `vacuum`.

        Returns:
            The number of episodes that were deleted.

        Raises:
            InvalidArgumentError: there is none.
            CorruptStoreError, StoreAccessError, ConcurrentCommitError: the environment is not deleted; call
                again.
        """
        from .environments import delete_environment

        return delete_environment(self, name, episodes=flag("episodes", episodes))

    # Maintenance

    def _show_newest(self) -> None:
        """Refresh after a commit; on failure warn, and keep showing the version before."""
        with afterwards(
            f"The change of {self.url} is committed", "This object shows the version before: call refresh()."
        ):
            self.refresh()

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
            StoreAccessError, ConcurrentCommitError: no segment was changed; call again.
        """
        from .store.rewrite.compaction import compact

        descending = flag("descending", descending)
        if descending and order_by is None:
            raise InvalidArgumentError("descending=True goes with order_by=..., which was not given.")
        with progress_meter(progress, "Compacting", "rows") as meter:
            report = compact(self.handle, segment_bytes, order_by, descending=descending, progress=meter)
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
            filter, parameters: as for `EpisodeView.filter`. Pages of the files that it reads are checked.
            dry_run: only say what would go.
            progress: True for a bar on the terminal, or a function called with the rows written so far and
                all rows.

        Raises:
            QueryError: the condition is not valid.
            CorruptStoreError: a file is damaged; nothing was changed.
            StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
        """
        from .store.rewrite.rewriting import delete

        dry_run = flag("dry_run", dry_run)
        if not dry_run:
            self.refresh()
        # What is deleted must not depend on a damaged page, which engines read unchecked.
        matches = self._with_checked_pages().filter(filter, parameters).episodes.select("episode_id")
        ids = collected(matches)["episode_id"].to_list()
        with progress_meter(progress, "Deleting", "rows") as meter:
            report = delete(self.handle, ids, dry_run=dry_run, progress=meter)
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
        from .readers.columns.cache_folder import CacheFolder
        from .readers.columns.mapped import forget_vacuumed
        from .store.vacuum import vacuum

        dry_run = flag("dry_run", dry_run)
        with progress_meter(progress, "Deleting", "files") as meter:
            report = vacuum(self.handle, older_than, dry_run=dry_run, progress=meter)
        if not dry_run:
            forget_vacuumed(self.context.snapshot, CacheFolder.of(None))
        return report

    def verify(
        self,
        *,
        repair: bool = False,
        progress: bool | Progress = False,
    ) -> VerifyReport:
        """Read everything in the newest version, and check it against everything else.

        Args:
            repair: recover journals of dead writers, mend the list of steps files after an operation that
                died, and delete unfinished files. All other faults stay.
            progress: True for a bar on the terminal, or a function called with the segments read so far and
                all of them.

        Raises:
            StoreAccessError: a file may not be read or cannot be reached.
        """
        from .readers.verification.inspection import verify

        repair = flag("repair", repair)
        with progress_meter(progress, "Reading", "segments") as meter:
            report = verify(self.handle, repair=repair, progress=meter)
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
            InvalidArgumentError: the name is invalid, or the version is not an integer.
            StoreExistsError: another version has this name.
            VersionNotFoundError: there is no such version, or it was vacuumed.
        """
        from .store.rewrite.operation import Operation
        from .store.tags import write_tag

        with Operation.begin(self.handle, "tag"):
            wanted = self.context.snapshot.version if version is None else version
            expect(is_integer(wanted), "version", version, "a whole number")
            snapshot = Snapshot(self.handle.layout, self.handle.manifest, wanted)
            snapshot.check_retained()
            write_tag(self.handle.layout, name, snapshot.version)

    def untag(self, name: str) -> None:
        """Take a tag away; its version is then retained no longer than others.

        Raises:
            VersionNotFoundError: there is no such tag.
        """
        from .store.tags import remove_tag

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
            StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
        """
        from .store.annotations.annotations import annotate_episodes, annotate_steps

        keys = (on,) if isinstance(on, str) else on
        step_keys = tuple(name for name, _ in self.handle.schema.step_keys)
        table = arrow_table(frame)
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
            StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
        """
        from .annotations.labels import label

        return label(self, episodes, labels)

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
            StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
        """
        from .annotations.mapping import map_episodes
        from .store.common.engines import Engine

        chosen = Engine.of(engine, workers)
        with progress_meter(progress, "Computing", "episodes") as meter:
            report = map_episodes(self, function, into, of, where, chosen, job_id, on_error, meter)
        self._show_newest()
        return report

    def drop_annotation(self, name: str) -> None:
        """Take an annotation away; older versions still show it.

        Raises:
            InvalidArgumentError: there is no such annotation; the message lists those that are.
            StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
        """
        from .store.annotations.annotations import drop_annotation

        drop_annotation(self.handle, name)
        self._show_newest()

    def rename(self, names: Mapping[str, str], *, progress: bool | Progress = False) -> None:
        """Rename your own columns: annotations, and recorded columns of steps.

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
            StoreAccessError, ConcurrentCommitError: nothing was changed, or a note of the error names the
                columns that have their new names: each kind of column has one commit. Call again with the
                others.
        """
        from .store.annotations.renaming import rename

        with progress_meter(progress, "Renaming", "rows") as meter:
            rename(self.handle, names, progress=meter)
        self._show_newest()

    def drop_columns(self, *names: str, progress: bool | Progress = False) -> None:
        """Remove columns that were recorded with steps: infos, policy outputs and columns of your own.

        Their segments are written anew, and `steps` keeps an empty column of the name. Older versions still
        have the values until `vacuum` deletes their files. Columns of observations, actions and rewards stay;
        `drop_annotation` removes an annotation.

        Args:
            names: as `steps` has them, such as "info.frame"; a nested column goes by its root.
            progress: True for a bar on the terminal, or a function called with the rows written so far and
                all rows.

        Raises:
            InvalidArgumentError: there is no such column; nothing was changed.
            CorruptStoreError: a file is damaged; nothing was changed.
            StoreAccessError, ConcurrentCommitError: call again; nothing was changed.
        """
        from .store.annotations.renaming import drop

        with progress_meter(progress, "Dropping", "rows") as meter:
            drop(self.handle, names, progress=meter)
        self._show_newest()

    def split(
        self,
        shares: Mapping[str, float] | None = None,
        by: str = "episode",
        seed: int = 0,
        name: str = "split",
        *,
        sizes: Sequence[int] | Mapping[str, int] | None = None,
    ) -> None:
        """Annotate every episode with the part that it belongs to.

        With `shares` the part follows from the key and the seed alone: call it again when episodes were
        added, and those that had a part keep it. Only in a store so small that a part would be empty, that
        part takes an episode of the largest one, which may go back when others come. With `sizes` the parts
        have exactly these sizes; a call after episodes were added may give some another part.

        Args:
            shares: the parts and their shares, which add up to 1, as in `{"train": 0.9, "val": 0.1}`.
            sizes: in place of shares, how many episodes each part has, as in `{"train": 20, "val": 10}`;
                of a list the parts are "0", "1" and so on. With another `by`, how many of its values.
                Episodes that are left have no part (NULL).
            by: what stays together: "episode", "run", or a column of episodes.
            seed: another seed gives another split.
            name: of the annotation.

        Raises:
            InvalidArgumentError: the shares, sizes or the column are not valid; or both or neither of shares
                and sizes are given.
        """
        from .annotations.labels import split

        split(self, shares, by, seed, name, sizes)


def created(store: StoreHandle, snapshot: Snapshot) -> EpisodeStore:
    """Return the store whose first version was read before it appeared."""
    snapshot.move(replace(store.layout, store_id=store.manifest.store_id))
    return EpisodeStore(snapshot.layout, store.manifest, snapshot)


def new_store(
    path: str | PathLike[str], manifest: Manifest, storage_options: Mapping[str, str] | None
) -> StoreHandle:
    """Return a new, empty store that a manifest describes."""
    layout = Layout.at(path, storage_options).of_store(manifest.store_id)
    # Its identity is checked by those who open it, once `store.json` is there.
    return StoreHandle(replace(layout, store_id=None), manifest)


def copy_views(
    views: Sequence[EpisodeView],
    into: str | PathLike[str],
    *,
    link: bool,
    storage_options: Mapping[str, str] | None,
    progress: Progress,
    encodings: Mapping[str, Video] | None = None,
) -> EpisodeStore:
    """Return a new store with the episodes of views of one store, one view after the other."""
    from .store.rewrite.merging import merge_stores

    snapshot = views[0].context.snapshot
    own = snapshot.layout.root
    if storage_options is None and str(into).partition("://")[0] == str(own).partition("://")[0]:
        storage_options = own.options
    manifest = snapshot.manifest.renewed()
    if encodings:
        manifest = with_encodings(manifest, encodings)
    target = new_store(into, manifest, storage_options)
    card = CardEntries.to_bytes(views[0].card) if views[0].card else None
    check_free(target.layout, copied=True)
    whole = created_atomically(target, card)
    selections = [view.selection() for view in views]
    snapshots: list[Snapshot] = []

    @contextlib.contextmanager
    def within() -> Iterator[None]:
        with whole:
            yield
            # Before the store appears: nothing fails afterwards.
            snapshots.append(Snapshot(target.layout, target.manifest))

    merge_stores(target, selections, link=link, progress=progress, within=within())
    return created(target, snapshots[-1])

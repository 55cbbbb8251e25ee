"""Settings of a contract for a format, and how its rules write and read sources."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from .. import EpisodeView
from ..importing.importing import ImportReport, import_dataset
from ..opening import EpisodeStore, open_store
from ..readers.exporting.export import target_formats
from ..readers.frames import collected
from ..store.common.exchange import find_format
from ..store.errors import EpisodelakeError
from ..writers.importing.formats import OPTIONAL, SPACES, source_formats
from .format_cases import Case, all_cases, write_episodes
from .format_compare import LOSSES, plain


class FormatSettings:
    """Settings of the contract of a format.

    Attributes:
        format: the name, as `format=` takes it.
        exports: the options of each kind of export; the rules about files use the first kind alone.
        wrong_options: of an export, which it refuses, each with words of the message.
        suffix: of the file that it writes or reads.
        arguments: of `import_dataset`, which every import of this format needs.
        cannot_hold: the parts of `LOSSES` that it may lose; a report that names another one fails.
        drops: those that sources of `write_source` have no place for, so that no report names them.
        stable_keys: whether an episode has the same name when its source is written again.
        refusals: errors of an import of values that the files cannot tell from others.
    """

    format: ClassVar[str]
    exports: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    wrong_options: ClassVar[Sequence[tuple[Mapping[str, Any], str]]] = ()
    suffix: ClassVar[str] = ""
    arguments: ClassVar[Mapping[str, Any]] = {}
    cannot_hold: ClassVar[Collection[str]] = LOSSES.keys()
    drops: ClassVar[Collection[str]] = ()
    stable_keys: ClassVar[bool] = True
    refusals: ClassVar[tuple[type[Exception], ...]] = ()

    def cases(self) -> Sequence[Case]:
        """Return the stores that a round trip goes through; a subclass may choose some of them."""
        return all_cases()

    def write_source(
        self, view: EpisodeView, target: Path, options: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, int]]:
        """Write a source of this format with the episodes of a view; by default, its own export.

        Args:
            view: the episodes.
            target: where nothing is.
            options: one of `exports`.

        Returns:
            The source, as `import_dataset` takes it, and the losses that were reported.

        Raises:
            DatasetError: the format cannot hold the episodes.
        """
        return target, view.export(target, format=self.format, **options).lost

    def read_export(
        self, target: Path, store: EpisodeStore, options: Mapping[str, Any]
    ) -> Iterable[Any] | None:
        """Return the episodes of an export as the library of the format reads them; None without one.

        Args:
            target: an export of the store.
            store: for its spaces.
            options: one of `exports`.

        Returns:
            An object for each episode, with the attributes of `Episode` that `PeerEpisode` names.
        """
        return None

    def sample(self) -> EpisodeStore:
        """Return a store of three episodes that the format can hold, for the rules about files."""
        return _sample().store()

    @property
    def writes(self) -> bool:
        """Whether it has an export."""
        return self.format in target_formats()

    @property
    def reader(self) -> str | None:
        """The name of the format that reads it; None if it cannot be imported."""
        format = find_format("sources", self.format)
        return None if format is None else format.name

    @property
    def sampled(self) -> bool:
        """Whether sources of chosen episodes can be written and read."""
        own = type(self).write_source is not FormatSettings.write_source
        return self.reader is not None and (self.writes or own)

    def sources(self, folder: Path) -> Iterator[Path]:
        """Yield files or folders of this format: the sample, for each kind of export; objects are none.

        A format whose sources a test cannot write overrides it, and yields some that others have written.
        """
        for number, options in enumerate(self.exports if self.sampled else ()):
            target = folder / f"{number}" / f"source{self.suffix}"
            target.parent.mkdir(parents=True)
            source, _ = self.write_source(self.sample(), target, options)
            if isinstance(source, Path):
                yield source

    @property
    def taken(self) -> Collection[str]:
        """The options of `OPTIONAL` that its import takes."""
        return getattr(source_formats()[self.reader or ""], "options", OPTIONAL)

    def written(self, view: EpisodeView, folder: Path, name: str = "source") -> Any:
        """Return the source of some episodes; what was at its place is deleted."""
        target = folder / f"{name}{self.suffix}"
        folder.mkdir(parents=True, exist_ok=True)
        delete(target)
        delete(target.with_name(f".{target.name}.episodelake-export.json"))
        return self.write_source(view, target, self.exports[0])[0]

    def imported(self, source: Any, into: Any, **given: Any) -> ImportReport:
        """Import a source of the sample into a store."""
        words: dict[str, Any] = {"last_observation": "missing", **self.arguments}
        if "spaces" in self.drops and not isinstance(into, EpisodeStore):
            words |= self.spaces_of(self.sample())
        return import_dataset(source, into, **{**words, **given})

    def spaces_of(self, store: EpisodeStore) -> dict[str, Any]:
        """Return the spaces of a store as arguments, if the import takes them."""
        return {name: getattr(store, name) for name in SPACES if name in self.taken}


def _sample() -> Case:
    episodes = [(3, True, False), (2, False, True), (4, True, False)]
    return Case("sample", lambda path: write_episodes(path, episodes=episodes))


def steps_of(store: EpisodeStore | Path | str) -> list[dict[str, Any]]:
    """Return the rows of all steps without the ids of their episodes, which no two imports share."""
    shown = store if isinstance(store, EpisodeStore) else open_store(store)
    return plain(collected(shown.steps.drop("episode_id")).to_dicts())


def rewards_of(store: EpisodeView | Path) -> list[list[float]]:
    """Return the rewards of each episode, by which those of a sample differ."""
    shown = open_store(store) if isinstance(store, Path) else store
    return [episode.rewards.tolist() for episode in shown]


def delete(path: Path) -> None:
    """Delete a file or folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_of(source: Path) -> list[Path]:
    """Return the files of a source, without the mark of an export."""
    files = [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file())
    return [each for each in files if each.name != ".episodelake-export.json"]


def copied(source: Path, folder: Path) -> Path:
    """Return a copy of a source below a folder, whose name is that of the source."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / source.name
    delete(target)
    return Path((shutil.copytree if source.is_dir() else shutil.copy)(source, target))


def check(condition: object, problem: str) -> None:
    """Fail with a problem unless a condition holds."""
    if not condition:
        raise AssertionError(problem)


@contextlib.contextmanager
def refused(
    problem: str, *words: str, kind: type[Exception] | tuple[type[Exception], ...] = EpisodelakeError
) -> Iterator[None]:
    """Fail unless the block raises an error whose message or notes have all of the words."""
    try:
        yield
    except kind as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        missing = [each for each in words if each not in text]
        check(not missing, f"{problem}: the error does not name {missing}: {text}")
    else:
        raise AssertionError(f"{problem}: no error")


@contextlib.contextmanager
def limited_files(size: int | None) -> Iterator[None]:
    """Let no file of the process grow beyond some bytes, as on a full disk; None for no limit."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Let the process open so many files more, and no others."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, limits[0]), limits[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

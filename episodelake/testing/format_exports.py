"""Rules of exports: whole or not at all, replacing exports only, outside stores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..opening import EpisodeStore, create
from ..readers.exporting.atomic import MARK
from ..readers.exporting.export import target_formats
from ..store.errors import DatasetError, InvalidArgumentError, StoreExistsError
from .format_base import FormatSettings, check, delete, files_of, limited_files, refused
from .format_cases import write_episodes
from .format_values import VECTOR


class ExportRules(FormatSettings):
    """Rules that a format's export keeps."""

    def test_an_export_is_whole_or_not_there(self, tmp_path: Path) -> None:
        """An interrupt, a full disk, `strict` and wrong options leave the target as it was, or empty."""
        if not self.writes:
            return
        target, view = self._target(tmp_path), self.sample()
        for standing in (False, True):
            if standing:
                self._export(view[:1], target)
            before = contents(tmp_path)
            for what, error, given in self._failures(view):
                try:
                    with limited_files(1 if what == "a full disk" else None):
                        self._export(view, target, overwrite=True, **given)
                except error:
                    check(contents(tmp_path) == before, f"{what} changes {changes(tmp_path, before)}")
                else:
                    raise AssertionError(f"{what}: no error")
        report = self._export(view, target, overwrite=True)
        check((report.episodes, report.steps) == (3, 9), f"{report}")
        own = [each.relative_to(target).as_posix() for each in files_of(target)] if target.is_dir() else None
        check(sorted(report.files) == sorted(own or [target.name]), f"{report.files} are not the files {own}")
        check(sorted(os.listdir(tmp_path)) == sorted(self._names(target)), f"{os.listdir(tmp_path)} is left")

    def _failures(self, view: EpisodeStore) -> list[tuple[str, Any, Mapping[str, Any]]]:
        def stop(done: int, total: int) -> None:
            raise KeyboardInterrupt

        failures: list[tuple[str, Any, Mapping[str, Any]]] = [
            ("an interrupt", KeyboardInterrupt, {"progress": stop}),
            ("an unknown option", InvalidArgumentError, {"no_option": 1}),
            ("a full disk", (OSError, DatasetError), {}),
        ]
        if self.strict_fails(view):
            failures.append(("strict", DatasetError, {"strict": True}))
        return failures

    def strict_fails(self, view: EpisodeStore) -> bool:
        """Return whether an export of a view loses something, which `strict=True` refuses."""
        return bool(self._losses(view))

    def _losses(self, view: EpisodeStore) -> Mapping[str, int]:
        folder = view.path.parent / f"lost-{type(self).__name__}-{self.format}"
        target = self._target(folder)
        try:
            return self._export(view, target).lost
        finally:
            delete(folder)

    def test_what_has_no_transition_is_not_written(self, tmp_path: Path) -> None:
        """An empty view is refused, and names its filter; a report counts what the export has."""
        if not self.writes:
            return
        store, target = self.sample(), self._target(tmp_path)
        with refused("a store without episodes", "no episode to export", kind=InvalidArgumentError):
            empty = create(tmp_path / "empty", observation_space=VECTOR, action_space=VECTOR)
            self._export(empty, target)
        for view in (store.filter("length > 50"), store.filter("length > 50", parameters=[])):
            with refused("an empty view", "of 3 episodes none has length > 50", kind=InvalidArgumentError):
                self._export(view, target)
        check(not target.exists(), "an export of nothing is there")
        missing = {"last_observation": "missing"}
        lengths = [(1, True, False), (3, True, False)]
        short = write_episodes(tmp_path / "short", facts=lambda index, length: missing, episodes=lengths)
        report = self._export(short, target)
        counts, lost = (
            (report.episodes, report.steps),
            [each for each in report.lost if "last transition" in each],
        )
        check(counts == ((1, 2) if lost else (2, 4)), f"{report}")
        delete(target)
        delete(target.with_name(f".{target.name}{MARK}"))
        if lost:
            with refused("one transition", "can hold none of the 1 episodes", kind=DatasetError):
                self._export(short[:1], target)
            check(not target.exists(), "an export of nothing is there")
        else:
            check(self._export(short[:1], target).steps == 1, "one transition is not written")

    def test_wrong_options_are_refused(self, tmp_path: Path) -> None:
        """Before anything is written, with the option and what is expected."""
        for options, words in self.wrong_options if self.writes else ():
            with refused(f"{dict(options)}", words, kind=InvalidArgumentError):
                self._export(self.sample(), self._target(tmp_path), **options)
            check(os.listdir(tmp_path) == [], f"{dict(options)}: {os.listdir(tmp_path)} is left")

    def test_an_export_replaces_exports_alone(self, tmp_path: Path) -> None:
        """Anything else at the target stays as it is, and the message names it."""
        if not self.writes:
            return
        target, view = self._target(tmp_path), self.sample()
        for name, (stand, words) in _STANDING.items():
            stand(target)
            before = contents(tmp_path)
            for overwrite in (False, True):
                with refused(name, words if overwrite else "overwrite=True", kind=StoreExistsError):
                    self._export(view, target, overwrite=overwrite)
                check(contents(tmp_path) == before, f"{name}: {changes(tmp_path, before)} changed")
            for each in tmp_path.iterdir():
                delete(each)
        self._export(view, target)
        (target / MARK if target.is_dir() else target.with_name(f".{target.name}{MARK}")).unlink()
        before = contents(tmp_path)
        with refused("an export without its mark", str(target), kind=StoreExistsError):
            self._export(view, target, overwrite=True)
        check(contents(tmp_path) == before, f"without a mark: {changes(tmp_path, before)} changed")
        for each in tmp_path.iterdir():
            delete(each)
        for view in (self.sample(), self.sample()[:2]):
            self._export(view, target, overwrite=True)
            check(
                sorted(os.listdir(tmp_path)) == sorted(self._names(target)),
                "an export leaves files beside it",
            )

    def test_what_appears_during_an_export_stays(self, tmp_path: Path) -> None:
        """A file that another program writes to the target meanwhile, with `overwrite` or without."""
        if not self.writes:
            return
        target, view = self._target(tmp_path), self.sample()

        def write(done: int, total: int) -> None:
            target.write_text("mine")

        for overwrite in (False, True):
            with refused("a file that appears", str(target), kind=StoreExistsError):
                self._export(view, target, overwrite=overwrite, progress=write)
            check(target.read_text() == "mine", "an export replaces a file that appeared meanwhile")
            target.unlink()
        check(os.listdir(tmp_path) == [], f"{os.listdir(tmp_path)} is left")

    def test_an_export_stays_outside_stores(self, tmp_path: Path) -> None:
        """Its own store, the folder around it, a file in it, and the folders of another store are refused."""
        if not self.writes:
            return
        store = write_episodes(tmp_path / "all" / "store")
        other = write_episodes(tmp_path / "other")
        (tmp_path / "link").symlink_to(store.path)
        before = contents(tmp_path)
        own = (store.path, tmp_path / "all", store.path / "out", tmp_path / "link")
        for target in (*own, other.path / "below" / "out"):
            with refused(f"an export to {target}", kind=(InvalidArgumentError, StoreExistsError)):
                self._export(store, target, overwrite=True)
        with refused("another store", "is the store", kind=StoreExistsError):
            self._export(store, other.path, overwrite=True)
        check(contents(tmp_path) == before, f"{changes(tmp_path, before)} changed")
        team = write_team(tmp_path / "team")
        if not target_formats()[self.format].agents:
            with refused("several agents", "a, b", kind=DatasetError):
                self._export(team, tmp_path / "out")

    def _target(self, folder: Path) -> Path:
        return folder / f"out{self.suffix}"

    def _export(self, view: Any, target: Path, **given: Any) -> Any:
        return view.export(target, format=self.format, **{**self.exports[0], **given})

    def _names(self, target: Path) -> list[str]:
        return [target.name] if target.is_dir() else [target.name, f".{target.name}{MARK}"]


def write_team(path: Path) -> EpisodeStore:
    """Create a store of two agents with an episode."""
    store = create(path, agents={"a": (VECTOR, VECTOR), "b": (VECTOR, VECTOR)})
    zero = VECTOR.sample() * 0
    both = {"a": zero, "b": zero}
    with store.team_writer() as writer:
        episode = writer.begin(both)
        episode.append(both, {"a": 1.0, "b": 1.0}, both)
        episode.end()
    return store.refresh()


def contents(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a folder, and where links lead."""
    return {
        str(each.relative_to(folder)): os.readlink(each)
        if each.is_symlink()
        else hashlib.sha256(each.read_bytes()).hexdigest()
        for each in sorted(folder.rglob("*"))
        if each.is_symlink() or each.is_file()
    }


def changes(folder: Path, before: Mapping[str, str]) -> list[str]:
    """Return the files that are not as they were."""
    return sorted(name for name, _ in {*contents(folder).items()} ^ {*before.items()})


def _folder(at: Path) -> None:
    (at / "thesis").mkdir(parents=True)
    (at / "thesis" / "final.tex").write_text("x")


def _link(at: Path) -> None:
    _folder(at.with_name("elsewhere"))
    at.symlink_to(at.with_name("elsewhere"))


#: What stands at a target, and how a message names it.
_STANDING: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder of files": (_folder, "is a folder that no export wrote"),
    "a file": (lambda at: at.write_text("a,b\n1,2\n"), "is a file of 8 bytes that no export wrote"),
    "a link to a folder": (_link, "is a link to "),
    "a link to nothing": (lambda at: at.symlink_to("nowhere"), "is a link to nowhere"),
    "a pipe": (os.mkfifo, "is no ordinary file or folder"),
}

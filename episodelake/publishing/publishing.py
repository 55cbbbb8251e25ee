"""`publish`: a view becomes an immutable version at a target, whole or not at all.

A folder gets the version by one rename. An object store gets `store.json` last, and readers open
no store without it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

import polars as pl

from ..readers.context import SqlCondition
from ..readers.publish_report import PublishReport
from ..readers.view import EpisodeView
from ..store.card import plain
from ..store.common.arguments import flag
from ..store.common.progress import Progress, progress_meter
from ..store.errors import CorruptStoreError, InvalidArgumentError, StoreAccessError, StoreExistsError
from ..store.files import Place, guard_access, is_absent, locate
from ..store.files.local import LocalPlace
from ..store.layout import MANIFEST, checked_json, read_json
from ..store.manifest import UNFINISHED, card_bytes, check_outside_stores
from .building import build
from .contents import (
    CHECKSUMS,
    Contents,
    KnownFile,
    check_tag,
    digest_of,
    place_of,
    remove_unfinished,
    temporary_folder,
)
from .hub import SCHEME, publish_to_hub, refuse_options
from .published import note_target
from .versions import Version, in_order, is_retired, locked, published_versions

#: Smaller files are written again rather than shared with an earlier version.
_SHARED_BYTES = 1 << 16


def publish_view(
    view: EpisodeView,
    target: str | PathLike[str],
    tag: str,
    *,
    where: pl.Expr | str | SqlCondition | None = None,
    card: Mapping[str, Any] | None = None,
    private: bool | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: bool | Progress = False,
) -> PublishReport:
    """Publish a view; see `EpisodeView.publish`."""
    tag, dry_run = check_tag(tag), flag("dry_run", dry_run)
    chosen = view if where is None else view.filter(where)
    if not len(chosen):
        raise InvalidArgumentError(f"There is no episode to publish in {chosen!r}.")
    card_bytes(added := {} if card is None else card)
    whole_card = json.loads(json.dumps(plain({**view.card, **added})))
    card_bytes(whole_card)
    store = view.context.snapshot.layout.root
    if str(target).startswith(SCHEME):
        refuse_options(str(target), storage_options)
        note = partial(note_target, store, str(target))
        with progress_meter(progress, "Publishing", "rows") as tell:
            return publish_to_hub(
                chosen,
                str(target),
                tag,
                whole_card,
                private=private,
                dry_run=dry_run,
                tell=tell,
                note=note,
            )
    if private is not None:
        raise InvalidArgumentError(
            "private= is for the Hugging Face Hub; a folder or an object store has permissions of its own."
        )
    root = locate(target, storage_options)
    if root.local is not None:
        check_outside_stores(root.local)
    with progress_meter(progress, "Publishing", "rows") as tell:
        publication = _Publication(chosen, root, tag, whole_card, tell)
        if dry_run:
            return publication.rehearsed()
        return publication.to_folder() if root.local is not None else publication.to_objects()


@dataclass
class _Publication:
    view: EpisodeView
    root: Place
    tag: str
    card: Mapping[str, Any]
    tell: Progress
    earlier: Sequence[Version] = ()

    def rehearsed(self) -> PublishReport:
        """Build the version elsewhere, and say what would be sent."""
        known = self._checked_target()
        with self._built() as (_, contents):
            sent = [file for file in contents.files.values() if file.sha256 not in known]
            return contents.report(self._address, sent)

    def to_folder(self) -> PublishReport:
        """Build the version beside its place, and rename it."""
        folder = self.root.local
        assert folder is not None
        # Before anything is made there, and again when no other process publishes there.
        self._checked_target()
        with locked(folder):
            known = self._checked_target()
            stage = folder / f".{self.tag}.unfinished"
            remove_unfinished(stage)
            contents = self._build(LocalPlace(stage))
            shared = self._share(LocalPlace(stage), contents, known)
            self._note()
            with guard_access("publish", folder):
                os.rename(stage, folder / self.tag)
                self.root.sync()
        sent = [file for name, file in contents.files.items() if name not in shared]
        return contents.report(self._address, sent)

    def to_objects(self) -> PublishReport:
        """Build the version here, upload its files, and `store.json` last."""
        known = self._checked_target()
        version = self.root / self.tag
        with self._built() as (built, contents):
            claim = {"contents": digest_of([replace(contents, moment=None).to_bytes()]).sha256}
            with guard_access("publish", version):
                self._claim(version / UNFINISHED, claim)
                there = {entry.name: entry.size for entry in version.entries(deep=True)}
                sent = []
                for name, file in contents.files.items():
                    if name == MANIFEST or (_names_content(name, file) and there.get(name) == file.size):
                        continue
                    copied = known.get(file.sha256)
                    if copied is None or _size_of(copied) != file.size:
                        sent.append(file)
                        copied = place_of(built, name)
                    place_of(version, name).copy_from(copied)
                (version / CHECKSUMS).write(contents.to_bytes())
                manifest = (built / MANIFEST).read()
                self._note()
                if is_retired(version):
                    raise self._taken()
                with contextlib.suppress(FileExistsError):
                    (version / MANIFEST).write(manifest, exclusive=True)
                if (version / MANIFEST).read() != manifest:
                    raise self._taken()
                (version / UNFINISHED).remove()
        return contents.report(self._address, [*sent, contents.files[MANIFEST]])

    @property
    def _address(self) -> str:
        return f"{self.root}@{self.tag}"

    def _checked_target(self) -> dict[str, Place]:
        """Refuse a target that is no place for this version; return its large files by their SHA-256."""
        versions, others = published_versions(self.root)
        if others:
            raise StoreExistsError(
                f"{self.root} holds other things than published versions: {', '.join(others[:5])}. Nothing "
                "was changed; publish to a path of its own."
            )
        if self.tag.casefold() in (version.tag.casefold() for version in versions):
            raise self._taken()
        known = {}
        self.earlier = in_order(versions)
        # A damaged version is no reason not to publish another; its files are not shared.
        for version in self.earlier:
            for name, file in ({} if version.contents is None else version.contents.files).items():
                # The date of `store.json` is that of versions of early releases.
                if file.size >= _SHARED_BYTES and name != MANIFEST:
                    known[file.sha256] = place_of(version.place, name)
        return known

    def _note(self) -> None:
        note_target(self.view.context.snapshot.layout.root, str(self.root))

    def _taken(self) -> StoreExistsError:
        before = "" if self.root.local is not None else ", or had one that was taken back"
        return StoreExistsError(
            f"{self.root} has a version {self.tag!r} already{before}. A published version never changes: "
            "choose another tag."
        )

    @contextlib.contextmanager
    def _built(self) -> Iterator[tuple[Place, Contents]]:
        with temporary_folder("publish") as place:
            yield place, self._build(place)

    def _build(self, folder: Place) -> Contents:
        # The folder of a version may move, and its path is private.
        address = f"path/to/{self.tag}" if self.root.local is not None else f"{self.root}/{self.tag}"
        earlier = [version.contents for version in self.earlier if version.contents is not None]
        return build(self.view, folder, self.card, self.tag, address, self.tell, earlier)

    def _share(self, stage: Place, contents: Contents, known: Mapping[str, Place]) -> set[str]:
        """Replace files that an earlier version has by links to these, if they are intact."""
        shared = set()
        for name, file in contents.files.items():
            earlier = known.get(file.sha256)
            with guard_access("share a file with an earlier version", earlier):
                if earlier is not None and _is_intact(earlier, file):
                    place_of(stage, name).remove()
                    place_of(stage, name).copy_from(earlier, link=True)
                    shared.add(name)
        return shared

    def _claim(self, mark: Place, claim: Mapping[str, str]) -> None:
        """Reserve the version for these contents; an earlier call with the same ones is continued."""
        try:
            mark.write(checked_json(claim), exclusive=True)
        except FileExistsError:
            try:
                there = read_json(mark)
            except StoreAccessError as error:
                # The other publisher has just finished.
                if is_absent(error) and (mark.parent / MANIFEST).exists():
                    raise self._taken() from error
                raise
            if is_retired(mark.parent):
                raise self._taken() from None
            if there != claim:
                raise StoreExistsError(
                    f"{mark.parent} holds an unfinished publication of other contents. "
                    "Choose another tag, or delete what is there if no process is publishing it."
                ) from None
        # Another one may have finished, and freed the mark, since the target was checked.
        if (mark.parent / MANIFEST).exists():
            mark.remove()
            raise self._taken()


def _names_content(name: str, file: KnownFile) -> bool:
    """Return whether the name of a file has its digest, so that a file of the name and size is the same."""
    return file.sha256[:32] in name


def _size_of(place: Place) -> int | None:
    try:
        return place.size()
    except FileNotFoundError:
        return None


def _is_intact(place: Place, file: KnownFile) -> bool:
    try:
        return digest_of(place.chunks()) == file
    except (FileNotFoundError, NotADirectoryError, CorruptStoreError):
        return False

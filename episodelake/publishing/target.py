"""Versions in a folder or a prefix of an object store: each is a store in a folder named by its tag.

A version's files are written first and `store.json` last, and readers open no store without it. Until then
`store.unfinished` reserves the tag for these contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike

from ..errors import (
    CorruptStoreError,
    InvalidArgumentError,
    StoreExistsError,
    StoreNotFoundError,
    VersionNotFoundError,
)
from ..plugin import Layout
from ..plugin.files import LocalPlace, Place, afterwards, check_outside_stores, is_file, visible_step
from .contents import CHECKSUMS, Contents, Source, digest_of, place_of
from .hub import SCHEME, Repository


@dataclass(frozen=True)
class PlaceTarget:
    """A folder or a prefix of an object store, with versions below it."""

    root: Place

    def __str__(self) -> str:
        """Return its address."""
        return str(self.root)

    def opened_at(self, tag: str) -> str:
        """Return what opens a version, for its README; a folder may move, and its path is private."""
        return f"path/to/{tag}" if self.root.local is not None else f"{self.root}/{tag}"

    def check_free(self, tag: str, *, private: bool | None) -> None:
        """Refuse a target that has the tag, or other things than versions.

        Raises:
            StoreExistsError: it does; nothing was changed.
            InvalidArgumentError: it lies in a store, or `private` is given.
        """
        if private is not None:
            raise InvalidArgumentError(
                "private= is for the Hugging Face Hub; a folder or an object store has its own permissions."
            )
        if self.root.local is not None:
            check_outside_stores(self.root.local)
        tags, others = self._listed()
        if others:
            raise StoreExistsError(
                f"{self.root} holds other things than published versions: {', '.join(others[:5])}. Nothing "
                "was changed; publish to a path of its own."
            )
        if tag.casefold() in map(str.casefold, tags):
            raise self._taken(tag)

    def send(self, built: LocalPlace, contents: Contents, *, private: bool | None) -> None:
        """Write a version that was built on this machine; what an earlier call has written is not sent again.

        Raises:
            StoreExistsError: the tag is taken, or reserved for other contents.
            StoreAccessError: the target cannot be written; call again.
        """
        version = self.root / contents.tag
        change = f"The version {self.root}@{contents.tag} is published"
        self.root.make_folder()
        version.make_folder()
        self._claim(version, contents)
        there = {entry.name: entry.size for entry in version.entries(deep=True)}
        for name, file in contents.files.items():
            # Files are written as a whole, and the claim is for these contents alone.
            if name != Layout.MANIFEST and there.get(name) != file.size:
                place = place_of(version, name)
                place.parent.make_folder()
                place.write(place_of(built, name).chunks())
        (version / CHECKSUMS).write(contents.to_bytes())
        manifest = (built / Layout.MANIFEST).read()
        with visible_step(change):
            try:
                (version / Layout.MANIFEST).write(manifest, exclusive=True)
            except FileExistsError:
                if (version / Layout.MANIFEST).read() != manifest:
                    raise self._taken(contents.tag) from None
        with afterwards(change, f"{version / Layout.UNFINISHED} is no longer needed and may be deleted."):
            (version / Layout.UNFINISHED).remove()

    def _claim(self, version: Place, contents: Contents) -> None:
        """Reserve the tag for some contents; an earlier call with the same ones is continued."""
        mark = version / Layout.UNFINISHED
        claim = {"contents": digest_of([replace(contents, moment=0).to_bytes()]).sha256}
        try:
            mark.write(Layout.json_bytes(claim), exclusive=True)
        except FileExistsError:
            try:
                there = Layout.read_json(mark)
            except FileNotFoundError as error:
                # The other publisher has just finished.
                if (version / Layout.MANIFEST).exists():
                    raise self._taken(contents.tag) from error
                raise
            if there != claim:
                raise StoreExistsError(
                    f"{version} holds an unfinished publication of other contents. Choose another tag, or "
                    "delete what is there if no process is publishing it."
                ) from None
        # Another one may have finished, and freed the mark, since the target was checked.
        if (version / Layout.MANIFEST).exists():
            mark.remove()
            raise self._taken(contents.tag)

    def versions(self) -> Mapping[str, Contents | None]:
        """Return the published versions by their tags; None where the list of files is damaged.

        Raises:
            StoreExistsError: it is a file or a store.
            StoreAccessError: it cannot be read.
        """
        known: dict[str, Contents | None] = {}
        for tag in self._listed()[0]:
            try:
                known[tag] = Contents.read(self.root / tag)
            except CorruptStoreError:
                known[tag] = None
        return known

    def source(self, tag: str | None) -> Source:
        """Return a version: that of a tag, or the one published last; the target itself, if it is one.

        Raises:
            StoreNotFoundError, VersionNotFoundError: there is none; the message lists those that are.
            CorruptStoreError: its list of files is damaged, or names a file that no version has.
        """
        place = self._chosen(tag)
        return Source(str(place), Contents.read(place), lambda name: place_of(place, name).chunks())

    def _chosen(self, tag: str | None) -> Place:
        names = self.root.names()
        if Layout.MANIFEST in names:
            if CHECKSUMS not in names:
                raise StoreNotFoundError(
                    f"{self.root} is a store that was not published: it has no {CHECKSUMS}. Open it, or copy "
                    "it with EpisodeStore.copy."
                )
            if tag is not None and self.root.name != tag:
                raise VersionNotFoundError(f"{self.root} is one version; version={tag!r} is none of its.")
            return self.root
        try:
            tags, others = self._listed()
        except StoreExistsError as error:
            raise StoreNotFoundError(str(error)) from error
        if not tags:
            there = f", which holds {', '.join(others[:5])}" if others else ""
            raise StoreNotFoundError(
                f"Nothing is published at {self.root}{there}. Publish with EpisodeStore.publish."
            )
        if tag is not None and tag not in tags:
            raise VersionNotFoundError(
                f"There is no version {tag!r} at {self.root}; there are {', '.join(tags)}."
            )
        return self.root / (newest(self.versions()) if tag is None else tag)

    def _listed(self) -> tuple[list[str], list[str]]:
        """Return the tags, and the names of other things; hidden and unfinished ones are neither."""
        tags, others = [], []
        if self.root.local is not None and is_file(self.root.local):
            raise StoreExistsError(
                f"{self.root} is a file; expected a folder of published versions, or nothing."
            )
        folders, _ = self.root.listed()
        names = self.root.names()
        if Layout.MANIFEST in names:
            raise StoreExistsError(
                f"{self.root} is a store, not a folder of published versions. Choose another."
            )
        for name in (each for each in names if not each.startswith(".")):
            inside = (self.root / name).names() if name in folders else [""]
            if {Layout.MANIFEST, CHECKSUMS} <= {*inside}:
                tags.append(name)
            elif Layout.UNFINISHED not in inside and not all(each.startswith(".") for each in inside):
                others.append(name)
        return tags, others

    def _taken(self, tag: str) -> StoreExistsError:
        return StoreExistsError(
            f"{self.root} has a version {tag!r} already. A published version never changes: choose another "
            "tag."
        )


def newest(versions: Mapping[str, Contents | None]) -> str:
    """Return the tag of the version that was published last."""
    return max(versions, key=lambda tag: (getattr(versions[tag], "moment", 0), tag))


def target_of(
    address: str | PathLike[str], storage_options: Mapping[str, str] | None
) -> PlaceTarget | Repository:
    """Return where versions are published.

    Raises:
        InvalidArgumentError: it is no address, or has a tag in it.
    """
    if not str(address).startswith(SCHEME):
        return PlaceTarget(Layout.at(address, storage_options).root)
    repository, tag = Repository.of(str(address), storage_options)
    if tag is not None:
        raise InvalidArgumentError(f"{address}: give the tag as tag={tag!r}.")
    return repository

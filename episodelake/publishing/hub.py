"""`hf://org/name@tag`: a version is a commit with a tag in a dataset of the Hugging Face Hub.

The tree of the commit is the version. A publication sends the files that the newest commit lacks, then makes
one commit on top of it, and the tag. If it is cut short between the two, the next call adds the tag.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..readers.publish_report import PublishReport
from ..readers.view import EpisodeView
from ..store.common.optional_packages import require
from ..store.common.progress import Progress
from ..store.errors import (
    ConcurrentCommitError,
    CorruptStoreError,
    EpisodelakeError,
    InvalidArgumentError,
    StoreAccessError,
    StoreExistsError,
    StoreNotFoundError,
    StoreUnavailableError,
    VersionNotFoundError,
)
from ..store.files.access import access_class, error_text
from ..store.files.place import CHUNK_BYTES
from ..store.layout import parse_json
from .building import build
from .contents import CHECKSUMS, Contents, KnownFile, check_tag, temporary_folder

SCHEME = "hf://"
_ADDRESS = re.compile(
    r"hf://(?:datasets/)?([\w-][\w.-]*/[\w-][\w.-]*)(?:@([A-Za-z0-9][A-Za-z0-9._-]*))?", re.A
)
MAIN = "main"
ORGANISATION = re.compile(r"[\w-][\w.-]*", re.A)
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ATTEMPTS = 5
_LARGEST_LIST = 64 << 20
_HINTS = {
    401: "the Hub does not accept your token; log in again (`hf auth login`), or set HF_TOKEN. ",
    403: "your token does not give this right; writing needs a token with write access to it. ",
}
_REFUSED = (402, 403, 413, 507)
_FULL = re.compile(r"storage|quota|limit", re.IGNORECASE)
_FULL_HINT = "its owner has no room left; make room on the Hub, or publish elsewhere. "
_DATASET: dict[str, Any] = {"repo_type": "dataset"}


def refuse_options(address: str, storage_options: Mapping[str, str] | None) -> None:
    """Refuse `storage_options` for the Hub.

    Raises:
        InvalidArgumentError: there are some.
    """
    if storage_options:
        raise InvalidArgumentError(
            f"{address}: storage_options= is for object stores. The Hub takes its token from HF_TOKEN or "
            "`hf auth login`, and its address from HF_ENDPOINT."
        )


def publish_to_hub(
    view: EpisodeView,
    address: str,
    tag: str,
    card: Mapping[str, Any],
    *,
    private: bool | None,
    dry_run: bool,
    tell: Progress,
    note: Callable[[], None],
) -> PublishReport:
    """Publish a view as a version of a dataset; see `EpisodeView.publish`.

    `note` is called before the version can be seen.
    """
    repository, inside = Repository.of(address)
    if inside is not None:
        raise InvalidArgumentError(f"{address}: give the tag as tag={inside!r}.")
    if tag == MAIN or COMMIT.fullmatch(tag):
        raise InvalidArgumentError(f"{tag!r} names a branch or a commit on the Hub. Choose another tag.")
    earlier = repository.newest(tag)
    with temporary_folder("publish") as folder:
        contents = build(
            view, folder, card, tag, f"{repository}@{tag}", tell, () if earlier is None else [earlier]
        )
        if dry_run:
            sent = _missing(contents, earlier)
        else:
            repository.create(private)
            note()
            commit, sent = repository.commit(folder.local, contents, f"Publish {tag}")
            repository.tag(tag, commit)
    return contents.report(f"{repository}@{tag}", sent.values())


@dataclass(frozen=True)
class Repository:
    """A dataset of the Hub.

    Attributes:
        name: organisation or user, and name.
    """

    name: str

    def __str__(self) -> str:
        """Return its address."""
        return f"{SCHEME}{self.name}"

    @staticmethod
    def of(address: str, storage_options: Mapping[str, str] | None = None) -> tuple[Repository, str | None]:
        """Return the dataset of an address, and the tag in it.

        Raises:
            InvalidArgumentError: it is none, or there are options, which the Hub has no use for.
        """
        refuse_options(address, storage_options)
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise InvalidArgumentError(
                f"{address!r:.200}: expected hf://organisation/name, or with @tag behind it."
            )
        return Repository(match[1]), match[2]

    @cached_property
    def _hub(self) -> Any:
        for module in ("huggingface_hub.errors", "huggingface_hub.utils"):
            require(module, f"{self}", "'episodelake[hub]'")
        return require("huggingface_hub", f"{self}", "'episodelake[hub]'")

    @property
    def _api(self) -> Any:
        return self._hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="episodelake")

    def exists(self) -> bool:
        """Return whether there is such a dataset that this user may see."""
        with self._guarded("look for"):
            return bool(self._api.repo_exists(self.name, **_DATASET))

    def create(self, private: bool | None) -> None:
        """Make the dataset, unless it is there."""
        with self._guarded("create"):
            self._api.create_repo(self.name, private=private, exist_ok=True, **_DATASET)

    def commit_of(self, revision: str) -> tuple[str, list[str]]:
        """Return the commit of a tag or branch, and the names of its files.

        Raises:
            StoreNotFoundError, VersionNotFoundError: there is no such dataset or revision.
        """
        with self._guarded(f"find {revision!r} in"):
            info = self._api.repo_info(self.name, revision=revision, **_DATASET)
        # Becomes part of paths.
        if not COMMIT.fullmatch(str(info.sha)):
            raise StoreAccessError(f"Could not find {revision!r} in {self}: {info.sha!r:.100} is no commit.")
        return str(info.sha), [each.rfilename for each in info.siblings or ()]

    def newest(self, tag: str) -> Contents | None:
        """Return the newest version, if there is one, before another is published.

        Raises:
            StoreExistsError: the tag is taken, or the dataset has other content.
        """
        if not self.exists():
            return None
        with contextlib.suppress(VersionNotFoundError):
            self.commit_of(tag)
            raise self._taken(tag)
        return self.head()[1]

    def versions(self) -> dict[str, Contents | None]:
        """Return the published versions by their tags; None where the list of files is damaged."""
        with self._guarded("list the versions of"):
            tags = [ref.name for ref in self._api.list_repo_refs(self.name, **_DATASET).tags]
        known: dict[str, Contents | None] = {}
        for tag in tags:
            try:
                contents = self.contents(check_tag(tag))
                known |= {tag: contents} if contents.tag == tag else {}
            except CorruptStoreError:
                known[tag] = None
            except (InvalidArgumentError, StoreNotFoundError):
                pass  # a tag of something else
        return known

    def head(self) -> tuple[str, Contents | None, set[str]]:
        """Return the newest commit, the version that it is, and its files; None for an empty dataset.

        Raises:
            StoreExistsError: it has other content.
        """
        commit, names = self.commit_of(MAIN)
        files = {name for name in names if not name.startswith(".")}
        contents = self.contents(commit) if CHECKSUMS in files else None
        others = files - {CHECKSUMS} - set(contents.files if contents is not None else ())
        if others:
            raise StoreExistsError(
                f"{self} holds other things than a published version: {', '.join(sorted(others)[:5])}. "
                "Nothing was changed; publish to a dataset of its own."
            )
        return commit, contents, files

    def contents(self, commit: str) -> Contents:
        """Return the list of the files of a version.

        Raises:
            StoreNotFoundError: the commit is no published version.
            CorruptStoreError: the list is damaged, or names a file that no version has.
        """
        data = b""
        for piece in self.chunks(commit, CHECKSUMS):
            data += piece
            if len(data) > _LARGEST_LIST:
                break
        place = f"{self}/{CHECKSUMS}"
        return Contents.of(parse_json(data, place), place)

    def chunks(self, commit: str, name: str) -> Iterator[bytes]:
        """Yield a file of a commit in pieces."""
        utils = self._hub.utils
        url = f"{self._api.endpoint}/datasets/{self.name}/resolve/{commit}/{name}"
        headers = utils.build_hf_headers(library_name="episodelake")
        with (
            self._guarded(f"read {name} of"),
            utils.get_session().stream("GET", url, headers=headers, follow_redirects=True) as answer,
        ):
            utils.hf_raise_for_status(answer)
            yield from answer.iter_bytes(CHUNK_BYTES)

    def commit(
        self, folder: Path, contents: Contents | None, message: str, instead_of: str | None = None
    ) -> tuple[str, dict[str, KnownFile]]:
        """Make the files of a folder the newest commit; return it, and the files that were sent.

        Without `contents` it is a commit without files. If `instead_of` is given and the newest commit is
        another version than that, it stays.

        Raises:
            StoreExistsError: the dataset got other content meanwhile.
            ConcurrentCommitError: others committed first each time.
        """
        hub = self._hub
        for _ in range(_ATTEMPTS):
            parent, known, files = self.head()
            other = instead_of is not None and (known is None or known.tag != instead_of)
            if other or (contents is not None and known == contents):
                return parent, {}
            new = {} if contents is None else _missing(contents, known)
            names = () if contents is None else (*contents.files, CHECKSUMS)
            # All of them, whatever the list of the parent says: the Hub asks for those that it lacks.
            additions = [
                hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(folder / name))
                for name in names
            ]
            with self._guarded("upload to"), hub.utils.disable_progress_bars():
                self._api.preupload_lfs_files(self.name, additions, **_DATASET)
            operations = [
                *additions,
                *(hub.CommitOperationDelete(path_in_repo=name) for name in sorted(files.difference(names))),
            ]
            with self._guarded("publish to"), hub.utils.disable_progress_bars():
                try:
                    made = self._api.create_commit(
                        self.name,
                        operations,
                        commit_message=message,
                        parent_commit=parent,
                        **_DATASET,
                    )
                    return str(made.oid), new
                except hub.errors.HfHubHTTPError as error:
                    if _status(error) != 412:
                        raise
        raise ConcurrentCommitError(
            f"Others committed to {self} first, {_ATTEMPTS} times in a row. Call again."
        )

    def tag(self, tag: str, commit: str) -> None:
        """Give a commit a tag.

        Raises:
            StoreExistsError: another commit has it.
        """
        with self._guarded("tag"):
            try:
                self._api.create_tag(self.name, tag=tag, revision=commit, **_DATASET)
            except self._hub.errors.HfHubHTTPError as error:
                if _status(error) != 409:
                    raise
                if self.commit_of(tag)[0] != commit:
                    raise self._taken(tag) from error

    def remove_tag(self, tag: str) -> None:
        """Remove a tag.

        Raises:
            VersionNotFoundError: there is none.
        """
        with self._guarded(f"remove {tag!r} from"):
            self._api.delete_tag(self.name, tag=tag, **_DATASET)

    def _taken(self, tag: str) -> StoreExistsError:
        return StoreExistsError(
            f"{self} has a version {tag!r} already, and a published version never changes."
        )

    @contextlib.contextmanager
    def _guarded(self, action: str) -> Iterator[None]:
        errors = self._hub.errors
        try:
            yield
        except errors.GatedRepoError as error:
            raise StoreAccessError(
                f"Could not {action} {self}: it is gated. Ask for access at {self._api.endpoint}/datasets/"
                f"{self.name}, wait until it is granted, and log in (`hf auth login`, or HF_TOKEN)."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise StoreNotFoundError(
                f"Could not {action} {self}: there is no such dataset, or it is private and you are not "
                "logged in with access to it (`hf auth login`, or HF_TOKEN)."
            ) from error
        except errors.RevisionNotFoundError as error:
            raise VersionNotFoundError(f"Could not {action} {self}: there is no such version.") from error
        except errors.EntryNotFoundError as error:
            raise StoreNotFoundError(f"Could not {action} {self}: there is no such file.") from error
        except errors.HFValidationError as error:
            raise InvalidArgumentError(f"{self} cannot be a dataset of the Hub: {error}") from error
        except errors.HfHubHTTPError as error:
            passing = _status(error) == 429 or _status(error) >= 500
            kind = StoreUnavailableError if passing else StoreAccessError
            full = _status(error) in _REFUSED and _FULL.search(error.server_message or "")
            hint = _FULL_HINT if full else _HINTS.get(_status(error), "")
            raise kind(f"Could not {action} {self}: {hint}{' '.join(str(error).split()):.300}") from error
        # Lost connections, also those of an upload, which the library reports as RuntimeError.
        except (errors.HfHubHTTPError.__bases__[0], errors.OfflineModeIsEnabled, RuntimeError) as error:
            raise StoreUnavailableError(
                f"Could not {action} {self}: {error_text(error)}. Call again."
            ) from error
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, EpisodelakeError):
                raise
            # A file of this machine, or an answer that is none of the Hub, as of a login page of a network.
            kind = access_class(error) if isinstance(error, OSError) else StoreUnavailableError
            raise kind(f"Could not {action} {self}: {error_text(error)}. Check the network.") from error


def datasets_of(organisation: str) -> dict[str, tuple[str, set[str]]]:
    """Return the datasets of an organisation or a user that you may see: newest commit and files, by name."""
    repository = Repository(organisation)
    with repository._guarded("list the datasets of"):
        found = repository._api.list_datasets(author=organisation, expand=["sha", "siblings"])
        return {
            each.id.partition("/")[2]: (str(each.sha), {file.rfilename for file in each.siblings or ()})
            for each in found
        }


def _missing(contents: Contents, known: Contents | None) -> dict[str, KnownFile]:
    there = {} if known is None else known.files
    return {name: file for name, file in contents.files.items() if there.get(name) != file}


def _status(error: Any) -> int:
    return int(getattr(error.response, "status_code", 0) or 0)

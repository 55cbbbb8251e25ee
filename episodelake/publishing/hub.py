"""`hf://org/name@tag`: a version is a commit with a tag in a dataset of the Hugging Face Hub.

The tree of the commit is the version. A publication is one commit on top of the newest, and then the tag. The
Hub asks for the contents of those files that it does not have.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ..errors import (
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
from ..plugin import Layout, require
from ..plugin.files import LocalPlace, access_class, error_text
from .contents import CHECKSUMS, Contents, Source

SCHEME = "hf://"
_CHUNK_BYTES = 8 << 20
_ADDRESS = re.compile(
    r"hf://(?:datasets/)?([\w-][\w.-]*/[\w-][\w.-]*)(?:@([A-Za-z0-9][A-Za-z0-9._-]*))?", re.A
)
MAIN = "main"
_ORGANISATION = re.compile(r"[\w-][\w.-]*", re.A)
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
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
            f"{address}: Storage options are for object stores. The Hub takes its token from HF_TOKEN or "
            "`hf auth login`, and its address from HF_ENDPOINT."
        )


def is_organisation(address: str) -> bool:
    """Return whether an address is one of an organisation of the Hub, which is a lake and never a store."""
    name = address.removeprefix(SCHEME).rstrip("/")
    return address.startswith(SCHEME) and _ORGANISATION.fullmatch(name) is not None


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
                f"{address!r:.200}: expected hf://organisation/name, or with @tag after it."
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

    def opened_at(self, tag: str) -> str:
        """Return what opens a version, for its README."""
        return f"{self}@{tag}"

    def check_free(self, tag: str, *, private: bool | None) -> None:
        """Refuse a dataset that has the tag, or other things than a version.

        Raises:
            StoreExistsError: it does; nothing was changed.
            InvalidArgumentError: the tag is the name of a branch or a commit.
        """
        if tag == MAIN or COMMIT.fullmatch(tag):
            raise InvalidArgumentError(f"{tag!r} names a branch or a commit on the Hub. Choose another tag.")
        # A dataset that is not there is created later.
        with contextlib.suppress(StoreNotFoundError):
            if tag in self._tags():
                raise self._taken(tag)
            self._head()

    def send(self, built: LocalPlace, contents: Contents, *, private: bool | None) -> None:
        """Make a version that was built on this machine the newest commit, with its tag.

        Raises:
            StoreExistsError: another publisher took the tag, or the dataset got other content meanwhile.
            ConcurrentCommitError: somebody else committed meanwhile; call again.
            StoreAccessError: the Hub refused, or cannot be reached; call again.
        """
        with self._guarded("publish to"), self._hub.utils.disable_progress_bars():
            self._api.create_repo(self.name, private=private, exist_ok=True, **_DATASET)
            head, former = self._head()
            commit = self._api.upload_folder(
                repo_id=self.name,
                folder_path=str(built),
                commit_message=f"Publish {contents.tag}",
                delete_patterns=sorted(former.difference(contents.files, [CHECKSUMS])),
                parent_commit=head,
                **_DATASET,
            ).oid
        try:
            with self._guarded("tag"):
                self._api.create_tag(self.name, tag=contents.tag, revision=commit, **_DATASET)
        except EpisodelakeError as error:
            # It may have been done before its answer was lost.
            there = None
            with contextlib.suppress(EpisodelakeError):
                there = self._tags().get(contents.tag)
            if there is None:
                raise
            if there != commit:
                raise self._taken(contents.tag) from error

    def versions(self) -> dict[str, Contents | None]:
        """Return the published versions by their tags; None where the list of files is damaged."""
        known: dict[str, Contents | None] = {}
        for tag, commit in self._tags().items():
            try:
                contents = self._contents(commit)
                known |= {tag: contents} if contents.tag == tag else {}
            except CorruptStoreError:
                known[tag] = None
            except StoreNotFoundError:
                pass  # a tag of something else
        return known

    def source(self, tag: str | None) -> Source:
        """Return the version of a tag or a commit, or the newest commit.

        Raises:
            StoreNotFoundError, VersionNotFoundError: there is none.
            CorruptStoreError: its list of files is damaged, or names a file that no version has.
        """
        commit, _ = self.commit_of(tag or MAIN)
        return Source(str(self), self._contents(commit), partial(self._chunks, commit))

    def commit_of(self, revision: str) -> tuple[str, set[str]]:
        """Return the commit of a tag or branch, and the names of its files.

        Raises:
            StoreNotFoundError, VersionNotFoundError: there is no such dataset or revision.
        """
        with self._guarded(f"look up {revision!r} in"):
            info = self._api.repo_info(self.name, revision=revision, **_DATASET)
        # Becomes part of paths.
        if not COMMIT.fullmatch(str(info.sha)):
            raise StoreAccessError(
                f"Could not look up {revision!r} in {self}: {info.sha!r:.100} is no commit."
            )
        return str(info.sha), {each.rfilename for each in info.siblings or ()}

    def _tags(self) -> dict[str, str]:
        """Return the tags with their commits."""
        with self._guarded("list the versions of"):
            tags = self._api.list_repo_refs(self.name, **_DATASET).tags
            return {ref.name: str(ref.target_commit) for ref in tags}

    def _head(self) -> tuple[str, set[str]]:
        """Return the newest commit, and the files of the version that it is; none for an empty dataset.

        Raises:
            StoreExistsError: it has other content.
        """
        commit, names = self.commit_of(MAIN)
        files = {name for name in names if not name.startswith(".")}
        own = {CHECKSUMS, *self._contents(commit).files} if CHECKSUMS in files else set()
        if others := files - own:
            raise StoreExistsError(
                f"{self} holds other things than a published version: {', '.join(sorted(others)[:5])}. "
                "Nothing was changed; publish to a dataset of its own."
            )
        return commit, files

    def _contents(self, commit: str) -> Contents:
        data = b""
        for piece in self._chunks(commit, CHECKSUMS):
            data += piece
            if len(data) > _LARGEST_LIST:
                break
        place = f"{self}/{CHECKSUMS}"
        return Contents.of(Layout.parse_json(data, place), place)

    def _chunks(self, commit: str, name: str) -> Iterator[bytes]:
        """Yield a file of a commit in pieces."""
        utils = self._hub.utils
        url = f"{self._api.endpoint}/datasets/{self.name}/resolve/{commit}/{name}"
        headers = utils.build_hf_headers(library_name="episodelake")
        with (
            self._guarded(f"read {name} of"),
            utils.get_session().stream("GET", url, headers=headers, follow_redirects=True) as answer,
        ):
            utils.hf_raise_for_status(answer)
            yield from answer.iter_bytes(_CHUNK_BYTES)

    def _taken(self, tag: str) -> StoreExistsError:
        return StoreExistsError(
            f"{self} has a version {tag!r} already, and a published version never changes."
        )

    @contextlib.contextmanager
    def _guarded(self, action: str) -> Iterator[None]:
        errors, problem = self._hub.errors, f"Could not {action} {self}"
        try:
            yield
        except errors.GatedRepoError as error:
            raise StoreAccessError(
                f"{problem}: it is gated. Ask for access at {self._api.endpoint}/datasets/"
                f"{self.name}, wait until it is granted, and log in (`hf auth login`, or HF_TOKEN)."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise StoreNotFoundError(
                f"{problem}: there is no such dataset, or it is private and you are not "
                "logged in with access to it (`hf auth login`, or HF_TOKEN)."
            ) from error
        except errors.RevisionNotFoundError as error:
            raise VersionNotFoundError(f"{problem}: there is no such version.") from error
        except errors.EntryNotFoundError as error:
            raise StoreNotFoundError(f"{problem}: there is no such file.") from error
        except errors.HFValidationError as error:
            raise InvalidArgumentError(f"{self} cannot be a dataset of the Hub: {error}") from error
        except errors.HfHubHTTPError as error:
            raise _answered(problem, error) from error
        # Lost connections, also those of an upload, which the library reports as RuntimeError.
        except (errors.HfHubHTTPError.__bases__[0], errors.OfflineModeIsEnabled, RuntimeError) as error:
            raise StoreUnavailableError(f"{problem}: {error_text(error)}. Call again.") from error
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, EpisodelakeError):
                raise
            # A file of this machine, or an answer that is none of the Hub, as of a login page of a network.
            kind = access_class(error) if isinstance(error, OSError) else StoreUnavailableError
            raise kind(f"{problem}: {error_text(error)}. Check the network.") from error


def _answered(problem: str, error: Any) -> EpisodelakeError:
    """Return the error for an answer of the Hub that refuses a request."""
    status = int(getattr(error.response, "status_code", 0) or 0)
    if status == 412:
        return ConcurrentCommitError(f"{problem}: somebody else committed to it meanwhile. Call again.")
    kind = StoreUnavailableError if status == 429 or status >= 500 else StoreAccessError
    full = status in _REFUSED and _FULL.search(error.server_message or "")
    hint = _FULL_HINT if full else _HINTS.get(status, "")
    return kind(f"{problem}: {hint}{' '.join(str(error).split()):.300}")


def datasets_of(organisation: str) -> dict[str, tuple[str, set[str]]]:
    """Return the datasets of an organisation or a user that you may see: newest commit and files, by name."""
    repository = Repository(organisation)
    with repository._guarded("list the datasets of"):
        datasets = repository._api.list_datasets(author=organisation, expand=["sha", "siblings"])
        return {
            each.id.partition("/")[2]: (str(each.sha), {file.rfilename for file in each.siblings or ()})
            for each in datasets
        }

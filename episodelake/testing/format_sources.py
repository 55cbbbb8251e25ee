"""Rules for untrusted sources: reads stay inside, nothing runs, memory is bounded, errors have a place."""

from __future__ import annotations

import builtins
import errno
import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ..opening import EpisodeStore, open_store
from ..store.errors import DatasetError, EpisodelakeError, StoreUnavailableError
from .format_base import FormatSettings, check, delete, files_of, free_descriptors, refused, steps_of
from .format_cases import Case, write_episodes
from .format_values import VECTOR

#: Names that libraries take for patterns, URLs, partitions or the home folder.
NAMES = (
    "run[1]",
    "a*b",
    "q?",
    "c{a,b}",
    "p%20q",
    "~x",
    "x#y",
    "k=v",
    "sp ace",
    "quo'te",
    "é",
    "[[x]]",
    "http:x",
)
_DECOYS = ("run1", "axb", "qx", "ca", "cb", "p q", "x", "acb")
_DEEP = ("[" * 200_000, '{"a":' * 200_000, '{"a":' * 900 + "1" + "}" * 900, "[" * 900 + "]" * 900)
#: The limit of an episode of about 10 MB in memory, and one that holds it.
_TOO_SMALL, _ENOUGH = 9_000_000, 80_000_000
_MOST_FILES = 6


class SourceRules(FormatSettings):
    """Rules that the import of a format keeps for a file or folder of an unknown author.

    Attributes:
        odd_names: the names of `NAMES` that its files may not have.
    """

    odd_names: ClassVar[tuple[str, ...]] = ()

    def test_sources_lead_nowhere_else(self, tmp_path: Path) -> None:
        """Links out of a folder, pipes, and arrays of HDF5 in other files are refused, wherever they are."""
        for source in self.sources(tmp_path):
            self._read(source, tmp_path / "expected")
            expected = steps_of(tmp_path / "expected")
            if source.is_dir():
                for file in _some(files_of(source)):
                    self._check_links(source, file, tmp_path, expected)
            for file in _some([each for each in files_of(source) if _is_hdf5(each)]):
                self._check_hdf5(source, file, tmp_path, expected)
            delete(tmp_path / "expected")

    def _check_links(self, source: Path, file: Path, folder: Path, expected: list[Any]) -> None:
        kept = source / "kept.bin"
        moved = Path(shutil.move(file, folder / "outside"))
        for target, words in ((moved, "outside of the source"), (folder / "none", "outside of the source")):
            file.symlink_to(target)
            with refused(f"{file.name} as a link to {target.name}", words, kind=DatasetError):
                self._read(source, folder / "into")
            file.unlink()
        os.mkfifo(file)
        with refused(f"{file.name} as a pipe", "a pipe or a device", kind=DatasetError):
            self._read(source, folder / "into")
        file.unlink()
        shutil.move(moved, kept)
        file.symlink_to(kept)
        self._read(source, folder / "into")
        check(steps_of(folder / "into") == expected, f"{file.name} as a link within the source: other rows")
        file.unlink()
        shutil.move(kept, file)
        delete(folder / "into")

    def _check_hdf5(self, source: Path, file: Path, folder: Path, expected: list[Any]) -> None:
        other = Path(shutil.copy(file, folder / "other.hdf5"))
        for name in _arrays_of(file):
            for how in (_as_link, _as_external, _as_virtual):
                how(Path(shutil.copy(other, file)), name, other)
                with refused(f"{name} of {file.name}, {how.__name__[1:]}", "file", kind=DatasetError):
                    self._read(source, folder / "into", format=self.reader)
                with refused(f"{name}, {how.__name__[1:]}, recognised", kind=DatasetError):
                    self._read(source, folder / "into", dry_run=True)
                check(not (folder / "into").exists(), "a source that is refused makes a store")
            self._read(source, folder / "trusted", trust=True)
            check(steps_of(folder / "trusted") == expected, f"{name} in another file, trusted: other rows")
            delete(folder / "trusted")
        shutil.copy(other, file)

    def test_names_are_no_patterns(self, tmp_path: Path) -> None:
        """A source of any name brings its own episodes, and not those that a pattern matches."""
        for source in self.sources(tmp_path):
            folder, decoy = tmp_path / "named", source
            if self.sampled:
                decoy = self.written(self.sample()[:1], tmp_path, "decoy")
            suffix = source.suffix if source.is_file() else ""
            for name in (*_DECOYS, *NAMES):
                origin = decoy if name in _DECOYS else source
                folder.mkdir(exist_ok=True)
                (shutil.copytree if origin.is_dir() else shutil.copy)(origin, folder / f"{name}{suffix}")
            self._read(source, tmp_path / "expected")
            for name in NAMES:
                if name not in self.odd_names:
                    report = self._read(folder / f"{name}{suffix}", tmp_path / "into")
                    check(report.format == self.reader, f"{name}: {report.reason}")
                    imported = steps_of(tmp_path / "into")
                    check(imported == steps_of(tmp_path / "expected"), f"{name}: other episodes")
                    delete(tmp_path / "into")
            return

    def test_memory_is_bounded(self, tmp_path: Path) -> None:
        """An episode that needs more than `max_bytes` is refused with the number, and comes in with more."""
        try:
            source = self.written(_large().store(), tmp_path) if self.sampled else None
        except DatasetError:
            return
        if not isinstance(source, Path):
            return
        words = self.spaces_of(_large().store()) if "spaces" in self.drops else {}
        for dry_run in (True, False):
            with refused("an episode of 10 MB", "max_bytes", kind=DatasetError):
                self._read(source, tmp_path / "into", max_bytes=_TOO_SMALL, dry_run=dry_run, **words)
        check(not (tmp_path / "into").exists(), "a source that is refused makes a store")
        report = self._read(source, tmp_path / "into", max_bytes=_ENOUGH, **words)
        check(report.episodes == 1, f"{report}")

    def test_passing_errors_are_no_damage(self, tmp_path: Path) -> None:
        """Without descriptors, and where the disk fails for a moment, the import asks to be called again."""
        for source in self.sources(tmp_path):
            self._read(source, tmp_path / "into", dry_run=True)
            for count in range(40):
                try:
                    with free_descriptors(count):
                        self._read(source, tmp_path / "into", dry_run=True, on_error="skip")
                except OSError as error:
                    passing = isinstance(error, StoreUnavailableError) or error.errno == errno.EMFILE
                    check(passing, f"{count} free descriptors: {type(error).__name__}: {error}")
                except EpisodelakeError as error:
                    raise AssertionError(f"{count} free descriptors are damage: {error}") from error
                else:
                    check(count, "a source is read without a descriptor")
                    break
            else:
                raise AssertionError("40 free descriptors are not enough")
            for number in (errno.EIO, errno.ENFILE):
                self._check_failing_opens(source, tmp_path, number)

    def _check_failing_opens(self, source: Path, folder: Path, number: int) -> None:
        """Let Python's opens of the source's files fail, one after the other."""
        for place in range(20):
            with _failing_open(source, place, number) as failed:
                try:
                    self._read(source, folder / "into", dry_run=True, on_error="skip", format=self.reader)
                except StoreUnavailableError:
                    continue
                except EpisodelakeError as error:
                    words = (
                        f"{errno.errorcode[number]} at the open {place} is {type(error).__name__}: {error}"
                    )
                    raise AssertionError(words) from error
                if not failed:
                    return

    def test_damage_is_an_error_with_its_place(self, tmp_path: Path) -> None:
        """A file that was cut or changed is refused by name, or does not matter; no store is left behind."""
        for source in self.sources(tmp_path):
            for file in _some(files_of(source)):
                whole = file.read_bytes()
                for what, data in _damaged(whole):
                    file.write_bytes(data)
                    self._check_damaged(source, file, f"{file.name}, {what}", tmp_path / "into")
                file.write_bytes(whole)

    def _check_damaged(self, source: Path, file: Path, what: str, into: Path) -> None:
        # Where nothing fails there is nothing to skip.
        failed = True
        for rule in ("raise", "skip"):
            try:
                self._read(source, into, on_error=rule)
            except EpisodelakeError as error:
                text = "\n".join([str(error), *getattr(error, "__notes__", ())])
                check(isinstance(error, ValueError), f"{what}: {type(error).__name__}: {error}")
                named = source.name in text or file.name in text
                check(named, f"{what}: the error names no file: {text}")
                check(not into.exists(), f"{what}: a store after an error")
            else:
                faults = open_store(into).verify().faults
                check(not faults, f"{what}: {faults}")
                failed = False
            for each in [into, *into.parent.glob(f".{into.name}.importing*")]:
                delete(each)
            if not failed:
                return

    def test_nothing_in_a_source_runs(self, tmp_path: Path) -> None:
        """Pickles and texts in the place of files, recognised or by name, call nothing."""
        sign = tmp_path / "sign"
        pickled = pickle.dumps(_Canary(str(sign)))
        for source in self.sources(tmp_path):
            for file in _some(files_of(source)):
                whole = file.read_bytes()
                for data in (pickled, *_objects(pickled, sign), *_texts(file)):
                    file.write_bytes(data)
                    for format in (None, self.reader):
                        with suppress(EpisodelakeError):
                            self._read(source, tmp_path / "into", format=format, dry_run=True)
                        check(not sign.exists(), f"{file.name} runs code of the source")
                file.write_bytes(whole)

    def _read(self, source: Any, into: Path, **given: Any) -> Any:
        return self.imported(source, into, **given)


class _Canary:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (self.path,)


def _objects(pickled: bytes, sign: Path) -> list[bytes]:
    """Return files whose arrays hold a pickle."""
    array = np.array([_Canary(str(sign))], object)
    single, several = io.BytesIO(), io.BytesIO()
    np.save(single, array, allow_pickle=True)
    np.savez(several, observations=array, actions=array, rewards=array, terminals=array)
    return [single.getvalue(), several.getvalue()]


def _texts(file: Path) -> list[bytes]:
    """Return deep JSON, and objects of jsonpickle, for a text."""
    if file.suffix not in (".json", ".jsonl"):
        return []
    called = '{"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": ["sign"]}]}'
    return [text.encode() for text in (*_DEEP, called)]


def _damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for part in (0.0, 0.5, 0.98):
        yield f"cut at {part}", whole[: int(len(whole) * part)]
    random = np.random.default_rng(0)
    for place in random.integers(0, max(len(whole), 1), 4).tolist():
        yield (
            f"with another byte at {place}",
            whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :],
        )


def _some(files: list[Path]) -> list[Path]:
    """Return a few files, of each ending the first and the last."""
    of: dict[str, list[Path]] = {}
    for each in files:
        of.setdefault(each.suffix, []).append(each)
    return [*dict.fromkeys(each for group in of.values() for each in (group[0], group[-1]))][:_MOST_FILES]


def _large() -> Case:
    def write(path: Path) -> EpisodeStore:
        space = spaces.Box(-np.inf, np.inf, (128,), np.float32)
        return write_episodes(path, space, VECTOR, episodes=[(20_000, True, False)])

    return Case("a large episode", write)


def _is_hdf5(file: Path) -> bool:
    return file.read_bytes()[:8] == b"\x89HDF\r\n\x1a\n"


def _arrays_of(file: Path) -> list[str]:
    """Return the first and the last numeric array of an HDF5 file."""
    import h5py

    names: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape and item.dtype.kind in "iuf":
            names.append(name)

    with h5py.File(file) as opened:
        opened.visititems(visit)
    return names[:1] + names[-1:]


def _as_link(file: Path, name: str, other: Path) -> None:
    import h5py

    with h5py.File(file, "a") as opened:
        del opened[name]
        opened[name] = h5py.ExternalLink(str(other), name)


def _as_external(file: Path, name: str, other: Path) -> None:
    import h5py

    raw = other.with_suffix(".raw")
    with h5py.File(file, "a") as opened:
        values: Any = opened[name]
        values = values[()]
        del opened[name]
        raw.write_bytes(values.tobytes())
        opened.create_dataset(name, values.shape, values.dtype, external=[(str(raw), 0, values.nbytes)])


def _as_virtual(file: Path, name: str, other: Path) -> None:
    import h5py

    with h5py.File(file, "a") as opened:
        values: Any = opened[name]
        layout = h5py.VirtualLayout(values.shape, values.dtype)
        layout[...] = h5py.VirtualSource(str(other), name, values.shape)
        del opened[name]
        opened.create_virtual_dataset(name, layout)


@contextmanager
def _failing_open(source: Path, place: int, number: int) -> Iterator[list[Path]]:
    """Let the open of a number fail, of those by Python of files of a source; yields what failed."""
    real, failed, seen = io.open, [], 0

    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal seen
        if isinstance(file, str | os.PathLike) and Path(file).is_relative_to(source):
            seen += 1
            if seen > place:
                failed.append(Path(file))
                raise OSError(number, os.strerror(number), str(file))
        return real(file, *arguments, **named)

    io.open = builtins.open = opened
    try:
        yield failed
    finally:
        io.open = builtins.open = real

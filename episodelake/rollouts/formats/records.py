"""Datasets of rollouts: files, JSON lines, and the path from a record to an episode."""

from __future__ import annotations

import codecs
import hashlib
import math
import re
import struct
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DatasetError, InvalidArgumentError
from ...plugin import (
    ForeignDataset,
    ForeignEpisode,
    Match,
    Part,
    check_bytes,
    dump_json,
    freeze_value,
    reading,
)
from ...plugin.files import is_file, is_folder
from ...writers.importing.boundary import Files, bounded_line
from ...writers.importing.json_values import parsed
from ..declaration import Rollouts
from ..steps import FACTS, rollout_steps

#: Lines are often longer than Python's buffer.
_BUFFER_BYTES = 1 << 20
#: What the report of an import says of columns.
_MAPPING = {"observation": "the message that each message continues", "action": "whether it was sampled"}

#: Metadata with a meaning of their own, which other keys of a source must not take: `record` has as JSON what
#: is no plain metadata.
_RESERVED = frozenset({*FACTS, "rewards", "weights", "source_key", "source_digest", "record"})

#: The arguments of `rollout_steps` for one rollout; None if it has no message.
Arguments = Mapping[str, Any] | None


@dataclass(frozen=True)
class Record:
    """A rollout of a source.

    Attributes:
        place: the file and line, for messages.
        key: names it within the dataset.
        read: returns the arguments; raises `DatasetError` or `InvalidArgumentError` if it is damaged.
    """

    place: str
    key: str
    read: Callable[[], Arguments]

    @staticmethod
    def damaged(place: str, key: str, error: DatasetError) -> Record:
        """Return one that cannot be read."""

        def read() -> Arguments:
            raise error

        return Record(place, key, read)


class RolloutDataset(ForeignDataset):
    """An open source of rollouts.

    Args:
        source: for messages.
        files: those of the source with rollouts.
        needed: names them in the error if there are none.

    Attributes:
        base: the folder by which files are named in keys.

    Raises:
        DatasetError: the source has no file.
    """

    def __init__(self, source: Any, files: list[Path], needed: str) -> None:
        super().__init__()
        if not files:
            raise DatasetError(f"{source} has no {needed}.")
        self.files, self.base = files, base_of(source)
        declared = Rollouts()
        self.observation_space, self.action_space = declared.observation_space, declared.action_space
        self.rollouts = declared.to_json()
        self.mapping = dict(_MAPPING)

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield the rollouts in the order of the source."""

    def parts(self) -> Iterator[Part]:
        """Yield a part for each rollout; the second of one name is damaged."""
        places: dict[str, str] = {}
        for record in self.records():
            first = places.setdefault(record.key, record.place)
            if first != record.place:
                problem = f"{record.place}: the id {record.key!r:.100} is that of {first}."
                record = Record.damaged(record.place, record.place, DatasetError(problem))
            yield Part((record.key,), partial(self._episode, record))

    def _episode(self, record: Record) -> ForeignEpisode | None:
        try:
            arguments = record.read()
            if arguments is None:
                self.losses.add("a rollout without messages")
                return None
            vocabulary = Rollouts.of(self.rollouts or {}).vocabulary
            return ForeignEpisode(**rollout_steps(**arguments, vocabulary=vocabulary))
        except InvalidArgumentError as error:
            raise DatasetError(f"{record.place}: {error}") from error
        except RecursionError as error:
            raise DatasetError(f"{record.place}: a value is nested too deep.") from error


def is_reserved(name: str) -> bool:
    """Return whether metadata of this name have a meaning of their own; columns know no case."""
    return name.lower() in _RESERVED


def detected(
    files: list[Path],
    pattern: str,
    names_of: Callable[[Path], Collection[str]],
    lacking_of: Callable[[Collection[str]], list[str]],
    content: str,
) -> Match:
    """Return whether the first of some files that can be read has the keys or columns of a format.

    Args:
        pattern: of the names of files, for the reason.
        names_of: returns the keys of a file.
        lacking_of: returns which keys of the format are not among them.
        content: what the file has, for the reason.
    """
    if not files:
        return Match(f"it has no {pattern}", 2, related=False)
    for file in files:
        with suppress(pa.ArrowException, OSError):
            if lacking := lacking_of(names_of(file)):
                reason = f"{file.name} has no {', '.join(lacking)}"
                return Match(reason, len(lacking), related=len(lacking) == 1)
            return Match(f"{file.name} has {content}")
    return Match(f"{files[0].name} cannot be read", 2, related=False)


def columns_of_parquet(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    return pq.read_schema(path).names


def files_of(source: Any, *patterns: str) -> list[Path]:
    """Return the files of a source: itself, those of a list, or those of a folder that match a pattern.

    Numbers in names count as numbers, so that step 10 comes after step 9.
    """
    if isinstance(source, Files):
        return list(source.paths)
    if not isinstance(source, str | Path):
        return []
    path = Path(source)
    if is_folder(path):
        files = {each for pattern in patterns for each in path.glob(pattern) if is_file(each)}
        return sorted(files, key=lambda each: _natural(each.relative_to(path)))
    return [path] if is_file(path) else []


def base_of(source: Any) -> Path:
    """Return the folder by which files are named in keys."""
    if isinstance(source, Files):
        return source.base
    path = Path(source)
    return path if is_folder(path) else path.parent


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path.as_posix())
    return [(0, int(each), each) if each.isdecimal() else (1, 0, each) for each in parts]


def json_lines(
    paths: Iterable[Path], base: Path, records_of: Callable[[Any, str, str], Iterable[Record]]
) -> Iterator[Record]:
    """Yield the records of JSON lines; a line that cannot be read is a damaged one.

    Args:
        base: the folder by which files are named in keys.
        records_of: takes the content of a line, its place for messages and its key, the file with the number
            of the line; returns the records in it, or raises `DatasetError`.
    """
    for path in paths:
        name = path.relative_to(base).as_posix()
        with reading(path), path.open("rb", buffering=_BUFFER_BYTES) as file:
            number = 1
            while line := bounded_line(file, place := f"{path}, line {number}"):
                records: Iterable[Record] = ()
                key = f"{name}:{number}"
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    try:
                        records = list(records_of(parsed(line, place), place, key))
                    except DatasetError as error:
                        records = [Record.damaged(place, key, error)]
                yield from records
                number += 1


def bounded_text(path: Path) -> bytes:
    """Return the content of a file, without a byte-order mark.

    Raises:
        DatasetError: it is larger than the limit of this import, or cannot be read.
    """
    with reading(path):
        check_bytes(str(path), path.stat().st_size)
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)


def mapping_at(content: Any, key: str, place: str) -> Mapping[str, Any]:
    """Return the object below a key; an empty one if there is none."""
    value = content.get(key)
    return {} if value is None else _of_kind(value, Mapping, "an object", place, key)


def list_at(content: Any, key: str, place: str) -> list[Any]:
    """Return the list below a key; an empty one if there is none."""
    value = content.get(key)
    return [] if value is None else _of_kind(value, list, "a list", place, key)


def object_of(content: Any, place: str) -> Mapping[str, Any]:
    """Return a value that has to be an object."""
    return _of_kind(content, Mapping, "an object", place)


def _of_kind(value: Any, kind: type, expected: str, place: str, key: str = "") -> Any:
    if not isinstance(value, kind):
        where = f"{place}: {key}" if key else place
        raise DatasetError(f"{where} is a {type(value).__name__}; expected {expected}.")
    return value


def text_or_none(value: Any) -> str | None:
    """Return a text, a number as text, and None for everything else."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def numbers_of(values: Any, code: Literal["q", "d", "B"], place: str) -> np.ndarray | None:
    """Return a list of numbers as an array; None where it is empty or missing.

    Args:
        code: of the module `struct`, which packs lists faster than numpy: int64, float64 or uint8.
    """
    if values is None or not _of_kind(values, list, "a list of numbers", place):
        return None
    try:
        packed = bytes(values) if code == "B" else struct.pack(f"{len(values)}{code}", *values)
        return np.frombuffer(packed, np.dtype(code))
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise DatasetError(f"{place} is no list of such numbers: {error!s:.200}.") from error


def kept_json(value: Any, place: str) -> str:
    """Return what has no column of its own as JSON text, which `load_json` of the plugin reads."""
    try:
        return dump_json(freeze_value(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"{place} cannot be kept: {error!s:.200}.") from error


def is_plain(value: Any) -> bool:
    """Return whether a value may be metadata as it is: it has no lists."""
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_plain, value.values()))
    return isinstance(value, str | int | float)


def split_plain(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that may be metadata as they are, and the others without nulls."""
    plain = {name: value for name, value in values.items() if is_plain(value)}
    return plain, {name: each for name, each in values.items() if each is not None and name not in plain}


def own_metadata(values: Mapping[str, Any], prefix: str, place: str) -> dict[str, Any]:
    """Return further keys of a row as metadata: lists as JSON in `record`.

    Args:
        prefix: of keys whose names have a meaning of their own.
    """
    plain, lists = split_plain(values)
    named = {f"{prefix}_{name}" if is_reserved(name) else name: value for name, value in plain.items()}
    return {**named, **({"record": kept_json(lists, place)} if lists else {})}


def name_of_prompt(prompt: Any) -> str:
    """Return a short name of a prompt, the same in every file."""
    return hashlib.sha256(repr(prompt).encode(errors="surrogatepass")).hexdigest()[:12]


def version_before(step: Any) -> int | None:
    """Return the policy version of rollouts that a trainer wrote at a step: that before its update.

    Trainers count steps from 1, and the version of the first model is 0.
    """
    if isinstance(step, bool) or not isinstance(step, int):
        return None
    return max(step - 1, 0)


def exported_facts(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Take the facts, advantage and metadata that an export of ours has written of a rollout.

    Args:
        given: of it; names that metadata must not have stay.

    Returns:
        `numbers`, `facts` and `metadata` as `rollout_steps` takes them.
    """
    advantage = given.pop("advantage", None)
    facts = {name: given.pop(name) for name in FACTS if name in given}
    others = {name: given.pop(name) for name in list(given) if not is_reserved(name)}
    numbers = {} if advantage is None else {"advantages": advantage}
    return {"numbers": numbers, "facts": facts, "metadata": others}


def is_sum(reward: Any, rewards: Mapping[str, Any], weights: Mapping[str, Any]) -> bool:
    """Return whether a reward follows from its parts."""
    try:
        total = math.fsum(value * weights.get(name, 1.0) for name, value in rewards.items())
        return is_number(reward) and math.isclose(reward, total, rel_tol=1e-9, abs_tol=1e-12)
    except (TypeError, ValueError, OverflowError):  # which is an error of its own
        return False


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def seconds_of(text: Any, place: str) -> float | None:
    """Return a timestamp in seconds since 1970; without a time zone it is in UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        raise DatasetError(f"{place}: timestamp is {text!r:.100}; expected a time as in ISO 8601.")
    return seconds

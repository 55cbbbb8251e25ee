"""Checks of groups of episodes and of their segments, with the annotations beside them, on any engine.

A group is an episodes file, or several whose episodes are in the same segments. Memory holds the columns of
one group, and some ten bytes for each other episode: packed columns, and the hash of its id.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import CorruptStoreError
from ..files import Place
from ..layout import ANNOTATIONS, STEPS
from ..schema import StepSchema, StoreHandle
from ..tables.annotation_files import AnnotationFiles, StepAnnotation
from .checks import Findings, Listing, check_as_readers, check_columns, check_file, read_listing
from .episode_checks import Derived, Episodes, EpisodesFile, check_ids, check_pointers, compare, read_file
from .step_checks import Segment, StepsCheck, check_annotation, segments_of

_CODEC = "zstd"


@dataclass(frozen=True)
class Packed:
    """An object, pickled and compressed."""

    data: pa.Buffer

    @staticmethod
    def of(value: Any) -> Packed:
        """Pack an object."""
        # Arrow's memory pool keeps what stays apart from what is freed soon.
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, _CODEC) as stream:
            pickle.dump(value, stream, pickle.HIGHEST_PROTOCOL)
        return Packed(sink.getvalue())

    def unpacked(self) -> Any:
        """Return a new object, equal to the packed one."""
        with pa.CompressedInputStream(pa.BufferReader(self.data), _CODEC) as stream:
            return pickle.load(stream)


@dataclass(frozen=True)
class EpisodeGroup:
    """Episodes whose segments belong to no other group.

    Attributes:
        packed: the `Episodes`, before anything is known of their steps.
        segments: of the sound ones.
    """

    packed: Packed
    segments: tuple[str, ...]


@dataclass(frozen=True)
class EpisodeGroups:
    """All episodes of a version.

    Attributes:
        groups: in the order of their first files.
        complete: whether all files could be read.
        episodes, steps: how many there are; transitions of the sound ones.
    """

    groups: tuple[EpisodeGroup, ...]
    complete: bool
    episodes: int
    steps: int

    @property
    def segments(self) -> set[str]:
        """The segments of the sound episodes."""
        return {name for group in self.groups for name in group.segments}


def read_episode_groups(
    listing: Listing,
    schema: StepSchema,
    runs: set[str] | None,
    excused: Collection[str],
    findings: Findings,
) -> EpisodeGroups:
    """Read the episodes table, every page of it, and check ids and row pointers.

    Args:
        listing: its files; damaged ones are reported and left out.
        schema: of the store.
        runs, excused: as for `check_ids`.
        findings: where faults go.
    """
    files: dict[int, Packed] = {}
    segments: list[set[str]] = []
    hashes: list[np.ndarray] = []
    for name in listing.files:
        file = read_file(listing, name, schema, findings)
        if file is not None:
            files[len(files)] = Packed.of(file)
            segments.append(set(file.rows.column("segment").unique().to_pylist()))
            ids = file.rows.column("episode_id").to_pylist()
            hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
    again = _repeated(files, hashes)
    hashes.clear()
    groups, count, steps, complete = [], 0, 0, len(files) == len(listing.files)
    for members in _sharing(segments):
        episodes = Episodes.of([files.pop(place).unpacked() for place in members], schema)
        check_ids(episodes, np.concatenate([again[place] for place in members]), runs, excused, findings)
        check_pointers(episodes, findings)
        sound = episodes.rows.column("segment").filter(pa.array(episodes.sound))
        groups.append(EpisodeGroup(Packed.of(episodes), tuple(sound.unique().to_pylist())))
        count += episodes.rows.num_rows
        steps += int((episodes.numbers("row_count") - episodes.lane_counts)[episodes.sound].sum())
    return EpisodeGroups(tuple(groups), complete, count, steps)


def _repeated(files: Mapping[int, Packed], hashes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return which episodes of each file have the id of an earlier one: bool, one for each."""
    again = [np.zeros(len(own), bool) for own in hashes]
    ordered = np.sort(np.concatenate([np.zeros(0, np.int64), *hashes]))
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    seen: set[str] = set()
    for place, own in enumerate(hashes) if len(twice) else ():
        # Ids with equal hashes may differ.
        rows = np.flatnonzero(np.isin(own, twice))
        file: EpisodesFile | None = files[place].unpacked() if len(rows) else None
        ids = [] if file is None else file.rows.column("episode_id").take(pa.array(rows)).to_pylist()
        for row, key in zip(rows.tolist(), ids, strict=True):
            again[place][row] = key in seen
            if key is not None:
                seen.add(key)
    return again


def _sharing(segments: Sequence[set[str]]) -> list[list[int]]:
    """Return groups of files with the same segments, by their places; a file alone is a group of its own."""
    groups: dict[int, list[int]] = {}
    group_of: dict[str, int] = {}
    for place, names in enumerate(segments):
        others = {group_of[name] for name in names & group_of.keys()}
        groups[place] = sorted([place, *(member for other in others for member in groups.pop(other))])
        for member in groups[place]:
            group_of.update(dict.fromkeys(segments[member], place))
    return sorted(groups.values())


@dataclass(frozen=True)
class Checked:
    """Segments that were checked.

    Attributes:
        findings: the faults.
        files: which files were read, relative to the store.
        segments: how many there are.
        corrected: for each file of episodes with columns that do not follow from the steps, those columns as
            they follow, and `whole`: whose steps are what they should be.
    """

    findings: Findings
    files: set[str]
    segments: int
    corrected: dict[str, pa.Table]


@dataclass(frozen=True)
class SegmentChecks:
    """Checks the segments of a group of episodes; tasks get it pickled.

    Attributes:
        store, steps, annotations: of the version that is checked.
        complete: whether all of its episodes are known.
    """

    store: StoreHandle
    steps: Listing
    annotations: AnnotationFiles
    complete: bool

    def __call__(self, group: EpisodeGroup) -> Checked:
        """Read the steps files of a group and the annotations beside them, and compare the episodes."""
        episodes: Episodes = group.packed.unpacked()
        segments, findings, files = segments_of(episodes), Findings(), set()
        for name in group.segments:
            files |= self._check(name, segments.get(name), episodes, findings)
        compare(episodes, findings)
        return Checked(findings, files, len(group.segments), _corrected(episodes, findings))

    def _check(self, name: str, segment: Segment | None, episodes: Episodes, findings: Findings) -> set[str]:
        """Read a steps file that is listed or pointed at, and the annotations beside it."""
        steps, own = self.steps, Findings()
        place, file = steps.place / name, steps.file(name)
        mend = "unlist" if segment is None and self.complete else None
        parquet = check_file(place, file, steps.files.get(name), own, ["episode_id"], mend=mend)
        if parquet is None and self._is_replaced(name):
            return {file}
        findings.absorb(own)
        if parquet is not None:
            usable = check_columns(parquet, file, steps, self.store.schema.steps, findings)
            check = StepsCheck(self.store.schema, episodes, findings)
            check.check(parquet, place, file, segment if usable else None)
            check_as_readers(steps, name, findings)
        rows = None if parquet is None else parquet.metadata.num_rows
        return {file} if segment is None else {file, *self._check_annotations(segment, rows, findings)}

    def _is_replaced(self, name: str) -> bool:
        """Return whether a steps file was listed, and is no longer: others replaced it meanwhile."""
        newest = read_listing(self.store.layout, STEPS, Findings())
        return newest is not None and name in self.steps.files and name not in newest.files

    def _check_annotations(self, segment: Segment, rows: int | None, findings: Findings) -> set[str]:
        files = set()
        for annotation, place, file in beside(self.annotations, segment.name, findings):
            files.add(file)
            expected = annotation.schema(self.store.schema.step_keys)
            check_annotation(place, file, annotation, expected, segment, rows, findings)
        return files


def _corrected(episodes: Episodes, findings: Findings) -> dict[str, pa.Table]:
    wrong = findings.waiting("derived")
    if not wrong:
        return {}
    columns = pa.table(Derived.of(episodes).columns(episodes) | {"whole": pa.array(episodes.whole)})
    return {
        file: columns.filter(pa.array(episodes.file == place))
        for place, file in enumerate(episodes.files)
        if file in wrong
    }


def beside(
    files: AnnotationFiles, segment: str, findings: Findings
) -> Iterator[tuple[StepAnnotation, Place, str]]:
    """Yield the annotations of a segment with their files; a missing folder is a fault."""
    for name, annotation in files.annotations.items():
        try:
            place = files.find(name, segment)
        except CorruptStoreError as error:
            findings.add("annotation", f"{ANNOTATIONS}/{', '.join(annotation.ids)}", str(error))
            continue
        if place is not None:
            yield annotation, place, f"{ANNOTATIONS}/{place.parent.name}/{place.name}"

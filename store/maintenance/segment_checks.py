"""Checks of one segment after the other, with the annotations beside it, on any engine.

A segment's episodes are in no other one. The driver puts together what is found about them, as one process
would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..errors import CorruptStoreError
from ..files import Place
from ..layout import ANNOTATIONS, STEPS
from ..schema import StoreHandle
from ..tables.annotation_files import AnnotationFiles, StepAnnotation
from .checks import Findings, Listing, check_as_readers, check_columns, check_file, read_listing
from .episode_checks import Episodes
from .step_checks import Segment, StepsCheck, check_annotation, segments_of


@dataclass(frozen=True)
class Checked:
    """A segment that was checked.

    Attributes:
        findings: the faults.
        files: which files were read, relative to the store.
        members, lanes: its episodes, and their lanes, in `Episodes`.
        whole, env_steps: as in `Episodes`, of the members.
        returns, flags: as in `Episodes`, of the lanes.
    """

    findings: Findings
    files: set[str]
    members: np.ndarray
    lanes: np.ndarray
    whole: np.ndarray
    env_steps: np.ndarray
    returns: np.ndarray
    flags: np.ndarray

    def bring_to(self, episodes: Episodes) -> None:
        """Note what is known of the episodes now."""
        episodes.whole[self.members] = self.whole
        episodes.env_steps[self.members] = self.env_steps
        episodes.returns[self.lanes] = self.returns
        episodes.flags[self.lanes] = self.flags


@dataclass(frozen=True)
class SegmentChecks:
    """Checks a segment by its name; tasks get it pickled.

    Attributes:
        store, steps, episodes, annotations: of the version that is checked.
    """

    store: StoreHandle
    steps: Listing
    episodes: Episodes
    annotations: AnnotationFiles

    @cached_property
    def segments(self) -> dict[str, Segment]:
        """The episodes of each segment."""
        return segments_of(self.episodes)

    def __call__(self, name: str) -> Checked:
        """Read a steps file that is listed or pointed at, and the annotations beside it."""
        steps = self.steps
        # A worker of Ray that is asked the same again has these objects still.
        episodes, segment = self.episodes.unread(), self.segments.get(name)
        segment = None if segment is None else replace(segment)
        findings, own = Findings(), Findings()
        place, file = steps.place / name, steps.file(name)
        files = {file}
        mend = "unlist" if segment is None and episodes.complete else None
        parquet = check_file(place, file, steps.files.get(name), own, ["episode_id"], mend=mend)
        if parquet is not None or not self._is_replaced(name):
            findings.absorb(own)
            if parquet is not None:
                usable = check_columns(parquet, file, steps, self.store.schema.steps, findings)
                check = StepsCheck(self.store.schema, episodes, findings)
                check.check(parquet, place, file, segment if usable else None)
                check_as_readers(steps, name, findings)
            rows = None if parquet is None else parquet.metadata.num_rows
            if segment is not None:
                files |= self._check_annotations(segment, rows, findings)
        none = np.zeros(0, np.int64)
        members, lanes = (none, none) if segment is None else (segment.members, segment.lanes)
        return Checked(
            findings,
            files,
            members,
            lanes,
            episodes.whole[members],
            episodes.env_steps[members],
            episodes.returns[lanes],
            episodes.flags[lanes],
        )

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

"""Columns that were added to steps later: those of a version, and their files.

A step annotation is a column beside the steps. Its values lie in files of its own, one for each segment that
has any, aligned with it row by row: `annotations/<id>/<segment>` with the columns that name a step
(`episode_id`, in multi-agent stores `agent_id`, `t`) and the annotation. Which annotations a version has
stands in a property of its episodes table, so they are versioned as the episodes are. (Annotations of
episodes are plain columns of the episodes table.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..errors import CorruptStoreError
from ..files import Place
from ..layout import Layout, checked_json, read_json

PROPERTY = "episodelake.annotations"
ANNOTATION_KEY = b"annotation"
#: In each folder of an annotation's files.
MARKER = "annotation.json"
_ID = re.compile(r"[a-z]+\.[0-9a-z]{15}-\d{1,6}")
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


@dataclass(frozen=True)
class StepAnnotation:
    """One added column of steps.

    Attributes:
        name: of the column.
        type: of its values.
        ids: folders of its files; where two have a file for a segment, the first one counts.
    """

    name: str
    type: pa.DataType
    ids: tuple[str, ...]

    def schema(self, keys: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
        """Return the columns of its files: the keys of a row of steps, and its values."""
        return pa.schema([*keys, (self.name, self.type)])


def write_marker(layout: Layout, annotation: StepAnnotation) -> None:
    """Make the folders of an annotation's new files, each with a marker file.

    A version that lists the annotation and whose folder lacks it was vacuumed: without it, missing values and
    missing files would look alike.

    Raises:
        StoreAccessError: it could not be written.
    """
    content = {"name": annotation.name, "type": type_text(annotation.type)}
    for name in annotation.ids:
        folder = layout.annotations / name
        folder.make_folder()
        (folder / MARKER).write(checked_json(content))


def check_marker(layout: Layout, annotation: StepAnnotation, folder: str) -> None:
    """Compare the marker in one folder of an annotation with the list of annotations.

    Raises:
        CorruptStoreError: it is damaged, or is another annotation's.
    """
    place = layout.annotations / folder / MARKER
    content, expected = read_json(place), {"name": annotation.name, "type": type_text(annotation.type)}
    if {key: content.get(key) for key in expected} != expected:
        raise CorruptStoreError(f"{place} says {content}; the list of annotations has {expected}.")


def type_text(kind: pa.DataType) -> str | None:
    """Return the name of an annotation's type in the property; None if annotations cannot have it."""
    if pa.types.is_list(kind):
        inner = type_text(kind.value_type)
        return None if inner is None else f"list<{inner}>"
    return _NAMES.get(kind)


def _type(text: str) -> pa.DataType:
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(_type(text[5:-1]))
    return _TYPES[text]


def annotations_text(annotations: Mapping[str, StepAnnotation]) -> str:
    """Return the value of the property."""
    content = {a.name: {"type": type_text(a.type), "ids": list(a.ids)} for a in annotations.values()}
    return json.dumps(content, sort_keys=True)


def parse_annotations(text: str | None, root: Place) -> dict[str, StepAnnotation]:
    """Read the property back.

    Raises:
        CorruptStoreError: it is damaged.
    """
    try:
        content = json.loads(text or "{}")
        annotations = {
            name: StepAnnotation(name, _type(entry["type"]), tuple(entry["ids"]))
            for name, entry in content.items()
        }
        ids = [folder for annotation in annotations.values() for folder in annotation.ids]
        if not all(type(folder) is str and _ID.fullmatch(folder) for folder in ids):
            raise ValueError(f"impossible folders {ids}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            f"The list of annotations in the episodes table of {root} is damaged: {error}."
        ) from error
    return annotations


def joined(
    first: Mapping[str, StepAnnotation], second: Mapping[str, StepAnnotation]
) -> dict[str, StepAnnotation]:
    """Return the annotations of both; where both have one of a name, the files of the first count first."""
    both = dict(first)
    for name, each in second.items():
        both[name] = replace(each, ids=(*both[name].ids, *each.ids)) if name in both else each
    return both


def episode_annotations(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns of the episodes table that are annotations."""
    return [column for column in schema if (column.metadata or {}).get(ANNOTATION_KEY)]


class AnnotationFiles:
    """Finds the files of step annotations; lists each folder once."""

    def __init__(self, layout: Layout, annotations: Mapping[str, StepAnnotation]) -> None:
        self.annotations = annotations
        self._layout = layout
        self._names: dict[str, frozenset[str]] = {}

    def _listed(self, folder: Place) -> frozenset[str]:
        names = frozenset(folder.names())
        if MARKER not in names:
            raise CorruptStoreError(
                f"The files of an annotation in {folder} are missing. Either they were vacuumed after this "
                "version was opened (refresh the store), or deleted by hand: restore them from a copy."
            )
        return names

    def missing_folders(self) -> list[str]:
        """Return the folders that this version needs and that are gone."""
        ids = {folder for annotation in self.annotations.values() for folder in annotation.ids}
        return sorted(folder for folder in ids if MARKER not in (self._layout.annotations / folder).names())

    def find(self, name: str, segment: str) -> Place | None:
        """Return the file with the values of the annotation `name` for a segment; None if it has none.

        Raises:
            CorruptStoreError: the annotation's files were vacuumed, or deleted.
        """
        for folder in self.annotations[name].ids:
            place = self._layout.annotations / folder
            if folder not in self._names:
                self._names[folder] = self._listed(place)
            if segment in self._names[folder]:
                return place / segment
        return None

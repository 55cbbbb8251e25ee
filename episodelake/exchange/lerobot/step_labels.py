"""Annotations of steps as features of frames, and back.

LeRobot has no NULL: a frame without a value is NaN, or an empty text. Flags are therefore 0.0 and 1.0. The
entry `annotations` of `meta/episodelake.json` has the names and types to which an import turns them back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ... import Episode
from ...plugin import Export
from .features import ANNOTATION

#: The dtypes of values and features, by the type of the annotation.
_KINDS = {
    pa.bool_(): ("bool", "float32"),
    pa.int64(): ("int64", "float64"),
    pa.float64(): ("float64", "float64"),
    pa.string(): ("string", "string"),
}
_VALUES = {"bool": bool, "int64": int, "float64": float, "string": str}


class StepLabels:
    """The annotations of steps that LeRobot can hold: flags, numbers and texts.

    Attributes:
        features: as `meta/info.json` has them.
        described: name and dtype of the annotation, by feature.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self.features: dict[str, dict[str, Any]] = {}
        self.described: dict[str, dict[str, str]] = {}
        for name, annotation in export.context.snapshot.annotation_files.annotations.items():
            if annotation.type not in _KINDS or "/" in name:
                why = "whose name has a '/'" if "/" in name else "which is no flag, number or text"
                export.losses.add(f"the annotation {name}, {why}", len(export.context))
                continue
            dtype, stored = _KINDS[annotation.type]
            self.described[ANNOTATION + name] = {"name": name, "dtype": dtype}
            self.features[ANNOTATION + name] = {"dtype": stored, "shape": [1], "names": None}

    def columns(self, episode: Episode) -> dict[str, pa.Array]:
        """Return the values at the transitions of an episode, by feature, and count what is lost."""
        columns = {}
        for feature, each in self.described.items():
            values = [*episode.step_annotations[each["name"]]]
            beyond = len(values) - episode.length
            self._export.losses.add(f"the annotation {each['name']} of a last observation", beyond)
            columns[feature] = self._column(each, values[: episode.length])
        return columns

    def _column(self, described: dict[str, str], values: list[Any]) -> pa.Array:
        name, dtype = described["name"], described["dtype"]
        given = [value for value in values if value is not None]
        if dtype == "string":
            self._export.losses.add(f"the annotation {name} where it is an empty text", given.count(""))
            return pa.array([value or "" for value in values], pa.string())
        numbers = np.array(given, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            digits = numbers.astype(np.float32).astype(dtype) != numbers
        missing = np.isnan(numbers)
        self._export.losses.add(f"the annotation {name} where it is NaN", int(missing.sum()))
        what = f"digits of the annotation {name}, which LeRobot reads as float32"
        self._export.losses.add(what, int((digits & ~missing).sum()))
        filled = [np.nan if value is None else float(value) for value in values]
        return pa.array(filled, pa.float32() if dtype == "bool" else pa.float64())


def annotated(dtype: str, values: np.ndarray) -> np.ndarray | None:
    """Return the values of an annotation, None where a frame has none; None if no frame has one."""
    value_of = _VALUES[dtype]
    given = [
        None if value == "" or value != value else value_of(value) for value in values.reshape(-1).tolist()
    ]
    return None if given.count(None) == len(given) else np.array(given, object)

"""The chart of an SQL result: chosen columns on axes that fit their types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..readers.plots.texts import shown
from ..readers.plots.theme import PALETTE
from ..store.errors import InvalidArgumentError
from .colors import SeriesColors

#: The width of a label at most, of one that leans, and about that of a letter, in pixels.
_LABEL_LIMIT = 140
_LEANING_LIMIT = 90
_SIGN = 6.5
KINDS = ("line", "points", "bars", "histogram")


@dataclass(frozen=True)
class _Column:
    """A column of a result, as a chart has it.

    Attributes:
        field: its name in the data, since a specification interprets dots and brackets in names.
        kind: "Q" for amounts, "T" for times, "N" for anything else.
        title: its name, for people.
    """

    field: str
    kind: str
    title: str

    @property
    def place(self) -> str:
        """The column as a channel names it."""
        return f"{self.field}:{self.kind}"


def result_spec(
    table: pa.Table, kind: str, x: str, y: str | None, color: str | None, colors: SeriesColors
) -> dict[str, Any]:
    """Return a chart of an SQL result.

    Args:
        table: the result.
        kind: one of `KINDS`; a histogram counts the values of `x`.
        x, y, color: columns.
        colors: those that runs have on the page.

    Raises:
        InvalidArgumentError: a column is missing, or cannot be drawn.
    """
    import altair as alt

    from ..readers.plots.chart import finished
    from ..readers.plots.pieces import values_of

    wanted = [name for name in (x, None if kind == "histogram" else y, color) if name is not None]
    columns, rows = _drawable_part(table, list(dict.fromkeys(wanted)))
    upright = None if y is None or kind == "histogram" else columns[y]
    marked = _marked(alt.Chart(values_of(rows)), kind, columns[x], upright, rows)
    if color is not None:
        by = columns[color]
        scale = _color_scale([row[by.field] for row in rows], colors)
        marked = marked.encode(alt.Color(by.place, title=by.title, scale=scale))
    tooltips = [alt.Tooltip(column.place, title=column.title) for column in columns.values()]
    chart = finished(marked.encode(tooltip=tooltips).properties(width=560, height=260), "result")
    return {key: value for key, value in chart.to_dict().items() if key not in ("title", "usermeta")}


def _drawable_part(table: pa.Table, names: Sequence[str]) -> tuple[dict[str, _Column], list[dict[str, Any]]]:
    """Columns of a result by name, and their rows by field."""
    for name in names:
        if name not in table.column_names:
            raise InvalidArgumentError(
                f"The result has no column {name!r}; it has {', '.join(table.column_names)}."
            )
        if pa.types.is_nested(table.schema.field(name).type):
            raise InvalidArgumentError(f"{name!r} holds lists, which have no place on an axis.")
    columns = {
        name: _Column(f"c{index}", _kind_of(table.schema.field(name).type), name.replace("\n", " ")[:60])
        for index, name in enumerate(names)
    }
    rows = [
        {columns[name].field: _drawable(value) for name, value in row.items()}
        for row in table.select(list(names)).to_pylist()
    ]
    return columns, rows


def _marked(base: Any, kind: str, x: _Column, y: _Column | None, rows: Sequence[dict[str, Any]]) -> Any:
    """Return the marks of a chart of some rows, on their axes."""
    import altair as alt

    if kind == "histogram":
        across = alt.X(x.place, bin=alt.Bin(maxbins=40) if x.kind == "Q" else False, title=x.title)
        return base.mark_bar(color=PALETTE[0]).encode(across, alt.Y("count():Q", title="rows"))
    if y is None:
        raise InvalidArgumentError("Choose a column for the y axis.")
    mark = {
        "line": base.mark_line(point=True, color=PALETTE[0]),
        "points": base.mark_circle(size=36, color=PALETTE[0]),
        "bars": base.mark_bar(color=PALETTE[0]),
    }[kind]
    scale = alt.Scale(zero=kind == "bars")
    return mark.encode(
        alt.X(
            x.place,
            title=x.title,
            sort=None if x.kind == "N" else alt.Undefined,
            axis=_name_axis([row[x.field] for row in rows]) if x.kind == "N" else alt.Undefined,
            scale=alt.Scale(zero=False) if x.kind == "Q" else alt.Undefined,
        ),
        alt.Y(y.place, title=y.title, scale=scale if y.kind == "Q" else alt.Undefined),
    )


def _name_axis(values: Sequence[Any]) -> Any:
    """Return an axis of names, which lean where the chart is too narrow for them side by side."""
    import altair as alt

    names = {str(value) for value in values}
    longest = min(_LABEL_LIMIT, _SIGN * max(map(len, names), default=0))
    crowded = f"width < {len(names) * (longest + 12):.0f}"
    return alt.Axis(
        labelAngle=alt.ExprRef(f"{crowded} ? -40 : 0"),
        labelAlign=alt.ExprRef(f"{crowded} ? 'right' : 'center'"),
        labelLimit=alt.ExprRef(f"{crowded} ? {_LEANING_LIMIT} : {_LABEL_LIMIT}"),
    )


def _color_scale(values: Sequence[Any], colors: SeriesColors) -> Any:
    """Give runs and end reasons their colours on the rest of the page."""
    import altair as alt

    names = list(dict.fromkeys(shown(value) for value in values if isinstance(value, str)))
    if not any(map(colors.knows, names)):
        return alt.Undefined
    return alt.Scale(domain=names, range=colors.of(names))


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "Q"
    return "T" if pa.types.is_temporal(kind) and not pa.types.is_time(kind) else "N"


def _drawable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return float(value) if hasattr(value, "as_tuple") else str(value)

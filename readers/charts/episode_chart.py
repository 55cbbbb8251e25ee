"""The signals of one episode over its steps: a panel for each element, all with one x axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from ...store.common.arguments import suggest
from ...store.errors import CorruptStoreError, InvalidArgumentError, NothingToDrawError
from ...store.names import ACTION
from ..episode_data import EpisodeData
from ..formatting import counted
from .chart import AnyChart, color_channel, finished, stacked, tooltip_of, values_of
from .series import LARGEST
from .signals import ROOTS, WIDEST, WIDEST_MAP, Signal, elements_of_root, reduced, signals_of
from .theme import END_COLORS, WIDTH, shown

MOST_STEPS = 2_000
MOST_PANELS = 12
#: A line that jumps between kinds of actions more often than this fills its panel, and says nothing.
_MOST_JUMPS = 150
_MOST_KINDS = 20
#: The steps of a shorter episode have a tick each.
_EACH_TICK = 10
_KINDS = ("reward", "action", "observation", "info", "policy")


def draw_episode(episode: EpisodeData, wanted: Sequence[str] | None) -> AnyChart:
    """Return the chart; see `Episode.plot`."""
    chosen = chosen_signals(episode, wanted)
    labels = signal_labels(episode, chosen)
    groups = _panels(chosen, by_element=True)
    if len(groups) > MOST_PANELS:
        groups = _panels(chosen, by_element=False)
    drawn = list(groups.items())[:MOST_PANELS]
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
    moments = np.concatenate([signal.t for signals in groups.values() for signal in signals])
    last = max(int(signal.t.max()) + _is_outcome(signal) for signals in groups.values() for signal in signals)
    span = [int(moments.min()), max(last, int(moments.min()) + 1)]
    panels = [
        _heat_map(name, signals, labels, zoom, span, last=index == len(drawn) - 1)
        if _is_wide(signals)
        else _panel(index, name, signals, labels, zoom, span, last=index == len(drawn) - 1)
        for index, (name, signals) in enumerate(drawn)
    ]
    unit = "steps of the environment" if episode.agents else "steps"
    returned = episode.episode_return
    total = f"{returned:g}" if isinstance(returned, float) else str(returned)
    seed = "" if episode.seed is None else f", seed {episode.seed}"
    long = max(len(signal.t) for signals in groups.values() for signal in signals) > MOST_STEPS
    left = len(groups) - len(drawn)
    subtitle = [
        f"{episode.length:,} {unit}, return {total}, {episode.end_reason}{seed}",
        f"each line: the smallest and largest value of {MOST_STEPS // 2:,} equal stretches" if long else "",
        _wild_note([signal for _, signals in drawn for signal in signals]),
        _HEAT_NOTE if any(_is_wide(signals) for _, signals in drawn) else "",
        f"{counted(left, 'more panel')} not drawn: name what to draw" if left > 0 else "",
    ]
    return finished(stacked(panels, own_colors=True), f"Episode {episode.id}", subtitle)


def chosen_signals(episode: EpisodeData, wanted: Sequence[str] | None) -> list[Signal]:
    """Return the signals of an episode that are to be drawn; see `Episode.plot`."""
    if isinstance(wanted, str):
        wanted = [wanted]
    roots = ROOTS if wanted is None else [_column(name) for name in wanted]
    signals = signals_of(episode, roots, WIDEST_MAP)
    if wanted is not None:
        for name in wanted:
            if name not in _KINDS and not any(_asked(signal, name) for signal in signals):
                there = signals_of(episode, _KINDS, WIDEST_MAP)
                known = [signal.name for signal in there]
                listed = ", ".join(known[:20]) or "none"
                columns = list(dict.fromkeys(signal.column for signal in there))
                raise InvalidArgumentError(
                    f"{episode.id!r} has no signal {name!r}.{suggest(name, [*columns, *known])} "
                    f"Its signals are: {listed}."
                )
        signals = [signal for signal in signals if any(_asked(signal, name) for name in wanted)]
    signals = [signal for signal in signals if len(signal.t)]
    if not signals:
        raise NothingToDrawError(
            f"There is nothing to draw: no column of {episode.id!r} holds a few numbers at every step.",
            hint="For images, look at episode.video().",
        )
    return signals


def _column(name: str) -> str:
    """Return a signal's name without that of its agent."""
    return name.partition(": ")[2] or name


def _asked(signal: Signal, name: str) -> bool:
    plain = _column(signal.name)
    column, elements = elements_of_root(name)
    if elements is not None:
        owner, _, index = signal.name.rpartition("[")
        return column in (owner, _column(owner)) and int(index.removesuffix("]")) in elements
    if ": " in name:
        return name in (signal.name, plain)
    return plain == name or signal.column == name or f".{name}." in f".{signal.column}."


def _panels(signals: list[Signal], *, by_element: bool) -> dict[str, list[Signal]]:
    """Return the signals by panel: those of one element, or of one column, of all agents together.

    More numbers of a column than lines have room for share a panel, one for each agent.
    """
    counts = Counter(signal.name.rpartition("[")[0] for signal in signals)
    panels: dict[str, list[Signal]] = {}
    for signal in signals:
        owner, _, index = signal.name.rpartition("[")
        if counts[owner] > WIDEST and owner:
            name = owner
        else:
            name = signal.column + f"[{index}" * (by_element and bool(owner))
        panels.setdefault(name, []).append(signal)
    return panels


def _is_wide(signals: Sequence[Signal]) -> bool:
    """Return whether the signals of a panel are many numbers of one column."""
    owners = {signal.name.rpartition("[")[0] for signal in signals}
    return len(owners) == 1 and len(signals) > WIDEST and "" not in owners


def signal_labels(episode: EpisodeData, signals: Sequence[Signal]) -> dict[str, str]:
    """Return the names that the card gives to numbers of columns, by signal."""
    schema = episode.schema
    codecs = [codec for part in schema.parts for codec in (part.action, part.observation)]
    sizes = {leaf.column: leaf.size for codec in codecs for leaf in codec.leaves}
    labels: dict[str, str] = {}
    try:
        card = episode._rows.snapshot.card if any("[" in each.name for each in signals) else None
    except CorruptStoreError:
        return labels
    if card is None:
        return labels
    for column in {signal.column for signal in signals}:
        names = card.dimension_names(column, sizes.get(column, -1))
        for signal in signals if names else ():
            if signal.column == column and names:
                labels[signal.name] = names[int(signal.name.rpartition("[")[2][:-1])]
    return labels


#: The most cells of a heat map.
_MOST_CELLS = 4_000
_HEAT_NOTE = "each row of a heat map from its least (dark) to its most (light); red: NaN or infinite"


def _heat_map(
    name: str,
    signals: list[Signal],
    labels: Mapping[str, str],
    zoom: Any,
    span: list[int],
    *,
    last: bool,
) -> Any:
    """Return a row for each number of a column; each cell has the value of its steps farthest from the
    row's middle.
    """
    values, t = np.stack([_drawable(signal) for signal in signals]), signals[0].t
    known = np.isfinite(values)
    low = np.where(known, values, np.inf).min(axis=1, keepdims=True)
    high = np.where(known, values, -np.inf).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        share = np.where(high > low, (values - low) / (high - low), 0.5 + 0 * values)
    # NaN is farther than any number, so it is never hidden.
    far = np.where(known, np.abs(share - 0.5), np.inf)
    begin = 0.0 if _is_outcome(signals[0]) else -0.5
    edges = np.linspace(0, len(t), min(len(t), max(1, _MOST_CELLS // len(signals))) + 1).astype(np.int64)
    rows = []
    for start, stop in pairwise(edges.tolist()):
        places = start + far[:, start:stop].argmax(axis=1)
        for number, (signal, place) in enumerate(zip(signals, places.tolist(), strict=True)):
            index = signal.name.rpartition("[")[2][:-1]
            label = labels.get(signal.name)
            rows.append(
                {
                    **{"signal": signal.name, "row": f"{label} [{index}]" if label else index},
                    **{"t": t[start] + begin, "until": t[stop - 1] + 1 + begin, "step": int(t[place])},
                    **{"value": float(values[number, place]), "share": float(share[number, place])},
                }
            )
    color = alt.Color("share:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=None)
    cells = alt.Chart(values_of(rows)).mark_rect(clip=True)
    cells = cells.encode(
        _time(span, last_panel=last),
        alt.X2(field="until"),
        alt.Y(
            "row:N",
            sort=None,
            title=shown(name, 40),
            axis=alt.Axis(labelOverlap="greedy", labelLimit=110, ticks=False, domain=False),
        ),
        color=alt.when("isValid(datum.share)").then(color).otherwise(alt.value(END_COLORS["interrupted"])),
        tooltip=tooltip_of(("signal", "signal"), ("row", "row"), ("step", "t"), ("value", "value")),
    )
    height = int(np.clip(9 * len(signals), 80, 260))
    return cells.add_params(zoom).properties(width=WIDTH, height=height)


def _time(span: Sequence[int], *, last_panel: bool) -> alt.X:
    """Return the axis of steps that all panels share; the last one has its labels."""
    title = "t (steps)" if last_panel else None
    scale = alt.Scale(nice=False, domain=list(span))
    return alt.X("t:Q", title=title, scale=scale, axis=_moments(span, last_panel=last_panel))


def _panel(
    index: int,
    name: str,
    signals: list[Signal],
    labels: Mapping[str, str],
    zoom: Any,
    span: list[int],
    *,
    last: bool,
) -> Any:
    outcome = _is_outcome(signals[0])
    names = [shown(labels.get(signal.name, signal.name), 24) for signal in signals]
    if 1 < len(signals) == len(set(names)):
        signals = [replace(signal, name=each) for signal, each in zip(signals, names, strict=True)]
    rows = [row for signal in signals for row in _rows(signal)]
    title = labels.get(signals[0].name, name) if name.endswith("]") else name
    legend = alt.selection_point(fields=["signal"], bind="legend", name=f"legend_{index}")
    if outcome and len(signals[0].t) > _MOST_JUMPS and _few_kinds(rows):
        lines = alt.Chart(values_of(rows)).mark_tick(orient="vertical", size=14, thickness=1, clip=True)
    elif outcome:
        held = values_of([*rows, *map(_held, signals)])
        lines = alt.Chart(held).mark_line(strokeWidth=1.5, clip=True, interpolate="step-after")
    else:
        lines = alt.Chart(values_of(rows)).mark_line(strokeWidth=1.5, clip=True, interpolate="linear")
    lines = lines.encode(
        _time(span, last_panel=last),
        alt.Y(
            "value:Q",
            title=shown(title, 40),
            scale=alt.Scale(zero=False, padding=4),
            axis=_axis(rows),
        ),
        color_channel("signal", name, [signal.name for signal in signals]),
        opacity=alt.when(legend).then(alt.value(1)).otherwise(alt.value(0.1)),
        tooltip=tooltip_of(("signal", "signal"), ("t", "t"), ("value", "value")),
    )
    height = 110 if len(signals) > 1 else 70
    lines = lines.add_params(zoom, legend)
    extra = (
        [row for signal in signals for row in _lone(signal)],
        [row for signal in signals for row in _wild(signal)],
    )
    marks = [
        alt.Chart(values_of(points))
        .mark_point(shape=shape, size=size, filled=True, clip=True)
        .encode(
            alt.X("t:Q", scale=alt.Scale(nice=False, domain=span)),
            alt.Y("value:Q") if shape == "circle" else alt.YValue(height - 3),
            color_channel("signal", name, [signal.name for signal in signals]),
            tooltip=tooltip_of(("signal", "signal"), ("t", "t"), ("label", "value")),
        )
        for points, shape, size in ((extra[0], "circle", 16), (extra[1], "cross", 40))
        if points
    ]
    whole = alt.layer(lines, *marks) if marks else lines
    return whole.properties(width=WIDTH, height=height)


def _lone(signal: Signal) -> list[dict[str, Any]]:
    """Return the values between two gaps: a line of one point is not seen."""
    there = np.isfinite(_drawable(signal))
    beside = np.concatenate([[False], there[:-1]]) | np.concatenate([there[1:], [False]])
    return [_mark(signal, index) for index in np.flatnonzero(there & ~beside)[:MOST_STEPS].tolist()]


def _wild(signal: Signal) -> list[dict[str, Any]]:
    """Return marks for values that have no place on the axis, one in each of some stretches."""
    gaps = np.flatnonzero(np.isnan(_drawable(signal)))
    step = -(-len(gaps) // MOST_STEPS) or 1
    return [{**_mark(signal, index), "value": None} for index in gaps[::step].tolist()]


def _mark(signal: Signal, index: int) -> dict[str, Any]:
    value = float(signal.values[index])
    return {"signal": signal.name, "t": int(signal.t[index]), "value": value, "label": f"{value:g}"}


def _wild_note(signals: Sequence[Signal]) -> str:
    """Count the values without a place on the axis; without any the note is empty."""
    notes = []
    for signal in signals:
        nan, gaps = int(np.isnan(signal.values).sum()), int(np.isnan(_drawable(signal)).sum())
        # Infos and policy values may be absent, which is NaN here too.
        what = "NaN" if signal.column.partition(".")[0] in ROOTS else "NaN or absent"
        parts = [f"{nan:,} {what}"] * bool(nan) + [f"{gaps - nan:,} infinite or too large"] * bool(gaps - nan)
        notes += [f"{signal.name}: {', '.join(parts)}"] * bool(parts)
    more = f" and {len(notes) - 4} more signals" if len(notes) > 4 else ""
    return f"crosses: {'; '.join(notes[:4])}{more}" if notes else ""


def _is_outcome(signal: Signal) -> bool:
    """Return whether a signal is what was done at each step, which holds until the next."""
    return f".{ACTION}." in f".{signal.column}."


def _held(signal: Signal) -> dict[str, Any]:
    """Return the end of the last step: what was done there would else have no width."""
    return {"signal": signal.name, "t": int(signal.t[-1]) + 1, "value": float(_drawable(signal)[-1])}


def _moments(span: Sequence[int], *, last_panel: bool) -> alt.Axis:
    """Ticks at integer steps; in a short episode one for each, since halves would have labels too."""
    first, last = span
    if last - first > _EACH_TICK:
        return alt.Axis(tickMinStep=1, labels=last_panel, ticks=last_panel)
    return alt.Axis(values=list(range(first, last + 1)), format="d", labels=last_panel, ticks=last_panel)


def _few_kinds(rows: list[dict[str, Any]]) -> bool:
    values = {row["value"] for row in rows if np.isfinite(row["value"])}
    return len(values) <= _MOST_KINDS and all(value.is_integer() for value in values)


def _axis(rows: list[dict[str, Any]]) -> alt.Axis:
    """Return a few ticks; for a small range of integers, one for each."""
    values = {row["value"] for row in rows if np.isfinite(row["value"])}
    if values and all(value.is_integer() for value in values) and max(values) - min(values) <= 4:
        return alt.Axis(values=list(range(int(min(values)), int(max(values)) + 1)), format="d")
    return alt.Axis(tickCount=4)


def _drawable(signal: Signal) -> np.ndarray:
    return np.where(np.abs(signal.values) <= LARGEST, signal.values, np.nan)


def _rows(signal: Signal) -> list[dict[str, Any]]:
    values = _drawable(signal)
    kept = reduced(values, MOST_STEPS)
    return [
        {"signal": signal.name, "t": int(signal.t[index]), "value": float(values[index])}
        for index in kept.tolist()
    ]

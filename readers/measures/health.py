"""Health of episodes: faults and oddities of recorded values, each with the episodes that have it.

The numbers of observations, actions and rewards are read once, some episodes at a time; memory holds a hash
and a bit per element of an observation for each episode. Images are not read, except those of episodes whose
numbers are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from gymnasium.spaces import Box

from ...store.common.arguments import suggest
from ...store.common.progress import Progress, progress_meter
from ...store.errors import InvalidArgumentError
from ...store.journal.run_journal import journal_runs
from ...store.names import ACTION, OBSERVATION, REWARD
from ...store.spaces.fixed import FixedNode
from ..amounts import counted
from ..columns.selection import EpisodeIndex, Selection, select
from ..columns.specs import choose_columns
from ..columns.step_arrays import ColumnSource, read_arrays
from ..columns.tree import leaves
from ..context import ContextView, ReadContext
from ..frames import collect_episodes, episodes_frame
from .measuring import parts
from .quality import row_digests

#: Of every kind of finding, what it means.
KINDS = {
    "nan": "NaN in a column",
    "infinite": "an infinity in a column",
    "constant": "an element of the observation that never changes, but does in other episodes; or in none",
    "saturated": "an element of the action that stands at a bound of its space for half of the steps",
    "outlier": "a return, length, or largest or smallest reward, far from those of other episodes",
    "duplicate": "the same steps as an earlier episode",
    "duplicate_seed": "the same seed and options as an earlier episode of the run",
    "missing_observation": "no last observation",
    "cut": "ended by the recorder, not by the environment",
    "interrupted": "recovered from a writer that died",
    "gap": "numbers of its run are missing before it: deleted, discarded or not ended yet",
    "unsealed": "a run whose writer died and whose journal waits for recovery",
}
#: Shorter episodes are neither constant nor saturated.
_LONG = 10
#: The share of steps at a bound from which on an action is saturated.
_SATURATED = 0.5
#: An outlier is so many times the span from the 5 % to the 95 % quantile beyond that span.
_FAR = 5.0
#: Where that span is 0, so many times the median, or 1 if that is larger.
_FAR_OF_MEDIAN = 10.0


@dataclass(frozen=True, eq=False)
class Finding:
    """Something that is wrong, or looks wrong, with some episodes.

    Attributes:
        kind: one of the keys of `KINDS`.
        column: the column, with the element where there are several; empty where no column is concerned.
        positions: int64, shape (n,), ascending: its episodes in the view; `view[finding.positions]` has them.
        values: how many values, seeds or episodes are concerned.
        message: a sentence.
        amounts: float64, shape (n,): of each episode the number of NaN or infinities, or the outlier; None of
            other findings.
        steps: int64, shape (n,): the t at which it shows first in each episode; None where there is none.
    """

    kind: str
    column: str
    positions: np.ndarray
    values: int
    message: str
    amounts: np.ndarray | None = None
    steps: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class HealthReport:
    """The findings of `health`, in the order of `KINDS`.

    Attributes:
        count: number of episodes that were looked at.
        findings: none where nothing was found.
        affected: one row for each finding and episode: kind, column, position (in the view), episode_id,
            amount and t (`amounts` and `steps` of the finding; NULL without).
    """

    count: int
    findings: tuple[Finding, ...]
    affected: pl.DataFrame

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def unplaced(self) -> tuple[Finding, ...]:
        """The findings that concern no episode."""
        return tuple(each for each in self.findings if not len(each.positions))

    @property
    def share(self) -> float:
        """The share of episodes with a finding."""
        return self.affected["position"].n_unique() / max(self.count, 1)

    def frame(self) -> pl.DataFrame:
        """Return one row per finding: kind, column, episodes, values, first (an episode's id), message."""
        firsts = dict(zip(self.affected["position"], self.affected["episode_id"], strict=True))
        rows = [
            (
                *(each.kind, each.column, len(each.positions), each.values),
                firsts[int(each.positions[0])] if len(each.positions) else None,
                each.message,
            )
            for each in self.findings
        ]
        schema = {"kind": pl.String, "column": pl.String, "episodes": pl.Int64, "values": pl.Int64}
        return pl.DataFrame(rows, {**schema, "first": pl.String, "message": pl.String}, orient="row")

    def outliers(self, most: int = 50) -> pl.DataFrame:
        """Return the episodes that stand out, those with the worst findings and then with most of them first.

        Findings that concern more than half of the episodes are left out.

        Args:
            most: the most episodes to return.

        Returns:
            One row per episode: episode_id, position, reasons (list of texts), t (of the first reason that
            has one, else NULL).
        """
        usual = [(each.kind, each.column) for each in self.findings if 2 * len(each.positions) > self.count]
        ranks = {kind: rank for rank, kind in enumerate(_WORST)}
        rows = self.affected.filter(pl.col("kind").is_in(_WORST)).with_columns(
            rank=pl.col("kind").replace_strict(ranks, default=None, return_dtype=pl.Int64)
        )
        if len(usual):
            common = pl.DataFrame(usual, {"kind": pl.String, "column": pl.String}, orient="row")
            rows = rows.join(common, on=["kind", "column"], how="anti", maintain_order="left")
        episodes = (
            rows.sort("rank", maintain_order=True)
            .group_by("episode_id", "position")
            .agg(
                pl.struct("kind", "column", "amount", "t").alias("reasons"),
                pl.col("t").drop_nulls().first(),
                rank=pl.col("rank").min(),
                findings=pl.len(),
            )
        )
        first = episodes.sort("rank", "findings", "position", descending=[False, True, False]).head(most)
        reasons = [[_reason(**each) for each in listed] for listed in first["reasons"].to_list()]
        texts = pl.Series("reasons", reasons, pl.List(pl.String))
        return first.select("episode_id", "position", texts, "t")

    def __str__(self) -> str:
        """Return the findings as lines."""
        lines = [f"{each.kind}: {each.message}" for each in self.findings]
        return "\n".join(lines or [f"No findings in {counted(self.count, 'episode')}."])


#: The kinds that make an episode stand out, the worst first.
_WORST = (
    *("nan", "infinite", "outlier", "missing_observation", "interrupted", "cut", "saturated", "constant"),
    "duplicate",
)


def _reason(kind: str, column: str, amount: float | None, t: int | None) -> str:
    """Return in words why an episode stands out."""
    if kind == "outlier":
        reason = f"{_NAMES.get(column, column)} of {amount:.6g}, far from other episodes"
    elif amount is not None:
        reason = f"{amount:.0f} {'NaN' if kind == 'nan' else 'infinite values'} in {column}"
    else:
        reason = f"{column} is {kind}" if column else KINDS[kind]
    return reason if t is None else f"{reason}, t = {t}"


_NAMES = {"episode_return": "return"}


def health(
    view: ContextView, *, ignore: Sequence[str] = (), progress: bool | Progress = False
) -> HealthReport:
    """Look for values, endings and repetitions that are wrong, or look wrong.

    docs/quality.md says what each kind of finding means. A finding is a
    hint: constant sensors and repeated seeds may be meant. Values of infos and of the policy are not read.

    Args:
        ignore: kinds of findings to leave out, such as `["cut"]`.
        progress: True for a bar on the terminal, or a function called with the episodes read so far and all.

    Returns:
        A report; `report.findings[0].positions` are the episodes of the first finding in this view.

    Raises:
        InvalidArgumentError: there is no such kind of finding.
        CorruptStoreError: a file of the store is damaged.
    """
    for kind in ignore:
        if kind not in KINDS:
            raise InvalidArgumentError(
                f"ignore={kind!r} is no kind of finding.{suggest(kind, list(KINDS))} "
                f"There are: {', '.join(KINDS)}."
            )
    context = view.context
    columns = ("episode_id", "run_id", "number", "length", "end_reason", "seed", "wide_seed", "options")
    scalar = () if context.snapshot.schema.reward_shape else ("episode_return",)
    frame = episodes_frame(context.snapshot, context.positions).select(*columns, *scalar)
    rows = collect_episodes(context.snapshot, frame)
    findings = [*_episode_findings(context, rows), *_unsealed(context)]
    if len(rows):
        with progress_meter(progress, "Checking", "episodes") as report:
            findings += _Scan(context, len(rows)).findings(report)
    kinds = list(KINDS)
    kept = sorted(
        (each for each in findings if each.kind not in ignore), key=lambda each: kinds.index(each.kind)
    )
    affected = [
        pl.DataFrame({"position": each.positions})
        .select(
            kind=pl.lit(each.kind),
            column=pl.lit(each.column),
            position=pl.col("position").cast(pl.Int64),
            amount=pl.Series(each.amounts, dtype=pl.Float64) if each.amounts is not None else None,
            t=pl.Series(each.steps, dtype=pl.Int64) if each.steps is not None else None,
        )
        .cast(_AFFECTED)
        for each in kept
    ]
    listed = pl.concat([pl.DataFrame(schema=_AFFECTED), *affected])
    ids = rows["episode_id"].gather(listed["position"]) if len(listed) else pl.Series(dtype=pl.String)
    return HealthReport(len(rows), tuple(kept), listed.insert_column(3, ids.alias("episode_id")))


_AFFECTED = pl.Schema(
    {
        "kind": pl.String,
        "column": pl.String,
        "position": pl.Int64,
        "amount": pl.Float64,
        "t": pl.Int64,
    }
)


def _finding(
    kind: str,
    column: str,
    mask: np.ndarray,
    values: int | None,
    message: str,
    *,
    amounts: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> Iterator[Finding]:
    """Yield a finding about the episodes of a mask, if any; amounts and steps are of all episodes."""
    positions = np.flatnonzero(mask)
    if len(positions):
        number = len(positions) if values is None else values
        text = message.format(episodes=counted(len(positions), "episode"), values=f"{number:,}")
        chosen = [None if each is None else each[positions] for each in (amounts, steps)]
        yield Finding(kind, column, positions, number, text, *chosen)


def _episode_findings(context: ReadContext, rows: pl.DataFrame) -> Iterator[Finding]:
    """Yield the findings that the episodes table gives."""
    for kind in ("cut", "interrupted"):
        ended = (rows["end_reason"] == kind).to_numpy()
        yield from _finding(kind, "", ended, None, "{episodes} " + KINDS[kind])
    missing = context.snapshot.missing_at(context.all_positions)
    if missing is not None:
        yield from _finding(
            "missing_observation", "", missing, None, "{episodes} without the last observation"
        )
    seeds = rows.select("run_id", "options", seed=pl.coalesce(pl.col("seed").cast(pl.String), "wide_seed"))
    again = (~seeds.to_struct("key").is_first_distinct() & seeds["seed"].is_not_null()).to_numpy()
    yield from _finding(
        "duplicate_seed", "", again, None, "{episodes} with the seed and options of an earlier one of the run"
    )
    everything = episodes_frame(context.snapshot, None).select("run_id", "number")
    numbers = collect_episodes(context.snapshot, everything).sort("run_id", "number").with_columns(
        lost=pl.col("number") - pl.col("number").shift(1).over("run_id").fill_null(-1) - 1
    ).filter(pl.col("lost") > 0)  # fmt: skip
    lost = rows.select("run_id", "number").join(numbers, on=["run_id", "number"], how="left")["lost"]
    missed = lost.fill_null(0).to_numpy()
    yield from _finding(
        "gap",
        "number",
        missed > 0,
        int(missed.sum()),
        "{values} numbers of runs are missing before {episodes}",
    )
    if "episode_return" in rows.columns:
        returns = rows["episode_return"].to_numpy()
        text = _outlying("return", returns)
        yield from _finding("outlier", "episode_return", _far(returns), None, text, amounts=returns)
    lengths = rows["length"].to_numpy().astype(float)
    low, high = _length_limits(lengths)
    text = f"{{episodes}} with a length below {low:.6g} or above {high:.6g}"
    far = (lengths < low) | (lengths > high)
    yield from _finding("outlier", "length", far, None, text, amounts=lengths)


def _unsealed(context: ReadContext) -> Iterator[Finding]:
    """Yield the runs that wait for recovery, of the newest version as a whole."""
    snapshot = context.snapshot
    left = (
        journal_runs(*snapshot.layout.journal_places)[1]
        if snapshot.newest and context.positions is None
        else []
    )
    if left:
        runs = f"{counted(len(left), 'run')} of dead writers, such as {left[0]}: recover() brings them in"
        yield Finding("unsealed", "", np.zeros(0, np.int64), len(left), runs)


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return below and above which a number is far from the others; without numbers, none is."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return -np.inf, np.inf
    low, median, high = np.quantile(finite, [0.05, 0.5, 0.95], method="nearest")
    with np.errstate(over="ignore"):
        far = _FAR * (high - low) if high > low else _FAR_OF_MEDIAN * max(1.0, abs(median))
        return float(low - far), float(high + far)


def _length_limits(lengths: np.ndarray) -> tuple[float, float]:
    """Return below and above which a length is far from the others, by factors: short ones matter, too."""
    if not len(lengths):
        return -np.inf, np.inf
    low, high = np.log(np.quantile(lengths, [0.05, 0.95], method="nearest") + 1)
    far = _FAR * (high - low) if high > low else np.log(_FAR_OF_MEDIAN)
    return float(np.exp(low - far) - 1), float(np.exp(high + far) - 1)


def _far(values: np.ndarray) -> np.ndarray:
    """Return which finite numbers are outliers: bool."""
    low, high = _limits(values)
    return np.isfinite(values) & ((values < low) | (values > high))


def _outlying(what: str, values: np.ndarray) -> str:
    low, high = _limits(values)
    return f"{{episodes}} with a {what} below {low:.6g} or above {high:.6g}"


class _Scan:
    """One pass over the numbers of steps."""

    def __init__(self, context: ReadContext, count: int) -> None:
        self._context, self._count = context, count
        self._digests = np.zeros(count, np.uint64)

    def findings(self, report: Progress) -> Iterator[Finding]:
        """Read all numbers, and yield what they give."""
        snapshot = self._context.snapshot
        for place, group in enumerate([each.name for each in snapshot.schema.groups] or [None]):
            selection = select(snapshot, self._context.all_positions, None, group)
            yield from self._selected(selection, place, report)
        again = self._repeated()
        yield from _finding("duplicate", "", again, None, "{episodes} with the steps of an earlier one")

    def _selected(self, selection: Selection, group: int, report: Progress) -> Iterator[Finding]:
        """Yield the findings of whole episodes, or of the agents of a group."""
        schema, index = selection.schema, selection.index
        codecs = (schema.observation, schema.action, schema.reward)
        nodes = [leaf for codec in codecs for leaf in codec.leaves if isinstance(leaf, FixedNode)]
        measured = [
            _Leaf(node.column, node.column.removeprefix(schema.prefix), node, len(index))
            for node in nodes
            if not node.binary
        ]
        columns = choose_columns(self._context.snapshot, selection, [leaf.name for leaf in measured])
        source = ColumnSource(self._context.blocks, selection, columns)
        numbers = np.arange(len(index)) if index.numbers is None else index.numbers
        for some in parts(index, source.row_bytes):
            arrays = read_arrays(source.part(some))
            digest = np.zeros(arrays.index.rows, np.uint64)
            for leaf in measured:
                ((_, values),) = leaves(arrays.columns[leaf.name], leaf.name)
                flat = values.reshape(arrays.index.rows, -1)
                digest = _mixed(digest, flat)
                leaf.measure(flat, arrays.index, some)
            self._add_digests(digest, arrays.index, numbers[some], group)
            report(int(numbers[some.stop - 1]) + 1, self._count)
        for leaf in measured:
            yield from leaf.findings(index.lengths, numbers, self._count)

    def _add_digests(self, rows: np.ndarray, index: EpisodeIndex, numbers: np.ndarray, group: int) -> None:
        """Add the hashes of the episodes' rows, in their order, to those of the view's episodes."""
        starts = index.starts[:-1]
        t = np.arange(len(rows)) - np.repeat(starts, index.lengths + 1)
        agents = np.zeros(len(index), np.int64) if index.agents is None else index.agents + 1
        whole = np.add.reduceat(_mixed(rows, t[:, None]), starts)
        np.add.at(self._digests, numbers, _mixed(whole, np.stack([agents + (group << 32), index.lengths], 1)))

    def _repeated(self) -> np.ndarray:
        """Return which episodes have the steps of an earlier one: bool.

        Those whose numbers have the same hash are compared by all of their columns.
        """
        from ..sql.session import QuerySession

        again = np.zeros(self._count, bool)
        _, inverse, counts = np.unique(self._digests, return_inverse=True, return_counts=True)
        candidates = np.flatnonzero(counts[inverse] > 1)
        if len(candidates):
            chosen = self._context.choose(self._context.all_positions[candidates])
            digests = QuerySession(chosen, read_only=False).query(row_digests(chosen.snapshot.schema))
            ids = collect_episodes(
                chosen.snapshot, episodes_frame(chosen.snapshot, chosen.positions).select("episode_id")
            )
            whole = ids.join(digests, on="episode_id", how="left", maintain_order="left")
            again[candidates] = ~whole.drop("episode_id").to_struct("steps").is_first_distinct()
        return again


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mixed(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mix the bits of numbers, shape (n, width), into hashes: uint64, shape (n,)."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(rows), -1)
    short = -raw.shape[1] % 8
    words = (np.pad(raw, ((0, 0), (0, short))) if short else raw).view(np.uint64)
    for k in range(words.shape[1]):
        rows = (rows ^ words[:, k]) * _ODD
        rows ^= rows >> np.uint64(29)
    return rows


def _first_t(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the t of the first row of each episode that a mask has: int64; -1 for none."""
    places = np.where(mask, np.arange(len(mask)), len(mask))
    first = np.minimum.reduceat(places, starts)
    return np.where(first < len(mask), first - starts, -1)


class _Leaf:
    """Measures of one part of a space, by episode.

    Args:
        column, name: its column of steps, and its name in the selection.
        node: its space.
        count: number of episodes, or of agents in them.
    """

    def __init__(self, column: str, name: str, node: FixedNode, count: int) -> None:
        self.column, self.name, self._node = column, name, node
        self._root = name.partition(".")[0]
        self._nan, self._infinite = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._nan_at, self._infinite_at = np.full((2, count), -1)
        #: By episode, a bit for each element that is constant, or saturated.
        self._marks = np.zeros((count, -(-node.size // 8)), np.uint8)
        self._first, self._same = None, np.ones(node.size, bool)
        width = node.size if self._root == REWARD else 0
        self._lowest, self._highest = np.full((2, count, width), np.nan)
        self._lowest_at, self._highest_at = np.full((2, count, width), -1)
        space = node.space
        self._observed = isinstance(space, Box) and self._root == OBSERVATION
        self._acted: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(space, Box) and self._root == ACTION:
            self._acted = space.low.reshape(-1), space.high.reshape(-1)

    def measure(self, values: np.ndarray, index: EpisodeIndex, some: slice) -> None:
        """Measure the numbers of some episodes, shape (rows, size); the last row of an episode may change."""
        starts = index.starts[:-1]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            for mask, amounts, at in (
                (np.isnan(values), self._nan, self._nan_at),
                (np.isinf(values), self._infinite, self._infinite_at),
            ):
                amounts[some] = np.add.reduceat(mask.sum(axis=1), starts)
                at[some] = _first_t(np.logical_or.reduce(mask, axis=1), starts)
        # Rows without a value are 0: repeat what stands before them.
        blank = index.padding[(index.lengths > 0) & ((self._root != OBSERVATION) | _lacking(index))]
        if self._acted is not None:
            low, high = self._acted
            bound = ((values <= low) | (values >= high)) & (low < high)
            bound[blank] = False
            share = (
                np.add.reduceat(bound, starts, axis=0, dtype=np.int64) / np.maximum(index.lengths, 1)[:, None]
            )
            self._marks[some] = np.packbits(share >= _SATURATED, axis=1)
            return
        values[blank] = values[blank - 1]
        if self._observed:
            if self._first is None:
                self._first = values[0].copy()
            self._same &= (values == self._first).all(axis=0)
            changed = np.zeros(values.shape, bool)
            np.not_equal(values[1:], values[:-1], out=changed[1:])
            changed[starts] = False
            self._marks[some] = np.packbits(~np.logical_or.reduceat(changed, starts, axis=0), axis=1)
        elif self._root == REWARD:
            numbers = np.where(np.isfinite(values), values, np.nan)
            self._lowest[some] = np.fmin.reduceat(numbers, starts, axis=0)
            self._highest[some] = np.fmax.reduceat(numbers, starts, axis=0)
            rows = np.diff(index.starts)
            for extremes, at in ((self._lowest, self._lowest_at), (self._highest, self._highest_at)):
                there = numbers == np.repeat(extremes[some], rows, axis=0)
                for k in range(numbers.shape[1]):
                    at[some, k] = _first_t(there[:, k], starts)

    def findings(self, lengths: np.ndarray, numbers: np.ndarray, count: int) -> Iterator[Finding]:
        """Yield the findings, by the episodes of the view.

        Args:
            lengths: transitions of each episode, or of each agent.
            numbers: the number of its episode in the view.
            count: number of episodes in the view.
        """

        def by_episode(mask: np.ndarray) -> np.ndarray:
            whole = np.zeros(count, bool)
            whole[numbers[mask]] = True
            return whole

        def values_by_episode(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
            whole = np.zeros(count, values.dtype)
            rows = np.flatnonzero(mask)[::-1]  # Of several agents, the first.
            whole[numbers[rows]] = values[rows]
            return whole

        for kind, amounts, at in (
            ("nan", self._nan, self._nan_at),
            ("infinite", self._infinite, self._infinite_at),
        ):
            what = "NaN" if kind == "nan" else "infinite values"
            text = f"{{values}} {what} of {self.column} in {{episodes}}"
            yield from _finding(
                kind,
                self.column,
                by_episode(amounts > 0),
                int(amounts.sum()),
                text,
                amounts=values_by_episode(amounts, amounts > 0),
                steps=values_by_episode(at, amounts > 0),
            )
        for k in range(self._node.size):
            label = f"{self.column}[{k}]" if self._node.shape else self.column
            marked = np.zeros(len(lengths), bool)
            if self._observed or self._acted is not None:
                marked = ((self._marks[:, k // 8] >> (7 - k % 8)) & 1).astype(bool) & (lengths >= _LONG)
            if self._acted is not None:
                text = f"{label} is at a bound for {_SATURATED:.0%} of the steps or more in {{episodes}}"
                yield from _finding("saturated", label, by_episode(marked), None, text)
            elif self._observed:
                if self._same[k] and count > 1 and lengths.sum() >= _LONG:
                    text = f"{label} is the same in all steps of all episodes"
                    yield from _finding("constant", label, by_episode(lengths >= 0), None, text)
                elif marked.sum() * 2 <= (lengths >= _LONG).sum():
                    text = f"{label} never changes in {{episodes}}, though it does in others"
                    yield from _finding("constant", label, by_episode(marked), None, text)
            elif self._root == REWARD:
                for what, extremes, at in (
                    ("smallest", self._lowest[:, k], self._lowest_at[:, k]),
                    ("largest", self._highest[:, k], self._highest_at[:, k]),
                ):
                    text, far = _outlying(f"{what} {label}", extremes), _far(extremes)
                    yield from _finding(
                        "outlier",
                        label,
                        by_episode(far),
                        None,
                        text,
                        amounts=values_by_episode(extremes, far),
                        steps=values_by_episode(at, far),
                    )


def _lacking(index: EpisodeIndex) -> np.ndarray:
    """Return which episodes lack their last observation: bool."""
    return np.zeros(len(index), bool) if index.missing is None else index.missing

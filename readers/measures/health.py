"""Health of episodes: faults and oddities of recorded values, each with the episodes that have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ...store.common.arguments import known_name
from ...store.common.progress import Progress, progress_meter
from ...store.journal.run_journal import Journals
from ..context import ReadContext
from ..formatting import counted
from ..frames import collect_episodes, episodes_frame
from .findings import KINDS, Finding, StepScan, far, finding, length_limits, outlying


@dataclass(frozen=True, eq=False)
class HealthReport:
    """The findings of `health`, in the order of `KINDS`.

    Attributes:
        count: number of episodes that were looked at.
        findings: none where nothing was found.
        affected: one row for each finding and episode: kind, column, position (in the view), episode_id,
            amount, t (`amounts` and `steps` of the finding; NULL without) and extreme.
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

    @property
    def summary(self) -> str:
        """How many findings there are, and how many episodes those have that do not concern all of them."""
        some = [len(each.positions) not in (0, self.count) for each in self.findings]
        parts = [part["position"] for part, chosen in zip(self.parts(), some, strict=True) if chosen]
        episodes = pl.concat(parts).n_unique() if parts else 0
        everywhere = len(some) - sum(some) - len(self.unplaced)
        places = [
            f"{everywhere} in all {counted(self.count, 'episode')}" if everywhere else "",
            f"{sum(some)} in {episodes:,} of {counted(self.count, 'episode')} ({episodes / self.count:.2%})"
            if episodes
            else "",
            f"{len(self.unplaced)} in none" if self.unplaced else "",
        ]
        return f"{counted(len(self.findings), 'finding')}: {', '.join(filter(None, places)) or 'none'}."

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

    def parts(self) -> list[pl.DataFrame]:
        """Return the rows of `affected` of each finding, in their order."""
        ends = np.cumsum([len(each.positions) for each in self.findings], dtype=np.int64).tolist()
        return [
            self.affected[end - len(each.positions) : end]
            for each, end in zip(self.findings, ends, strict=True)
        ]

    def outliers(self, most: int = 50) -> pl.DataFrame:
        """Return outliers: those with the worst findings first, then those with most.

        Findings that concern more than half of the episodes are left out.

        Args:
            most: the most episodes to return.

        Returns:
            One row per episode: episode_id, position, reasons (list of texts), t (of the first reason that
            has one, else NULL).
        """
        ranks = {kind: rank for rank, kind in enumerate(_WORST)}
        # Not a filter of all rows: a finding may concern every episode.
        parts = [
            part
            for each, part in zip(self.findings, self.parts(), strict=True)
            if each.kind in ranks and 2 * len(each.positions) <= self.count
        ]
        rows = pl.concat([self.affected.clear(), *parts]).with_columns(
            rank=pl.col("kind").replace_strict(ranks, default=None, return_dtype=pl.Int64)
        )
        episodes = (
            rows.sort("rank", maintain_order=True)
            .group_by("episode_id", "position")
            .agg(
                pl.struct("kind", "column", "amount", "t", "extreme").alias("reasons"),
                pl.col("t").drop_nulls().first(),
                rank=pl.col("rank").min(),
                findings=pl.len(),
            )
        )
        first = episodes.sort("rank", "findings", "position", descending=[False, True, False]).head(most)
        reasons = [[self._reason(**each) for each in listed] for listed in first["reasons"].to_list()]
        texts = pl.Series("reasons", reasons, pl.List(pl.String))
        return first.select("episode_id", "position", texts, "t")

    def reasons(self, position: int) -> pl.DataFrame:
        """Return why an episode of the view has findings, a row each.

        Args:
            position: of the episode in the view that was looked at.

        Returns:
            Columns: kind, column, episode_id, reason (a text) and t (of the first step, or NULL).
        """
        places, start = [], 0
        for each in self.findings:
            place = int(np.searchsorted(each.positions, position))
            if place < len(each.positions) and each.positions[place] == position:
                places.append(start + place)
            start += len(each.positions)
        rows = self.affected[places]
        chosen = rows.select("kind", "column", "amount", "t", "extreme").iter_rows(named=True)
        texts = pl.Series("reason", [self._reason(**each) for each in chosen], pl.String)
        return rows.select("kind", "column", "episode_id", texts, "t")

    @cached_property
    def _labels(self) -> dict[tuple[str, str], str]:
        return {(each.kind, each.column): each.label for each in self.findings}

    def _reason(self, kind: str, column: str, amount: float | None, t: int | None, extreme: str) -> str:
        """Return, in words, a reason for which an episode is an outlier."""
        label = self._labels[kind, column]
        if kind == "outlier":
            what = f"{extreme} {_NAMES.get(column, label)}".strip()
            reason = f"{what} of {amount:.6g}, far from other episodes"
        elif amount is not None:
            reason = f"{amount:.0f} {'NaN' if kind == 'nan' else 'infinite values'} in {label}"
        else:
            reason = f"{label} is {kind}" if column else KINDS[kind]
        return reason if t is None else f"{reason}, t = {t}"

    def __str__(self) -> str:
        """Return the findings as lines."""
        lines = [f"{each.kind}: {each.message}" for each in self.findings]
        return "\n".join(lines or [f"No findings in {counted(self.count, 'episode')}."])


#: The kinds that make an episode stand out, the worst first.
_WORST = (
    *("nan", "infinite", "outlier", "missing_observation", "interrupted", "saturated", "constant"),
    *("duplicate", "lengths", "vocabulary", "context", "empty_message"),
)


_NAMES = {"episode_return": "return"}


def examined(context: ReadContext, ignore: Sequence[str], progress: bool | Progress) -> HealthReport:
    """Return what looks wrong in episodes; see `MeasuredView.health`."""
    for kind in ignore:
        known_name(kind, KINDS, f"ignore={kind!r} is no kind of finding.")
    columns = ("episode_id", "run_id", "number", "length", "end_reason", "seed", "wide_seed", "options")
    scalar = () if context.snapshot.schema.reward_shape else ("episode_return",)
    frame = episodes_frame(context.snapshot, context.positions).select(*columns, *scalar)
    rows = collect_episodes(context.snapshot, frame)
    findings = [*_episode_findings(context, rows), *_unsealed(context)]
    if len(rows):
        with progress_meter(progress, "Checking", "episodes") as report:
            if context.snapshot.manifest.rollouts is None:
                findings += StepScan(context, len(rows)).findings(report)
            else:
                # Imported when it is needed, since it takes DuckDB, which opening a store does without.
                from .rollout_findings import rollout_findings

                # The space of a rollout's observations is the number of a message: equal in most of them.
                findings += rollout_findings(context, rows["episode_id"])
                report(len(rows), len(rows))
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
            extreme=pl.lit(each.extreme),
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
        "extreme": pl.String,
    }
)


def _episode_findings(context: ReadContext, rows: pl.DataFrame) -> Iterator[Finding]:
    """Yield the findings that the episodes table gives."""
    for kind in ("cut", "interrupted"):
        ended = (rows["end_reason"] == kind).to_numpy()
        yield from finding(kind, "", ended, None, "{episodes} " + KINDS[kind])
    missing = context.snapshot.missing_at(context.all_positions)
    if missing is not None:
        yield from finding(
            "missing_observation", "", missing, None, "{episodes} without the last observation"
        )
    seeds = rows.select("run_id", "options", seed=pl.coalesce(pl.col("seed").cast(pl.String), "wide_seed"))
    again = (~seeds.to_struct("key").is_first_distinct() & seeds["seed"].is_not_null()).to_numpy()
    yield from finding(
        "duplicate_seed", "", again, None, "{episodes} with the seed and options of an earlier one of the run"
    )
    everything = episodes_frame(context.snapshot, None).select("run_id", "number")
    numbers = collect_episodes(context.snapshot, everything).sort("run_id", "number").with_columns(
        lost=pl.col("number") - pl.col("number").shift(1).over("run_id").fill_null(-1) - 1
    ).filter(pl.col("lost") > 0)  # fmt: skip
    lost = rows.select("run_id", "number").join(numbers, on=["run_id", "number"], how="left")["lost"]
    missed = lost.fill_null(0).to_numpy()
    yield from finding(
        "gap",
        "number",
        missed > 0,
        int(missed.sum()),
        "{values} numbers of runs are missing before {episodes}",
    )
    if "episode_return" in rows.columns:
        returns = rows["episode_return"].to_numpy()
        text = outlying("return", returns)
        yield from finding("outlier", "episode_return", far(returns), None, text, amounts=returns)
    lengths = rows["length"].to_numpy().astype(float)
    low, high = length_limits(lengths)
    text = f"{{episodes}} with a length below {low:.6g} or above {high:.6g}"
    odd = (lengths < low) | (lengths > high)
    yield from finding("outlier", "length", odd, None, text, amounts=lengths)


def _unsealed(context: ReadContext) -> Iterator[Finding]:
    """Yield the runs that wait for recovery; only for all episodes of the newest version."""
    snapshot = context.snapshot
    left = Journals.of(snapshot.layout).left if snapshot.newest and context.positions is None else []
    if left:
        runs = f"{counted(len(left), 'run')} of dead writers, such as {left[0]}: recover() brings them in"
        yield Finding("unsealed", "", np.zeros(0, np.int64), len(left), runs)

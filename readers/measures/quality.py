"""Measures of how good a set of episodes is to learn from: returns, coverage, entropy, repetition.

DuckDB computes them from the store's files, so memory holds a few numbers per episode and a sample of states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ...store.card import MAX_SCORE, MIN_SCORE
from ...store.common.arguments import discount_factor, real_number, suggest, whole_number
from ...store.common.progress import Progress, progress_meter
from ...store.errors import InvalidArgumentError
from ...store.layout import STEPS
from ...store.schema import StepSchema
from ..blocks import is_numeric
from ..context import ContextView, ReadContext
from ..frames import collected
from ..sql.rollout_views import compared
from ..sql.text import quote
from ..view_base import DescribedView

#: Of a MinHash signature; hashes of a band must agree for two episodes to be compared.
_HASHES, _BAND = 64, 4
#: The share of state-action pairs that near duplicates have in common.
_SIMILAR = 0.9
_DISTANCE_BYTES = 32 << 20
_LARGEST = 2**63 - 1
MEASURES = frozenset(
    {
        "average_return",
        "behavioural_entropy",
        "duplicates",
        "episodes",
        "estimated_return_improvement",
        "near_duplicates",
        "state_action_coverage",
        "trajectory_quality",
        "transitions",
        "unique_state_actions",
    }
)


def _scores(value: Any) -> tuple[float, float]:
    """Return the scores of a random and of an expert policy."""
    if isinstance(value, tuple | list | np.ndarray) and len(value) == 2:
        low, high = (real_number(f"scores[{i}]", value[i], least=-math.inf) for i in range(2))
        if low < high:
            return low, high
    raise InvalidArgumentError(
        f"scores={value!r:.200}: expected the returns of a random and of a better, expert policy."
    )


def measured(
    context: ReadContext,
    by: str | Sequence[str],
    state: str | None,
    gamma: float,
    reference: ContextView | None,
    scores: tuple[float, float] | None,
    entropy: tuple[float, int, int, int],
    progress: bool | Progress,
) -> pl.DataFrame:
    """Return how good episodes are to learn from; see `MeasuredView.quality`.

    Args:
        entropy: `alpha`, `neighbours`, `samples` and `seed`.
    """
    span = context.snapshot.card.reference_scores() if scores is None else _scores(scores)
    alpha, neighbours, samples, seed = entropy
    gamma, alpha = discount_factor("gamma", gamma), real_number("alpha", alpha)
    neighbours = whole_number("neighbours", neighbours, 2, _LARGEST)
    samples, seed = whole_number("samples", samples, 2, _LARGEST), whole_number("seed", seed, 0, _LARGEST)
    schema = context.snapshot.schema
    if schema.groups or schema.reward_shape:
        kind = "several agents" if schema.groups else "several objectives"
        raise InvalidArgumentError(f"quality() needs one return per episode; the store has {kind}.")
    if not len(context):
        raise InvalidArgumentError("The view has no episode, so there is nothing to measure.")
    columns = (by,) if isinstance(by, str) else tuple(by)
    measures = _Measures(context, state, columns)
    passes = (
        partial(measures.returns, gamma, span),
        partial(measures.coverage, context if reference is None else reference.context),
        measures.repetition,
        partial(measures.entropy, alpha, neighbours, samples, seed),
    )
    frames = []
    with progress_meter(progress, "Measuring", "passes") as report:
        for measure in passes:
            report(len(frames), len(passes))
            frames.append(measure())
        report(len(frames), len(passes))
    return (
        reduce(lambda joined, frame: joined.join(frame, on="group"), frames)
        .sort("group")
        .unnest("group")
        .rename({f"_{place}": name for place, name in enumerate(columns)})
        .drop("_")
    )


class _Measures:
    """Each method returns a frame with one row per group, its key in the struct column `group`."""

    def __init__(self, context: ReadContext, state: str | None, by: Sequence[str]) -> None:
        from ..sql.session import QuerySession

        self._session = QuerySession(context, read_only=False)
        self._groups = _groups(context, by)
        self._schema = schema = context.snapshot.schema
        self._given_state = state
        self._state = state or _listed(schema.observation.fields)
        self._action = _listed(schema.action.fields)
        self._rows = ""
        self._of_rollouts = context.snapshot.manifest.rollouts is not None
        if self._of_rollouts:
            # An observation is the number of a message alone.
            said = compared(context.snapshot.shown_schema(STEPS).names) or "NULL"
            self._rows = f"t, {_listed(schema.observation.fields)}, {self._action}, {said}"
            self._state = state or said

    def _query(self, text: str) -> pl.DataFrame:
        return self._session.query(f"WITH _groups AS ({self._groups}) {text}")

    def returns(self, gamma: float, scores: tuple[float, float] | None) -> pl.DataFrame:
        """Count episodes and transitions, and average their discounted returns."""
        # The order of a sum decides its last digit, and threads finish in any order.
        discounted = "SELECT episode_id, episode_return AS value FROM episodes"
        if gamma != 1:
            value = f"sum(reward * pow({gamma!r}, t) ORDER BY t)"
            discounted = f"SELECT episode_id, {value} AS value FROM transitions GROUP BY episode_id"
        mean, least = pl.col("average_return"), pl.col("_least")
        low, span = (None, None) if scores is None else (scores[0], scores[1] - scores[0])
        return (
            self._query(
                f"""SELECT any_value(grouped) AS "group", count(*) AS episodes, sum(length) AS transitions,
                avg(value ORDER BY episode_id) AS average_return, min(value) AS _least, max(value) AS _most
                FROM _groups JOIN ({discounted}) USING (episode_id) GROUP BY grouped"""
            )
            .with_columns(
                pl.col("transitions").cast(pl.Int64),
                trajectory_quality=(mean - pl.lit(low)) / pl.lit(span),
                estimated_return_improvement=pl.when(mean > least)
                .then((pl.col("_most") - mean) / (mean - least))
                .otherwise(0.0),
            )
            .drop("_least", "_most")
        )

    def coverage(self, reference: ReadContext) -> pl.DataFrame:
        """Count distinct pairs of state and action."""
        pairs = f"SELECT episode_id, hash({self._state}, {self._action}) AS pair FROM transitions"
        distinct = self._query(
            f"""SELECT any_value(grouped) AS "group", count(DISTINCT pair) AS unique_state_actions
            FROM _groups JOIN ({pairs}) USING (episode_id) GROUP BY grouped"""
        )
        from ..sql.session import QuerySession

        count = QuerySession(reference, read_only=False).query(f"SELECT count(DISTINCT pair) FROM ({pairs})")
        return distinct.with_columns(
            state_action_coverage=pl.col("unique_state_actions") / float(count.item())
        )

    def repetition(self) -> pl.DataFrame:
        """Count episodes that repeat an earlier one of their group, exactly or nearly."""
        hashes = ", ".join(f"min(hash(xor(pair, {number}::UBIGINT)))" for number in _salts())
        episodes = self._query(
            f"""SELECT grouped AS "group", started_at, rows, xored, summed, signature
            FROM _groups
            JOIN ({row_digests(self._schema, self._rows)})
            USING (episode_id)
            JOIN (SELECT episode_id, [{hashes}] AS signature
                FROM (SELECT episode_id, hash({self._state}, {self._action}) AS pair FROM transitions)
                GROUP BY episode_id)
            USING (episode_id) ORDER BY started_at, episode_id"""
        )
        rows = [
            {
                "group": part["group"][0],
                "duplicates": len(part) - part.select("rows", "xored", "summed").n_unique(),
                "near_duplicates": _near_duplicates(np.array(part["signature"].to_list(), np.uint64)),
            }
            for part in episodes.partition_by("group", maintain_order=True)
        ]
        return pl.DataFrame(rows, schema_overrides={"group": episodes.schema["group"]})

    def entropy(self, alpha: float, neighbours: int, samples: int, seed: int) -> pl.DataFrame:
        """Estimate the behavioural entropy of a sample of states."""
        vector = self._vector()
        drawn = self._query(
            f"""SELECT any_value(grouped) AS "group", arg_min(state, place, {samples}) AS states
            FROM _groups JOIN (SELECT episode_id, {vector or "NULL::DOUBLE[]"} AS state,
                hash(episode_id, t, {seed}) AS place FROM transitions) USING (episode_id)
            GROUP BY grouped"""
        )
        values = [
            behavioural_entropy(np.array(states), alpha, neighbours)
            if vector is not None and _are_points(states)
            else None
            for states in drawn["states"].to_list()
        ]
        return drawn.select("group").with_columns(pl.Series("behavioural_entropy", values, pl.Float64))

    def _vector(self) -> str | None:
        """Return an SQL expression for the state as a list of numbers; None if it is no such list."""
        if self._given_state is None and self._of_rollouts:
            return None
        if self._given_state is None:
            fields = self._schema.observation.fields
            parts = [(quote(field.name), field.type) for field in fields]
        else:
            relation = self._session.sql(f"SELECT {self._state} FROM transitions")
            parts = [(f"({self._state})", relation.limit(0).to_arrow_table().schema.field(0).type)]
        lists = []
        for text, kind in parts:
            if not is_numeric(kind):
                return None
            lists.append(f"{text}::DOUBLE[]" if pa.types.is_list(kind) else f"[{text}::DOUBLE]")
        return f"flatten([{', '.join(lists)}])" if lists else None


def row_digests(schema: StepSchema, columns: str = "") -> str:
    """Return a query for a row per episode, which identifies its steps: episode_id, rows, xored, summed.

    Args:
        schema: the store's.
        columns: of steps, as a list in SQL; by default all but dynamic ones.
    """
    columns = columns or ", ".join(quote(name) for name in schema.steps.names[1:])
    return f"""SELECT episode_id, count(*) AS rows, bit_xor(row) AS xored,
        sum(row::HUGEINT)::VARCHAR AS summed
        FROM (SELECT episode_id, hash({columns}) AS row FROM steps) GROUP BY episode_id"""


def _listed(fields: Iterable[pa.Field]) -> str:
    return ", ".join(quote(field.name) for field in fields) or "NULL"


def _are_points(states: list[list[float | None]] | None) -> bool:
    """Return whether states are numbers of one shape, none of them NULL."""
    lengths = {len(state) for state in states or ()}
    return len(lengths) == 1 and 0 not in lengths and not any(None in state for state in states or ())


def _groups(context: ReadContext, by: Sequence[str]) -> str:
    """Return a query for the episodes with their group: a struct of the columns `by`."""
    snapshot = context.snapshot
    tables = {"episodes": snapshot.episodes_schema.names, "runs": snapshot.runs_schema.names}
    # The fields have names of our own, since DuckDB takes "a" and "A" for one.
    columns = ["_: 0"]
    for place, name in enumerate(by):
        table = next((table for table, names in tables.items() if name in names), None)
        if table is None:
            known = sorted({*tables["episodes"], *tables["runs"]})
            raise InvalidArgumentError(
                f"There is no column {name!r} in episodes or runs.{suggest(name, known)}"
            )
        if name in MEASURES:
            raise InvalidArgumentError(
                f"The column {name!r} has the name of a measure. Annotate it under another."
            )
        columns.append(f"_{place}: {table}.{quote(name)}")
    fields = ", ".join(columns)
    return f"""SELECT episodes.episode_id, episodes.length, episodes.started_at, {{{fields}}} AS grouped
        FROM episodes JOIN runs USING (run_id)"""


def _salts() -> list[int]:
    return np.random.default_rng(0).integers(1 << 63, size=_HASHES).tolist()


def _near_duplicates(signatures: np.ndarray) -> int:
    """Return how many of the MinHash signatures resemble an earlier one.

    Each is compared with the first of those with which it shares a band (Broder 1997: the share of equal
    hashes estimates the Jaccard similarity of the sets).
    """
    similar = np.zeros(len(signatures), bool)
    for start in range(0, _HASHES, _BAND):
        band = np.ascontiguousarray(signatures[:, start : start + _BAND])
        _, first, bucket = np.unique(band, axis=0, return_index=True, return_inverse=True)
        earlier = first[bucket.reshape(-1)]
        share = (signatures == signatures[earlier]).mean(axis=1)
        similar |= (share >= _SIMILAR) & (earlier < np.arange(len(signatures)))
    return int(similar.sum())


def behavioural_entropy(states: np.ndarray, alpha: float = 0.7, neighbours: int = 10) -> float:
    """Estimate the generalised behavioural entropy of states from distances to nearest neighbours.

    With r the distance of a state to the k-th nearest of all states (itself the first), over the mean of
    these distances, and b = (ln d) ** (1 - alpha) for d dimensions, it is the mean of
    `r * exp(-b * ln(r + 1) ** alpha) * b * ln(r + 1) ** alpha`. States of one dimension, and states that are
    all the same, give 0. Source: Suttle, Suresh and Nieto-Granda, "Behavioral Entropy-Guided Dataset
    Generation for Offline Reinforcement Learning", 2025.

    Args:
        states: float, shape (n, d).
        alpha: how much rare states count.
        neighbours: k.
    """
    count, dimensions = states.shape
    kth = min(neighbours, count) - 1
    radii = np.empty(count)
    chunk = max(1, _DISTANCE_BYTES // (8 * count * dimensions))
    for start in range(0, count, chunk):
        apart = np.linalg.norm(states[start : start + chunk, None, :] - states, axis=-1)
        radii[start : start + chunk] = np.partition(apart, kth, axis=1)[:, kth]
    mean = radii.mean()
    if mean == 0:
        return 0.0
    radii /= mean
    weight = np.log(dimensions) ** (1 - alpha) * np.log1p(radii) ** alpha
    return float(np.mean(radii * np.exp(-weight) * weight))


def normalized_score(view: DescribedView, returns: Any = None) -> np.ndarray:
    """Place returns on a scale where a random policy has 0 and an expert policy has 1.

    That is `(return - ref_min_score) / (ref_max_score - ref_min_score)` with the scores of the card, as
    in D4RL and Minari.

    Args:
        view: a store, or a view of it.
        returns: what to place; None for the undiscounted return of every episode of the view, in its order.

    Returns:
        float64, shaped like `returns`.

    Raises:
        InvalidArgumentError: the card lacks the scores, or the store has several objectives and no returns
            are given.
    """
    scores = view.context.snapshot.card.reference_scores()
    if scores is None:
        raise InvalidArgumentError(
            f"The card has no {MIN_SCORE} and {MAX_SCORE}. Set them: store.card = {{**store.card, "
            f"{MIN_SCORE!r}: ..., {MAX_SCORE!r}: ...}}."
        )
    if returns is None:
        if view.context.snapshot.schema.reward_shape:
            raise InvalidArgumentError("The episodes have several returns each: pass the ones to place.")
        returns = collected(view.episodes.select("episode_return")).to_series()
    low, high = scores
    return (np.asarray(returns, np.float64) - low) / (high - low)

"""Polars that knows episodes: the namespace `rl` on expressions, LazyFrames and DataFrames.

`import episodelake` registers it (`episodelake/lazy.py`), so
`pl.col("reward").rl.discounted(0.99).over("episode_id")` works on every frame. Everything is made of
Polars' own expressions: lazy, in Rust, with no Python call per episode. docs/polars.md says what streams.
The frame methods take frames like `store.steps` and find the episodes by `episode_id` (and `agent_id`) and
`t`; the order of the rows does not matter to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import polars as pl

from ..store.common.arguments import discount_factor, expect, is_real, suggest, whole_number
from ..store.errors import QueryError
from ..store.names import next_name

_FOLLOWED = "_followed"


class EpisodeExpr:
    """`pl.col("reward").rl`: expressions along an episode. Put `.over("episode_id")` after it.

    Over what, and so where an episode begins and ends, is yours to say: `.over("episode_id", "agent_id")` in
    a multi-agent store, `order_by="t"` where the rows may be in another order than `store.steps` has them.
    """

    def __init__(self, expression: pl.Expr) -> None:
        self._expression = expression

    def discounted(self, gamma: float = 1.0) -> pl.Expr:
        """Return the discounted sum from each row to the last: `R_t = x_t + gamma * R_(t+1)`; float64.

        Null counts as 0 and stays null, as on the last row of an episode. NaN and infinities reach all rows
        before them. Nothing is divided by a power of gamma, so long episodes are as exact as short ones: the
        error is that of rounding, beside the largest value ahead.

        Args:
            gamma: from 0 to 1.

        Raises:
            InvalidArgumentError: gamma is no such number.
        """
        gamma = discount_factor("gamma", gamma)
        values = self._expression.cast(pl.Float64)
        # Apart, since 0 times infinity would be no number.
        finite = pl.when(values.is_finite()).then(values).otherwise(0.0)
        # 0, or what is not finite; null stays so, which the sum passes over.
        odd = values - finite
        return _discounted(finite, gamma) + (odd if gamma == 0 else odd.cum_sum(reverse=True))

    def n_step(self, n: int, gamma: float = 1.0) -> pl.Expr:
        """Return the discounted sum of each row and the n - 1 after it; fewer where the episode ends;
        float64.

        Null counts as 0 and stays null.

        Args:
            n: how many, at least 1.
            gamma: from 0 to 1.

        Raises:
            InvalidArgumentError: n or gamma is out of range.
        """
        gamma, n = discount_factor("gamma", gamma), whole_number("n", n, 1)
        values = self._expression.cast(pl.Float64)
        return pl.when(values.is_not_null()).then(_window_sums(values.fill_null(0.0), n, gamma))

    def ema(self, alpha: float) -> pl.Expr:
        """Return the exponential moving average: `y_0 = x_0`, `y_t = alpha * x_t + (1 - alpha) * y_(t-1)`;
        float64.

        Null is passed over and stays null.

        Args:
            alpha: above 0, to 1.

        Raises:
            InvalidArgumentError: alpha is no such number.
        """
        expect(is_real(alpha) and 0 < alpha <= 1, "alpha", alpha, "a number above 0 and at most 1")
        values = self._expression.cast(pl.Float64)
        average = values.ewm_mean(alpha=alpha, adjust=False, ignore_nulls=True)
        return pl.when(values.is_not_null()).then(average)

    def next(self, n: int = 1) -> pl.Expr:
        """Return the value n rows later; null where the episode has ended."""
        return self._expression.shift(-whole_number("n", n, 1))

    def previous(self, n: int = 1) -> pl.Expr:
        """Return the value n rows earlier; null where the episode had not begun."""
        return self._expression.shift(whole_number("n", n, 1))

    def first_hit(self, t: str = "t") -> pl.Expr:
        """Return the first `t` at which a condition holds, for `group_by(...).agg(...)`; null if never."""
        return pl.col(t).filter(self._expression).min()


Frame = TypeVar("Frame", pl.LazyFrame, pl.DataFrame)


class _Frame(Generic[Frame]):
    """Methods over episodes; each gives a new frame of the same kind."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame.lazy()
        self._eager = isinstance(frame, pl.DataFrame)

    def _given(self, frame: pl.LazyFrame) -> Frame:
        given: Any = frame.collect() if self._eager else frame
        return given

    def transitions(self) -> Frame:
        """Return the rows that have a transition: all but the last of each episode, or of each agent in
        it.
        """
        self._keys("terminated")
        return self._given(self._frame.filter(pl.col("terminated").is_not_null()))

    def with_next_observation(self) -> Frame:
        """Return the transitions with what came with the next observation: `next_observation`, or a column
        for each part of it, `next_info.<key>` and `next_policy.<key>`.

        Start from `store.steps`, and filter afterwards: the last observation of an episode stands on the row
        that `store.transitions` lacks.

        Raises:
            QueryError: the frame has no observation, or not the columns of steps. At collecting: no row
                follows a transition in the frame, so its next observation is not known.
        """
        keys = self._keys("t", "terminated")
        names = {name: following for name in self._schema if (following := next_name(name))}
        if not names:
            raise QueryError(f"The frame has no column observation; it has {', '.join(self._schema)}.")
        following = [
            pl.col(name).shift(-1).over(keys, order_by="t").alias(alias) for name, alias in names.items()
        ]
        followed = pl.col("t").shift(-1).over(keys, order_by="t").is_not_null()
        complete = (followed | pl.col("terminated").is_null()).alias(_FOLLOWED)
        # As a part of the filter, since Polars does not compute, and so not check, an unused column.
        kept = pl.col("terminated").is_not_null() & pl.col(_FOLLOWED).map_batches(
            _all_followed, return_dtype=pl.Boolean, is_elementwise=True
        )
        return self._given(self._frame.with_columns(*following, complete).filter(kept).drop(_FOLLOWED))

    def returns_to_go(self, gamma: float = 1.0, name: str = "return_to_go") -> Frame:
        """Return the frame with the discounted sum of the rewards from each row to its episode's end.

        A list of them where rewards are vectors. To know how long those are, one reward is read at once.

        Args:
            gamma: from 0 to 1.
            name: of the new column.
        """
        return self._with_sums(name, lambda reward: EpisodeExpr(reward).discounted(gamma))

    def n_step(self, n: int, gamma: float = 1.0, name: str = "n_step_return") -> Frame:
        """Return the frame with the discounted sum of each reward and the n - 1 after it in its episode.

        Args:
            n: how many, at least 1.
            gamma: from 0 to 1.
            name: of the new column.
        """
        return self._with_sums(name, lambda reward: EpisodeExpr(reward).n_step(n, gamma))

    def discounted_return(self, gamma: float = 1.0) -> Frame:
        """Return one row per episode (or agent): its keys and `discounted_return`, of `gamma^t * reward`."""
        gamma = discount_factor("gamma", gamma)
        keys = self._keys("t", "reward")
        weight = pl.lit(gamma).pow(pl.col("t"))

        def total(reward: pl.Expr) -> pl.Expr:
            # What is not finite stays so, however small its weight.
            counted = pl.lit(True) if gamma else pl.col("t") == 0
            term = pl.when(reward.is_finite()).then(reward * weight).otherwise(reward)
            return pl.when(counted).then(term).sum()

        summed = self._each_objective(total).alias("discounted_return")
        return self._given(self._frame.group_by(keys).agg(summed))

    def first_hit(self, condition: pl.Expr) -> Frame:
        """Return one row per episode (and agent): its keys, and the first `t` at which a condition holds;
        else null.

        Args:
            condition: over the columns of the frame. On the last row of an episode only the observation is
                there, and a condition on anything else is null, which is not a hit.
        """
        expect(isinstance(condition, pl.Expr), "condition", condition, "a Polars expression")
        hits = self._frame.group_by(self._keys("t")).agg(EpisodeExpr(condition).first_hit())
        return self._given(hits)

    def step_percentiles(self, value: pl.Expr | str) -> Frame:
        """Return how a value is spread over the episodes at each `t`, in the order of `t`.

        Columns: `t`, `episodes` (how many have the value there), `mean`, `minimum`, `p10`, `p25`, `median`,
        `p75`, `p90`, `maximum`; float64, interpolated between the two nearest values.
        """
        self._keys("t")
        chosen = (pl.col(value) if isinstance(value, str) else value).cast(pl.Float64)
        given = self._frame.select("t", chosen.alias("value")).filter(pl.col("value").is_not_null())
        named = {
            "minimum": 0.0,
            "p10": 0.1,
            "p25": 0.25,
            "median": 0.5,
            "p75": 0.75,
            "p90": 0.9,
            "maximum": 1.0,
        }
        spread = [pl.col("value").quantile(at, "linear").alias(name) for name, at in named.items()]
        counted = [pl.len().alias("episodes"), pl.col("value").mean().alias("mean")]
        return self._given(given.group_by("t").agg(*counted, *spread).sort("t"))

    def moving_return(self, episodes: int = 100) -> Frame:
        """Return a frame of episodes with `moving_return`: the mean return of each and those before it in its
        run.

        Args:
            episodes: over how many, itself included; at the beginning of a run over those that there are.
        """
        count = whole_number("episodes", episodes, 1)
        self._need("run_id", "number", "episode_return")
        mean = self._each_objective(
            lambda value: value.rolling_mean(count, min_samples=1).over("run_id", order_by="number"),
            "episode_return",
        )
        return self._given(self._frame.with_columns(mean.alias("moving_return")))

    def _with_sums(self, name: str, sums: Callable[[pl.Expr], pl.Expr]) -> Frame:
        keys = self._keys("t", "reward")
        expression = self._each_objective(lambda reward: sums(reward).over(keys, order_by="t"))
        return self._given(self._frame.with_columns(expression.alias(name)))

    @property
    def _schema(self) -> pl.Schema:
        return self._frame.collect_schema()

    def _keys(self, *others: str) -> list[str]:
        """Return the columns that identify episodes (and agents); the others must be there too."""
        self._need("episode_id", *others)
        return ["episode_id", *(["agent_id"] if "agent_id" in self._schema else [])]

    def _need(self, *names: str) -> None:
        missing = [name for name in names if name not in self._schema]
        if missing:
            there = list(self._schema)
            raise QueryError(
                f"The frame has no column {missing[0]!r}.{suggest(missing[0], there)} "
                f"It has {', '.join(there)}. "
                "Expected a frame like store.steps or, for returns of runs, store.episodes."
            )

    def _each_objective(self, make: Callable[[pl.Expr], pl.Expr], column: str = "reward") -> pl.Expr:
        """Apply `make` to a column; to each number of a vector, as a list."""
        values = pl.col(column)
        if not isinstance(self._schema[column], pl.List):
            return make(values)
        one = self._frame.select(values.drop_nulls().head(1).list.len()).collect().to_series()
        parts = [make(values.list.get(number)) for number in range(one[0] if len(one) else 1)]
        together = pl.concat_list(parts)
        return pl.when(parts[0].is_not_null()).then(together) if column == "reward" else together


class EpisodeLazyFrame(_Frame[pl.LazyFrame]):
    """`store.steps.rl`: frames computed over episodes. Every method gives a new LazyFrame."""


class EpisodeFrame(_Frame[pl.DataFrame]):
    """`frame.rl`: the methods of `EpisodeLazyFrame` on a DataFrame, carried out at once."""


def _discounted(values: pl.Expr, gamma: float) -> pl.Expr:
    """Discounted sums to the end of finite values without nulls."""
    if gamma == 0:
        return values
    if gamma == 1:
        return values.cum_sum(reverse=True)
    # The moving average of y_t = gamma * y_(t-1) + alpha * x_t that begins at 0 is alpha times the sum.
    alpha, later_first = 1 - gamma, values.reverse()
    after = later_first.shift(1, fill_value=0.0).ewm_mean(alpha=alpha, adjust=False) / alpha
    return (later_first + after * gamma).reverse()


def _window_sums(values: pl.Expr, n: int, gamma: float) -> pl.Expr:
    """Discounted sums of n values from each on, of those that there are."""
    if gamma == 0 or n == 1:
        return values
    weights = [gamma**ahead for ahead in range(n)]
    return values.reverse().rolling_sum(n, weights=weights[::-1], min_samples=1).reverse()


def _all_followed(followed: pl.Series) -> pl.Series:
    """Return the argument if it is true everywhere."""
    if not followed.all():
        raise QueryError(
            "with_next_observation: the frame lacks rows that hold the next observation of its transitions. "
            "Take it of store.steps, not of store.transitions or of parts of episodes, and filter afterwards."
        )
    return followed

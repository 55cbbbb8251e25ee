"""`view.plot`: the door to the charts of many episodes. Altair is imported with the first of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...store.common.arguments import suggest
from ...store.common.optional_packages import require
from ..context import ReadContext
from ..episode_data import EpisodeData

if TYPE_CHECKING:
    from .chart import AnyChart
    from .numbers import ChartNumbers

_PURPOSE = "A chart"


class Plots:
    """The charts of some episodes.

    Each method gives a chart of Altair that shows itself in a notebook: drag and scroll to zoom, point at
    marks to read them, click in the legend to choose. `.save("chart.html")` writes it for others, `.svg` and
    `.png` too.

    What a chart holds is aggregated, or sampled in the same way every time, so that it stays small; its
    subtitle says so. All methods raise `NothingToDrawError` for a view without episodes,
    `MissingPackageError` without Altair, `CorruptStoreError` for a damaged file, and `InvalidArgumentError`
    for arguments that make no sense.
    """

    def __init__(self, context: ReadContext, episodes: Iterable[EpisodeData]) -> None:
        self._context = context
        self._episodes = episodes

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name the charts that are like an unknown one."""
            near = suggest(name, [each for each in vars(Plots) if not each.startswith("_")])
            raise AttributeError(f"plot has no attribute {name!r}.{near}", name=name, obj=self)

        def __call__(self, *args: Any, **options: Any) -> Any:
            """Name the charts, of which `plot` alone is none."""
            charts = ", ".join(f"plot.{name}()" for name in vars(Plots) if not name.startswith("_"))
            raise TypeError(f"plot() draws nothing. Choose a chart: {charts}.")

    def returns(self, over: str = "episodes", by: str | None = None, *, scale: str = "clipped") -> AnyChart:
        """Return the return of episodes over the course of their runs.

        Args:
            over: what the x axis counts: "episodes" of the run, its "steps", "time", or "policy": the
                `metadata.policy_version` of rollouts.
            by: what gets a colour of its own: "run" (the default), "agent" (the default for several agents),
                or a column of the tables episodes or runs, such as "end_reason" or "metadata.level"; a key of
                the runs' metadata is "run.algo". The twelve with the most episodes are drawn.
            scale: of the y axis: "clipped", which ends before a few values that are far from the others (they
                are crosses at the edge, and the subtitle counts them); "linear", with all values; or "log",
                which is linear near 0, so that it takes negative values.

        Returns:
            A line of means with a band from the 10 % to the 90 % quantile, and up to 2,000 single episodes.
            Vector rewards give a panel for each objective. With several agents, and `by` something else than
            "agent", the return is the sum over agents.
        """
        require("altair", _PURPOSE)
        from .returns import draw_over_time

        return draw_over_time(self._context, "return", over, by, scale)

    def learning_curve(
        self,
        over: str = "episodes",
        by: str | None = None,
        *,
        what: str = "return",
        smooth: int = 0,
        band: str = "episodes",
    ) -> AnyChart:
        """Return how returns change over training, by run or by group of runs.

        Args:
            over, by: as for `returns`; `by="run.algo"` puts the runs of an algorithm into one curve.
            what: "return", "length", or a part of the reward of rollouts, such as "rewards.format".
            smooth: draw means of so many neighbouring stretches on each side, 0 to 50.
            band: "episodes": the line is the median of the episodes of a stretch, the band is from their 10 %
                to their 90 % quantile. Of values that are only two, such as 0 and 1, it is their mean with a
                95 % interval (Wilson's). "runs": the line is the interquartile mean of the runs' medians, the
                band its 95 % interval by bootstrap over the runs, always the same; of a single run it has no
                width.

        Returns:
            Up to 100 stretches of each series. Single episodes are not drawn, so outliers do not flatten the
            curves.
        """
        require("altair", _PURPOSE)
        from .learning import draw_learning_curve

        return draw_learning_curve(self._context, what, over, by, smooth, band)

    def lengths(self, over: str | None = None, by: str | None = None, *, scale: str = "clipped") -> AnyChart:
        """Return how long episodes are, in steps.

        Args:
            over: None for a histogram; or what the x axis counts, as for `returns`.
            by: as for `returns`; of a histogram the end reason if it is not given.
            scale: of the y axis, as for `returns`; of a histogram as for `return_histogram`.
        """
        require("altair", _PURPOSE)
        if over is not None:
            from .returns import draw_over_time

            return draw_over_time(self._context, "length", over, by, scale)
        from .returns import draw_distribution

        return draw_distribution(self._context, "length", by or "end_reason", None, scale)

    def return_histogram(
        self, by: str | None = None, bins: int | None = None, *, scale: str = "clipped"
    ) -> AnyChart:
        """Return a histogram of returns: bars side by side for a few integers, else outlines by series.

        Args:
            by: as for `returns`.
            bins: about how many; None for 40. Edges are round numbers.
            scale: "clipped": where a few values are far from the others, the outer bars hold them, and the
                subtitle counts them; or "linear". "log" is for lines only: histograms stay linear.
        """
        require("altair", _PURPOSE)
        from .returns import draw_distribution

        return draw_distribution(self._context, "return", by, bins, scale)

    def actions(self, by: str | None = None, column: str | None = None) -> AnyChart:
        """Return how often each action is taken: shares of discrete actions, histograms of continuous ones.

        Args:
            by: as for `returns`; None for all together, and for several agents by agent.
            column: a part of a nested action space, such as "action.move"; None for all.
        """
        require("altair", _PURPOSE)
        from .actions import draw_actions

        return draw_actions(self._context, by, column)

    def overlay(self, signals: Sequence[str] | None = None, align: str = "start") -> AnyChart:
        """Return the first 24 episodes of the view over each other, as signals over steps.

        Args:
            signals: as `Episode.plot` takes them; eight panels at most.
            align: "start"; "end"; or an SQL condition over steps, such as "reward > 0": the first step that
                fulfils it stands at 0, and episodes without one are left out.

        Returns:
            A panel for each signal, with a line for each episode. A dashed line marks the first step at which
            an episode differs from the first one.
        """
        require("altair", _PURPOSE)
        from .overlay import draw_overlay

        return draw_overlay(self._context, self._episodes, signals, align)

    def visitation(self, x: str | None = None, y: str | None = None, bins: int = 50) -> AnyChart:
        """Return how often each part of the observation space is visited, over all observations of all steps.

        Args:
            x, y: elements of the observation, as signals are called: "observation[0]",
                "observation.place[1]"; of scalars the column. None for the first two that there are. With a
                single one, a histogram.
            bins: along each axis, of continuous elements; whole numbers of a small range get a cell each.

        Raises:
            NothingToDrawError: the observations are images, texts or of no fixed length.
        """
        require("altair", _PURPOSE)
        from .actions import draw_visitation

        return draw_visitation(self._context, x, y, bins)

    def numbers(
        self, chart: str, *, over: str | None = None, by: str | None = None, smooth: int | None = None
    ) -> ChartNumbers:
        """Return the numbers behind a chart as a table, to draw with another library; Altair is not needed.

        Args:
            chart: "returns", "lengths", "learning_curve", "actions" or "visitation".
            over, by, smooth: as for the method of that name; `over` and `smooth` of "learning_curve" alone,
                `by` also of "returns" and "lengths", where None are the ids of runs.

        Returns:
            The `rows` of "returns" and "lengths" are episodes with `series`, `panel` (the objective of vector
            rewards) and `value`, in the order in which they began; of the 20 newest runs, or largest series.
            `ends` is where their axis ends, so that a few outliers do not flatten it.
            Those of "learning_curve" are stretches of episodes with `series`, `panel`, `x`, `value`,
            `low` and `high` (the line and its band), `episodes` and `runs`. Those of "actions" are
            values (`from` equals `to`) or bins with `action`, `from`, `to`, `count` and `share`; those of
            "visitation" cells with `visits` and, of each axis, `x`, `x_from` and `x_to`. `notes` are
            sentences on what the rows are, and on what is left out.

        Raises:
            InvalidArgumentError: there is no such chart, or its numbers do not depend on an option.
        """
        from .numbers import chart_numbers

        return chart_numbers(self._context, chart, over=over, by=by, smooth=smooth)

    def __repr__(self) -> str:
        """Return the charts that there are."""
        return (
            f"Plots of {len(self._context)} episodes: returns, learning_curve, lengths, return_histogram, "
            "overlay, actions, visitation"
        )

"""Learning curves as SVG, drawn by Altair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import altair as alt
import polars as pl

from .training import Trained


def curve_table(trained: Mapping[str, Trained]) -> pl.DataFrame:
    """The points of all curves: learner, updates, loss, mean_return."""
    return pl.DataFrame(
        [
            {"learner": name, "updates": point.updates, "loss": point.loss, "mean_return": point.mean_return}
            for name, learner in trained.items()
            for point in learner.curve
        ]
    )


def draw_curves(trained: Mapping[str, Trained], recorded: float, path: Path) -> None:
    """Write a chart of mean returns by updates, one for each learner, with the recorded mean as a line.

    Args:
        trained: by the learner's name.
        recorded: the mean return of the episodes that were learnt from.
        path: of the SVG file.
    """
    table = curve_table(trained).drop("loss").with_columns(recorded=pl.lit(recorded))
    returns = alt.Chart().mark_line(point={"size": 18}, strokeWidth=1.8, color="#2c6fbb")
    returns = returns.encode(
        alt.X("updates:Q", title="gradient updates"),
        alt.Y(
            "mean_return:Q",
            title="mean return of 20 episodes (steps)",
            scale=alt.Scale(domain=[0, 500], clamp=True),
        ),
    )
    before = alt.Chart().mark_rule(strokeDash=[5, 4], color="#c8690b").encode(alt.Y("mean(recorded):Q"))
    panels = alt.layer(returns, before, data=table).properties(width=220, height=200)
    chart = panels.facet(
        column=alt.Column("learner:N", title=None, sort=list(trained), header=alt.Header(labelFontSize=13))
    ).resolve_scale(x="independent")
    title = alt.Title(
        "CartPole: learning from recorded episodes",
        subtitle=f"dashed: the mean return of the recorded episodes, {recorded:.0f}",
    )
    chart.properties(title=title).save(path)

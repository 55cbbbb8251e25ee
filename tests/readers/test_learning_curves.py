"""Learning curves: what they draw, computed again by plain loops and SciPy."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
from effort import looped
from episodelake.readers.charts.learning import interquartile_band
from picture_stores import rows_of, scores, told
from test_cli import call, no_terminal, printed, refused, table

__all__ = ["no_terminal"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Five runs of 160 episodes, of two kinds; one episode has a return far from all others."""
    rng = np.random.default_rng(5)
    returns = {f"run{k}": rng.normal(np.arange(160) / 20 + k, 1).round(3).tolist() for k in range(5)}
    returns["run2"][80] = 1e7
    kinds = {f"run{k}": "odd" if k % 2 else "even" for k in range(5)}
    return scores(tmp_path_factory.mktemp("curves") / "store", returns, **kinds)


def curve(store: el.EpisodeStore, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """The rows of the lines of a learning curve, by series."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(store.plot.learning_curve(**options), "line"):
        found.setdefault(row["series"], []).append(row)
    return found


def returns_of(store: el.EpisodeStore, name: str) -> np.ndarray:
    """The returns of a run, in its order."""
    return np.array([episode.episode_return for episode in store if episode.run_id.startswith(name)])


def test_medians_and_quantiles_of_episodes(store: el.EpisodeStore) -> None:
    """Each stretch has the median and the quantiles of its episodes, and every episode is in one."""
    rows = curve(store)
    assert set(rows) == {f"run{k}" for k in range(5)}
    for name, line in rows.items():
        values, place = returns_of(store, name), np.minimum(np.arange(160) * 20 // 159, 19)
        parts = [values[place == each] for each in range(20)]
        assert [row["episodes"] for row in line] == [len(part) for part in parts]
        for key, quantile in (("low", 0.1), ("value", 0.5), ("high", 0.9)):
            assert [row[key] for row in line] == pytest.approx(
                [np.quantile(part, quantile) for part in parts]
            )


@pytest.mark.further
def test_groups_of_runs_have_bootstrap_bands(store: el.EpisodeStore) -> None:
    """A group's line is the interquartile mean of its runs' medians, within its band, and not the outlier."""
    from scipy.stats import trim_mean

    rows = curve(store, by="run.algo", band="runs")
    assert {name: line[0]["runs"] for name, line in rows.items()} == {"even": 3, "odd": 2}
    for name, runs in (("even", (0, 2, 4)), ("odd", (1, 3))):
        place = np.minimum(np.arange(160) * 20 // 159, 19)
        values = [returns_of(store, f"run{k}") for k in runs]
        medians = [[np.median(each[place == at]) for at in range(20)] for each in values]
        assert [row["value"] for row in rows[name]] == pytest.approx(trim_mean(medians, 0.25, axis=0))
        assert all(row["low"] <= row["value"] <= row["high"] < 100 for row in rows[name])
        assert [row["episodes"] for row in rows[name]] == [
            len(runs) * int((place == k).sum()) for k in range(20)
        ]
    assert rows == curve(store, by="run.algo", band="runs")


def test_rates_of_two_returns(tmp_path: Path) -> None:
    """Where returns are only two numbers the line is their mean, and the band SciPy's interval of Wilson."""
    from scipy.stats import binomtest

    returns = [5.0 if each else -1.0 for each in np.random.default_rng(0).random(160) < 0.8]
    made = scores(tmp_path / "store", {"run": returns})
    place = np.minimum(np.arange(160) * 20 // 159, 19)
    for at, row in enumerate(curve(made)["run"]):
        values = np.array(returns)[place == at]
        rates = binomtest(int((values == 5).sum()), len(values)).proportion_ci(method="wilson")
        assert row["value"] == pytest.approx(values.mean())
        assert [row["low"], row["high"]] == pytest.approx([6 * rates.low - 1, 6 * rates.high - 1])
    (title,) = made.plot.learning_curve().to_dict()["title"]["subtitle"]
    assert "line: mean of the episodes, band: 95 % interval of it" in title
    means = [[row["value"] for row in curve(made, band=band)["run"]] for band in ("episodes", "runs")]
    assert means[0] == means[1]


def test_bands_cover_what_they_claim() -> None:
    """Of many draws of runs around a known mean, about 95 % of the intervals contain it."""
    rng = np.random.default_rng(0)
    draws = [interquartile_band(rng.normal(3, 1, (30, 4))) for _ in range(100)]
    covered = np.mean([(low <= 3) & (high >= 3) for low, _, high in draws])
    assert 0.88 < covered < 0.99
    low, value, high = interquartile_band(np.array([[1.0, 2.0]]))
    assert low.tolist() == value.tolist() == high.tolist() == [1.0, 2.0]


def test_unfinished_episodes_are_left_out(tmp_path: Path) -> None:
    """Returns of episodes that the recorder cut bend no curve; a run that has no others is drawn."""
    store = scores(tmp_path / "store", {"ended": [5.0] * 40})
    flat = {"observations": np.zeros((2, 2), np.float32), "actions": np.ones(1, np.int64)}
    for name, returns in (("mixed", [7.0] * 40 + [1.0] * 8), ("cut", [3.0] * 40)):
        with store.writer(run=name) as writer:
            for value in returns:
                ended = value == 7
                writer.write_episode(**flat, rewards=[value], terminations=ended, truncations=False)
    store.refresh()
    assert dict(store.sql("select end_reason, count(*) from episodes group by 1").fetchall())["cut"] == 48
    for options in ({}, {"over": "steps"}, {"band": "runs"}):
        values = {name: {row["value"] for row in line} for name, line in curve(store, **options).items()}
        assert values == {"ended": {5.0}, "mixed": {7.0}, "cut": {3.0}}
    assert sum(row["episodes"] for row in curve(store)["mixed"]) == 40
    assert "8 unfinished episodes (cut or interrupted) not drawn" in told(store.plot.learning_curve())
    unfinished = store.filter("end_reason = 'cut' and run.name = 'mixed'")
    assert "unfinished" not in told(unfinished.plot.learning_curve())


def test_runs_of_different_lengths(tmp_path: Path) -> None:
    """Where a run has ended, the others go on alone."""
    store = scores(tmp_path / "store", {"long": [1.0] * 80, "short": [5.0] * 40}, long="a", short="a")
    line = curve(store, by="run.algo", band="runs")["a"]
    assert [row["value"] for row in line if row["x"] < 35] == [3.0] * sum(row["x"] < 35 for row in line)
    assert [row["value"] for row in line if row["x"] > 45] == [1.0] * sum(row["x"] > 45 for row in line)
    assert {row["runs"] for row in line} == {1, 2}


def test_smoothing(store: el.EpisodeStore) -> None:
    """Smoothing draws the mean of neighbours, at the ends of those that there are; the subtitle says so."""
    plain, smooth = curve(store)["run1"], curve(store, smooth=2)["run1"]
    values = [row["value"] for row in plain]
    means = [np.mean(values[max(k - 2, 0) : k + 3]) for k in range(len(values))]
    assert [row["value"] for row in smooth] == pytest.approx(means)
    assert "mean of 5 neighbouring stretches" in told(store.plot.learning_curve(smooth=2))


def test_an_outlier_leaves_the_axis(store: el.EpisodeStore) -> None:
    """The axis holds all lines; a band that one episode blows up ends at its edge."""
    panel = store.plot.learning_curve().to_dict()["layer"][1]
    low, high = panel["encoding"]["y"]["scale"]["domain"]
    values = [row["value"] for line in curve(store).values() for row in line]
    assert low <= min(values) and max(values) <= high < 100


def test_clipped_histograms(store: el.EpisodeStore) -> None:
    """Outer bars hold what is far away, and the subtitle says how far; without outliers nothing changes."""
    chart = store.plot.return_histogram(by="end_reason")
    bars = rows_of(chart, "rect")
    assert sum(row["episodes"] for row in bars) == 800 and max(row["to"] for row in bars) < 100
    assert "outer bars: with 1 value beyond" in told(chart)
    assert max(row["to"] for row in rows_of(store.plot.return_histogram(scale="linear"), "rect")) > 1e6
    calm = store.filter("episode_return < 1000")
    assert told(calm.plot.lengths(scale="linear")) == told(calm.plot.lengths())


@looped("options", [{"band": "mean"}, {"smooth": -1}, {"what": "reward"}, {"over": "t"}])
def test_bad_arguments(store: el.EpisodeStore, options: dict[str, Any]) -> None:
    """An unknown choice is an error that names the argument."""
    with pytest.raises(el.errors.InvalidArgumentError, match=next(iter(options))):
        store.plot.learning_curve(**options)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"run\.algorithm"):
        store.plot.learning_curve(by="run.algorithm")


@pytest.mark.parametrize("by", [None, "run.algo"])
def test_the_command_tells_the_numbers_of_the_chart(store: el.EpisodeStore, by: str | None) -> None:
    """`plot PATH learning` has the medians and bands that the chart draws, by run or by group of runs."""
    words = [
        "plot",
        store.path,
        "learning",
        "--over",
        "steps",
        "--smooth",
        "1",
        *(["--by", by] if by else []),
    ]
    expected = curve(store, over="steps", by=by, smooth=1)
    rows = json.loads(printed(*words, "--json"))
    assert [row["series"] for row in rows] == sorted(expected)
    for row in rows:
        line = expected[row["series"]]
        assert row["episodes"] == sum(each["episodes"] for each in line)
        for name in ("x", "value", "low", "high"):
            assert [point[name] for point in row["points"]] == [each[name] for each in line]
    headers, *lines = table(printed(*words))
    assert headers[0] == "series"
    assert [line[0] for line in lines[: len(rows)]] == sorted(expected)


@pytest.mark.further
def test_the_command_draws_any_column(store: el.EpisodeStore) -> None:
    """`--by` gives a line for each value; what a chart does not take is refused."""
    ends = json.loads(printed("plot", store.path, "returns", "--by", "end_reason", "--json"))
    counts = store.sql("SELECT end_reason, count(*) FROM episodes GROUP BY 1").fetchall()
    assert {row["series"]: row["episodes"] for row in ends} == dict(counts)
    assert max(row["highest"] for row in ends) == 1e7
    kinds = json.loads(printed("plot", store.path, "histogram", "--by", "run.algo", "--json"))
    assert {row["series"]: row["episodes"] for row in kinds} == {"even": 480, "odd": 320}
    assert "that do: learning" in " ".join(refused(2, "plot", store.path, "returns", "--smooth", "2").split())
    assert printed("plot", store.path, "returns", "--over", "episodes")
    assert "--output FILE" in refused(1, "plot", store.path, "returns", "--over", "time")
    assert "run.algo" in refused(1, "plot", store.path, "learning", "--by", "run.alg")
    moments = json.loads(printed("plot", store.path, "learning", "--over", "time", "--json"))
    first = datetime.fromisoformat(moments[0]["points"][0]["x"])
    assert first.tzinfo is not None and moments[0]["points"][0]["x"][10] == "T"
    assert abs((first - store[0].started_at).total_seconds()) < 3600
    seeds = printed("plot", store.path, "returns", "--by", "episode_id")
    assert (
        len(table(seeds.split("The 20")[0])) >= 21
        and "The 20 largest of 800 by episode_id."
        in call("plot", store.path, "returns", "--by", "episode_id").stderr
    )


@pytest.mark.further
def test_outliers_flatten_nothing(tmp_path: Path) -> None:
    """Three of 1,000 returns are far away: charts show the others, and count them."""
    rng = np.random.default_rng(0)
    values = np.arange(1000) / 10 + rng.normal(size=1000)
    values[5::333] += 1e6
    store = scores(tmp_path / "store", {"a": values.tolist()})
    said = "3 values beyond"
    card = store._repr_html_()
    assert card.count(said) == 2 and not re.search(r'font-size="10"[^>]*>[^<]*e\+0', card)
    assert store.report(tmp_path / "report.html").read_text("utf-8").count(said) >= 4
    (bars,) = json.loads(printed("plot", store.path, "histogram", "--json"))
    assert bars["beyond"] == 3 and sum(bars["counts"]) == 1000 and max(bars["counts"]) < 100
    assert bars["edges"][-1] < 200
    line = call("plot", store.path, "returns")
    assert said in line.stderr and len(set(table(line.stdout)[1][-1])) >= 6

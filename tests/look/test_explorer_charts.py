"""The explorer's charts: colours that runs keep whatever is shown, and quiet drawing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import episodelake as el
from episodelake.explorer.charts import OVERVIEWS, episode_spec, overview_spec, result_spec
from episodelake.explorer.listing import SeriesColors
from episodelake.explorer.live.watch import Watch
from episodelake.readers.charts.theme import END_COLORS, PALETTE


def add_run(store: el.EpisodeStore, name: str, returns: list[float]) -> None:
    """Record a run of episodes of two steps, with these returns."""
    with store.writer(run=name) as writer:
        for amount in returns:
            writer.write_episode(
                observations=np.zeros((3, 2), np.float32),
                actions=[0, 1],
                rewards=[0.0, amount],
                terminations=True,
                truncations=False,
            )


def make_store(path: Path) -> el.EpisodeStore:
    """Three runs: the first is the smallest, and the larger a run, the smaller its returns."""
    store = el.create(path, observation_space=Box(-9, 9, (2,), np.float32), action_space=Discrete(3))
    for run in range(3):
        add_run(store, f"run{run}", [10.0 * (3 - run) + number for number in range(5 + 5 * run)])
    return store.refresh()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """The three runs."""
    return make_store(tmp_path_factory.mktemp("charts") / "store")


def colours_of(specification: Any) -> dict[str, str]:
    """The colour of each series, wherever the chart gives one; all places agree."""
    found: dict[str, str] = {}
    if isinstance(specification, list):
        parts = specification
    elif isinstance(specification, dict):
        parts = list(specification.values())
        scale = specification.get("scale")
        if isinstance(scale, dict) and "domain" in scale and "range" in scale:
            found = dict(zip(scale["domain"], scale["range"], strict=True))
    else:
        return found
    for part in parts:
        for name, colour in colours_of(part).items():
            assert found.setdefault(name, colour) == colour
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", list(OVERVIEWS))
def test_series_keep_their_colours(store: el.EpisodeStore, name: str) -> None:
    """A run has one colour in all charts, whatever the filter leaves of it and of others; so has an end."""
    colors = Watch(store).colors
    whole = colours_of(overview_spec(name, store, colors))
    runs = {"run0": PALETTE[0], "run1": PALETTE[1], "run2": PALETTE[2]}
    assert whole in (runs, {"terminated": END_COLORS["terminated"]})
    # Of the third run nothing; of the second less than of the first, and more; nothing but the third.
    for condition in ("episode_return > 27", "episode_return BETWEEN 25 AND 31", "episode_return < 20"):
        found = colours_of(overview_spec(name, store.filter(condition), colors))
        assert found and found.items() <= whole.items()


def test_results_have_the_colours_of_runs(store: el.EpisodeStore) -> None:
    """A column of runs, by name or by id, has their colours in the SQL box; end reasons have their own."""
    colors = Watch(store).colors
    runs = store.runs.collect().sort("started_at")
    query = "SELECT name, run_id, end_reason, name || '!' AS other, avg(length) AS mean FROM episodes "
    table = store.sql(query + "JOIN runs USING (run_id) GROUP BY ALL ORDER BY name DESC").to_arrow_table()

    def drawn(column: str) -> dict[str, str]:
        return colours_of(result_spec(table, "bars", "name", "mean", column, colors))

    assert drawn("name") == {f"run{number}": PALETTE[number] for number in range(3)}
    assert drawn("run_id") == {name: PALETTE[number] for number, name in enumerate(runs["run_id"])}
    assert drawn("end_reason") == {"terminated": END_COLORS["terminated"]}
    assert drawn("other") == {}


def test_colours_while_recording(tmp_path: Path) -> None:
    """New runs get other colours, and a run whose name is taken again is called by its id in its colour."""
    growing = make_store(tmp_path / "growing")
    watch = Watch(growing)
    add_run(el.open(tmp_path / "growing"), "run1", [5.0, 6.0])
    shown = watch.look(lambda: 1000.0)
    labels = {run.run_id: run.label for run in shown.episodes.runs}
    after = colours_of(overview_spec("returns", shown.store, watch.colors))
    assert list(labels.values())[1].startswith("run1-")
    assert [after[label] for label in labels.values()] == list(PALETTE[:4])


def test_more_runs_than_colours() -> None:
    """Beyond the palette its colours come lighter, then darker: thirty-six series differ."""
    found = SeriesColors().of([f"run{number}" for number in range(36)])
    assert found[:12] == list(PALETTE)
    assert len(set(found)) == 36
    assert all(len(colour) == 7 and int(colour[1:], 16) >= 0 for colour in found)


def test_charts_of_many_panels_warn_of_nothing(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels share their zoom without a warning, which threads that draw at once would print."""
    monkeypatch.setattr("warnings.warn", lambda *told, **_: pytest.fail(f"warned: {told[0]}"))
    specification = episode_spec(store[0])
    views = [panel["layer"][0]["name"] for panel in specification["vconcat"]]
    (zoom,) = [each for each in specification["params"] if each["name"] == "zoom"]
    assert len(views) == len(set(views)) > 2
    assert zoom["views"] == views

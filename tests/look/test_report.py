"""Reports: one HTML file that needs nothing else, and what stands in it."""

from __future__ import annotations

import json
import re
import resource
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import episodelake as el
from picture_stores import HOSTILE, Page, is_harmless, scores
from test_cli import no_terminal, printed, refused
from test_health import sick

__all__ = ["no_terminal", "sick"]


def report(view: el.EpisodeView, folder: Path) -> Page:
    """The report, taken apart; it has to be harmless and to load nothing."""
    file = view.report(folder / "report.html")
    assert file == folder / "report.html"
    text = file.read_text("utf-8")
    page = Page(text.removeprefix("<!doctype html>"))
    assert is_harmless(page)
    assert not {
        name for name, value in page.attributes if name in ("src", "href") and "data:" not in value[:5]
    }
    names = [value for name, value in page.attributes if name == "id"]
    assert len(set(names)) == len(names)
    assert {place for place in re.findall(r"url\(([^)]*)\)", text)} <= {f"#{name}" for name in names}
    assert "@import" not in text
    return page


def test_findings_and_charts_stand_in_it(sick: el.EpisodeStore, tmp_path: Path) -> None:
    """Each finding has its message and first episode; charts are drawings in the page."""
    page = report(sick, tmp_path)
    for row in sick.health().frame().iter_rows(named=True):
        assert row["message"] in page.text
        assert row["first"] is None or row["first"] in page.text
    assert sick.health().summary in page.text
    assert {"svg", "h1"} <= set(page.tags) and page.tags.count("h1") == 1
    assert ("lang", "en") in page.attributes
    assert "Return over training by run" in page.text and "cannot be shown" not in page.text


@pytest.mark.further
def test_a_site_has_a_page_for_each_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links lead to pages with the card and a video; hostile texts do nothing, and no page has a path."""
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env = gymnasium.wrappers.AddRenderObservation(env, render_only=False)
    store = el.create(tmp_path / "secret" / "store", env, card={"title": HOSTILE[0]})
    el.collect(env, None, store, episodes=5, seed=0, run=HOSTILE[1])
    env.close()
    monkeypatch.setattr("episodelake.readers.charts.site.MOST_EPISODES", 3)
    folder = store.refresh().report(tmp_path / "public", site=True)
    index = Page((folder / "index.html").read_text("utf-8").removeprefix("<!doctype html>"))
    links = [value for name, value in index.attributes if name == "href"]
    assert links == ["episodes/0.html", "episodes/1.html", "episodes/2.html"] and is_harmless(index)
    assert "3 of 5 episodes, evenly spaced." in index.text
    for number, position in enumerate([0, 2, 4]):
        text = (folder / links[number]).read_text("utf-8")
        page = Page(text.removeprefix("<!doctype html>"))
        assert store[position].id in page.text and "data:video/mp4;base64," in text and is_harmless(page)
        targets = {value for name, value in page.attributes if name == "href"}
        assert all((folder / "episodes" / target).resolve().is_file() for target in targets)
    assert not [file for file in folder.rglob("*.html") if "secret" in file.read_text("utf-8")]
    assert "is not empty" in refused(1, "report", store.path, "--site", "-o", folder)
    printed("report", store.path, "--site", "--filter", "length < 0", "-o", tmp_path / "none")
    assert "0 episodes" in (tmp_path / "none" / "index.html").read_text("utf-8")


@pytest.mark.further
def test_a_view_reports_on_its_own_episodes(tmp_path: Path) -> None:
    """Counts and charts are those of the view; a view without episodes has a report, too."""
    store = scores(tmp_path / "store", {"a": [1.0, 2.0, 3.0], "b": [50.0]})
    chosen = store.filter("episode_return < 3")
    assert "2 episodes" in report(chosen, tmp_path).text
    empty = report(store.filter("length < 0"), tmp_path)
    assert "0 episodes" in empty.text and "cannot be shown" not in empty.text


@pytest.mark.further
def test_what_a_store_names_is_text(tmp_path: Path) -> None:
    """Names of folders and runs run nothing."""
    store = scores(tmp_path / "<img src=x onerror=alert(1)>", {name: [1.0, 2.0] for name in HOSTILE})
    page = report(store, tmp_path)
    assert "img" not in page.tags
    assert "<img src=x onerror=alert(1)>" in page.text


@pytest.mark.further
def test_what_is_damaged_is_named_and_the_rest_is_shown(sick: el.EpisodeStore, tmp_path: Path) -> None:
    """Steps that cannot be read leave the card and the charts of episodes."""
    copy = shutil.copytree(sick.path, tmp_path / "copy")
    for file in (copy / "steps").glob("*.parquet"):
        file.write_bytes(b"x")
    page = report(el.open(copy), tmp_path)
    assert "The health cannot be shown." in page.text
    assert "Return of each episode by run" in page.text


@pytest.mark.further
def test_objectives_have_a_report(tmp_path: Path) -> None:
    """A store of vector rewards has panels instead of returns."""
    store = el.create(
        tmp_path / "store", observation_space=Box(0, 1, (2,)), action_space=Discrete(2), reward_shape=(2,)
    )
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((4, 2), np.float32),
            actions=np.zeros(3, np.int64),
            rewards=np.ones((3, 2)),
            terminations=True,
            truncations=False,
        )
    assert "cannot be shown" not in report(store.refresh(), tmp_path).text


@pytest.mark.further
def test_the_command_writes_it(tmp_path: Path) -> None:
    """`episodelake report` replaces the file, and a folder that is missing is named before the work."""
    path = tmp_path / "store"
    el.collect(
        gymnasium.make("CartPole-v1"), None, el.create(path, gymnasium.make("CartPole-v1")), episodes=2
    )
    file = tmp_path / "report.html"
    file.write_text("old")
    assert printed("report", path, "-o", file) == ""
    report = json.loads(printed("report", path, "-o", file, "--json"))
    assert report == {"file": str(file), "bytes": file.stat().st_size}
    assert "2 episodes" in Page(file.read_text("utf-8").removeprefix("<!doctype html>")).text
    assert "missing" in refused(1, "report", path, "-o", tmp_path / "missing" / "report.html")
    with pytest.raises(el.errors.StoreAccessError, match="missing"):
        el.open(path).report(tmp_path / "missing" / "report.html")
    with pytest.raises(el.errors.InvalidArgumentError, match="null byte"):
        el.open(path).report("report\0.html")


@pytest.mark.further
def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """A file that may not grow further, as on a full disk, takes nothing away."""
    store = scores(tmp_path / "store", {"a": [1.0, 2.0]})
    file = tmp_path / "report.html"
    file.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(el.errors.StoreAccessError, match=r"write .*report\.html"):
            store.report(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"store", "report.html"}

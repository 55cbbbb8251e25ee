"""The keys of a card that have a meaning, where they are shown, scores, and views by a Python function."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.explorer.live.watch import load
from picture_stores import HOSTILE, Page, is_harmless
from terminal_sessions import ESCAPE
from test_cli import call

CARD: dict[str, Any] = {
    "title": "Line",
    "description": "A walk.",
    "author": ["A", "B"],
    "author_email": "a@example.org",
    "license": "CC-BY-4.0",
    "citation": "@misc{line}",
    "code_permalink": "https://example.org",
    "algorithm": "random",
    "env_spec": "Line-v0",
    "eval_env_spec": "Line-v0",
    "expert_policy": "https://example.org/policy.zip",
    "ref_min_score": 1,
    "ref_max_score": 5.0,
    "num_episodes_average_score": 100,
    "requirements": ["numpy>=2"],
    "own": {"any": [1, None]},
}


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """Episodes of 1 to 5 steps, one reward each."""
    store = el.create(
        tmp_path / "store", observation_space=spaces.Discrete(9), action_space=spaces.Discrete(2)
    )
    with store.writer() as writer:
        for length in range(1, 6):
            writer.write_episode(
                observations=list(range(length + 1)),
                actions=[0] * length,
                rewards=[1.0] * length,
                terminations=True,
                truncations=False,
            )
    return store.refresh()


def test_a_full_card_comes_back(store: el.EpisodeStore) -> None:
    """With keys of the user's own."""
    store.card = CARD
    assert el.open(store.path).card == CARD


@pytest.mark.parametrize("key", [key for key in CARD if key != "own"])
def test_a_value_of_another_kind_is_refused(store: el.EpisodeStore, key: str) -> None:
    """Also a bool where a number is meant; the card that was there stays."""
    store.card = CARD
    for wrong in (True, {"a": 1}, [1]):
        with pytest.raises(el.errors.InvalidArgumentError, match=key):
            store.card = {**CARD, key: wrong}
    assert store.card == CARD
    store.card = {**CARD, key: None}
    assert store.card[key] is None


def test_scores(store: el.EpisodeStore) -> None:
    """Of all episodes, of a view, and of returns from elsewhere."""
    with pytest.raises(el.errors.InvalidArgumentError, match="ref_min_score"):
        el.normalized_score(store)
    store.card = CARD
    assert el.normalized_score(store).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert el.normalized_score(store.filter("length > 3")).tolist() == [0.75, 1.0]
    assert el.normalized_score(store, [[3.0], [9.0]]).tolist() == [[0.5], [2.0]]
    assert el.normalized_score(store, 3.0) == 0.5
    with pytest.raises(el.errors.InvalidArgumentError, match="swap"):
        store.card = {**CARD, "ref_min_score": 5}


def test_where_takes_a_python_function(store: el.EpisodeStore) -> None:
    """It sees each episode once, in order, and gives a view like any other."""
    seen = []

    def odd(episode: el.Episode) -> np.bool_:
        seen.append(episode.length)
        return episode.rewards.sum() % 2 == 1

    view = store.where(odd)
    assert seen == [1, 2, 3, 4, 5]
    assert [episode.length for episode in view] == [1, 3, 5]
    assert [
        episode.length for episode in view.filter("length > 1").where(lambda episode: episode.terminated)
    ] == [3, 5]
    for answer, kind in [(None, "NoneType"), (1, "int"), (np.ones(2, bool), "ndarray")]:
        with pytest.raises(
            el.errors.InvalidArgumentError, match=f"{kind} for the episode .{re.escape(view[0].id)}"
        ):
            view.where(lambda episode, answer=answer: answer)
    assert len(view.where(lambda episode: np.array(episode.length > 1))) == 2
    with pytest.raises(ZeroDivisionError):
        view.where(lambda episode: 1 / 0)


def test_the_card_of_a_store_has_its_entries(store: el.EpisodeStore) -> None:
    """A notebook and the explorer show those with a meaning, in their order; a view is no dataset."""
    store.card = {key: CARD[key] for key in reversed(CARD)}
    known = [key for key in CARD if key != "own"]
    page = Page(store._repr_html_())
    assert [word for word in page.words if word in CARD] == known
    assert page.words[page.words.index("author") + 1] == "A, B"
    assert list(load(store).card) == known
    assert load(store).card["ref_max_score"] == "5.0"
    assert "About" not in Page(store[:2]._repr_html_()).words
    store.card = {"own": 1}
    assert "About" not in Page(store._repr_html_()).words and load(store).card == {}


def test_no_entry_of_a_card_is_markup_or_another_entry(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one control the terminal."""
    store.card = {"own": "x\ntitle: y", "description": "one\nalgorithm: PPO\x1b[41m", "title": HOSTILE[1]}
    page = Page(store._repr_html_())
    assert is_harmless(page) and HOSTILE[1] in page.words
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = call("info", store.path).stdout
    assert "\x1b[41m" not in written
    lines = ESCAPE.sub("", written).splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("card "))
    shown = [line[lines[first].index("title") :].rstrip() for line in lines[first : first + 5]]
    assert shown == [
        f"title: {HOSTILE[1]}",
        "description: one",
        "  algorithm: PPO\\x1b[41m",
        "own: x",
        "  title: y",
    ]


def test_the_former_spelling_of_license_is_read(store: el.EpisodeStore) -> None:
    """A card of an earlier version has its license under the new key, and writes it so."""
    file = Path(store.path) / "card.json"
    file.write_text('{"licence": "MIT"}')
    assert store.card == {"license": "MIT"}
    store.card["title"] = "t"
    assert "licence" not in file.read_text()
    assert store.card == {"license": "MIT", "title": "t"}


def test_a_damaged_or_foreign_card_stops_no_view_of_the_store(store: el.EpisodeStore) -> None:
    """Values of another kind are shown as JSON; a file that is no JSON is named."""
    file = Path(store.path) / "card.json"
    file.write_text('{"title": 5, "author": [1, "a"], "licence": null}')
    assert load(store).card == {"title": "5", "author": '[1, "a"]'}
    assert "5" in Page(store._repr_html_()).words
    file.write_text("{")
    assert "card.json" in load(store).card["problem"]
    assert "The dataset card cannot be shown." in Page(store._repr_html_()).text

"""Rollouts in the explorer without a browser: what is written is escaped, and tokens have their colours."""

import html

import pytest

import episodelake as el
from episodelake.explorer.listing import Choice, EpisodeList
from episodelake.explorer.rollouts.conversation import conversation_html, rollout_facts, samples_of
from episodelake.rollouts.turns import turns_of
from rollout_stores import HOSTILE, MESSAGES, make_rollouts


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Six rollouts with hostile texts."""
    path = tmp_path_factory.mktemp("talk") / "rollouts"
    make_rollouts(path)
    return el.open(path)


def test_texts_of_strangers_are_escaped(store: el.EpisodeStore) -> None:
    """Roles, texts, calls and other keys bring no element of their own, and no invisible character."""
    text = conversation_html(turns_of(store.rollout(0)), "logprobs", 0)
    assert "<img" not in text and text.count("&lt;img") == 4
    assert html.escape(HOSTILE[:40]) in text
    assert not {"\x1b", "\x07", "\u202e", "\ud800", "\t", "\r"} & set(text)
    assert "<details><summary>All 2,500 characters</summary>" in text


def test_keys_that_json_lacks_are_shown() -> None:
    """Messages may have any mapping, so numbers and tuples may be keys."""
    store = el.create("memory://odd-keys", el.Rollouts())
    with store.writer() as writer:
        writer.write_rollout([{"role": "assistant", 3: 4, "pairs": {(1, 2): 3}}])
    turns = turns_of(store.refresh().rollout(0))
    assert turns[0].others == {"3": "4", "pairs": "{(1, 2): 3}"}
    assert "{(1, 2): 3}" in conversation_html(turns, "logprobs", 0)


def test_tokens_have_colours(store: el.EpisodeStore) -> None:
    """A token has more colour the less probable it was; advantages are red below zero, else green."""
    turns = turns_of(store.rollout(0))
    by_logprob = conversation_html(turns[5:6], "logprobs", 5)
    cells = [f'<i class="down" style="--share: {share}%" title="token' for share in (98, 0)]
    assert f"{cells[0]} 0, log-probability -4, advantage -1" in by_logprob
    assert f"{cells[1]} 39, log-probability 0, advantage 1" in by_logprob
    by_advantage = conversation_html(turns[2:3], "advantages", 5)
    assert 'class="down" style="--share: 100%" title="token 4,' in by_advantage
    assert 'class="up" style="--share: 100%" title="token 5,' in by_advantage
    assert "<i" not in conversation_html(turns[:2], "logprobs", 0)
    # Of a page of messages the colours are those of all.
    assert conversation_html(turns, "advantages", 5, range(2, 3)) == by_advantage


def test_facts_and_samples(store: el.EpisodeStore) -> None:
    """Weighted parts of the reward; the other samples of the group in their order."""
    facts = rollout_facts(store[1])
    assert facts["Reward"]["format"] == "0.2 \N{MULTIPLICATION SIGN} 0.5"
    assert facts["Rollout"]["policy version"] == "0"
    others = samples_of(EpisodeList(store).frame, store[4])
    assert list(others) == [store[3].id, store[5].id]
    assert list(others.values()) == ["sample 0, reward 0.1", "sample 2, reward 1.1"]


def test_facets_of_rollouts(store: el.EpisodeStore) -> None:
    """Groups, tasks and policy versions are facets like any metadata, hostile ones too."""
    episodes = EpisodeList(store)
    assert {"metadata.group", "metadata.policy_version", "metadata.sample"} <= set(episodes.usual_facets)
    for name in ("metadata.group", "metadata.task", "metadata.policy_version"):
        facet = episodes.facet(name)
        for bar, total in enumerate(facet.totals.tolist()):
            kept = episodes.positions(Choice(chips=(facet.condition(bar, bar),)))
            assert len(kept) == total


def test_curves_over_policy_versions(store: el.EpisodeStore) -> None:
    """A learning curve has the mean of each version, of rewards or parts of only two values."""
    for what, expected in (("return", 2.3 / 3), ("rewards.answer", 2 / 3), ("rewards.format", 0.2)):
        chart = store.plot.learning_curve(over="policy", what=what).to_dict()
        (rows,) = [rows for rows in chart["datasets"].values() if rows and "low" in rows[0]]
        assert [(row["x"], row["value"]) for row in rows] == [
            (version, pytest.approx(expected)) for version in (0.0, 1.0)
        ]
    with pytest.raises(el.errors.InvalidArgumentError, match=r"'rewards\.format'"):
        store.plot.learning_curve(what="rewards.absent")


def test_other_stores_have_no_policy_versions() -> None:
    """The error says what is missing."""
    store = el.create("memory://no-policy", el.Rollouts())
    with store.writer() as writer:
        writer.write_rollout(MESSAGES)
    with pytest.raises(el.errors.NothingToDrawError, match=r"metadata\.policy_version"):
        store.refresh().plot.learning_curve(over="policy")

"""`health`: findings are those of a plain loop over the episodes, and a clean store has none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import episodelake as el
from test_cli import call, no_terminal
from waiting import PATIENCE

__all__ = ["no_terminal"]

SPACES: dict[str, Any] = {
    "observation_space": gymnasium.spaces.Dict(
        body=gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        goal=gymnasium.spaces.Box(-1, 1, (2,), np.float64),
        camera=gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        room=gymnasium.spaces.Discrete(4),
    ),
    "action_space": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
}


def healthy(random: np.random.Generator, length: int) -> dict[str, Any]:
    """An episode without any finding; its goal stays where it is."""
    return {
        "observations": {
            "body": random.normal(size=(length + 1, 3)).astype(np.float32),
            "goal": np.repeat(random.uniform(-1, 1, (1, 2)), length + 1, axis=0),
            "camera": random.integers(0, 256, (length + 1, 8, 8, 3), dtype=np.uint8),
            "room": random.integers(0, 4, length + 1),
        },
        "actions": random.uniform(-0.9, 0.9, (length, 2)).astype(np.float32),
        "rewards": random.normal(size=length),
        "terminations": True,
        "truncations": False,
    }


def planted(number: int, arrays: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The same episode with a fault that depends on its number."""
    body, actions, rewards = arrays["observations"]["body"], arrays["actions"], arrays["rewards"]
    match number:
        case 3:
            body[2:4, 1] = np.nan
        case 5:
            body[-1, 0], rewards[1] = -np.inf, np.inf
        case 7:
            body[:, 2] = 0.5
        case 9:
            actions[2:, 1] = -1
        case 11:
            rewards[4] = 5e4
        case 13:
            rewards[:] = np.nan
        case 15:
            arrays = first
        case 17:
            # The numbers of the first with other pictures: no duplicate.
            camera = 255 - first["observations"]["camera"]
            arrays = {**first, "observations": {**first["observations"], "camera": camera}}
        case 19:
            arrays["terminations"] = False
    return arrays


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Thirty episodes, some with faults."""
    random = np.random.default_rng(0)
    store = el.create(tmp_path_factory.mktemp("health") / "sick", **SPACES)
    first = healthy(random, 14)
    for run in range(2):
        with store.writer(run=f"run{run}") as writer:
            for k in range(15):
                number = run * 15 + k
                arrays = first if not number else healthy(random, int(random.integers(12, 30)))
                seed = {20: 4, 21: 4, 1: 4}.get(number, 100 + number)
                writer.write_episode(**planted(number, arrays, first), seed=seed)
    return store.refresh()


def looped(view: el.EpisodeView) -> dict[tuple[str, str], list[int]]:
    """The findings that single episodes give, by a loop over them."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    seen: dict[bytes, int] = {}
    seeds: set[Any] = set()
    for k, episode in enumerate(view):
        columns = {"observation.body": episode.observations["body"], "action": episode.actions}
        columns |= {"observation.goal": episode.observations["goal"], "reward": episode.rewards}
        for name, values in columns.items():
            if np.isnan(values).any():
                found["nan", name].append(k)
            if np.isinf(values).any():
                found["infinite", name].append(k)
        for element in range(3):
            if (columns["observation.body"][:, element] == columns["observation.body"][0, element]).all():
                found["constant", f"observation.body[{element}]"].append(k)
        for element in range(2):
            if (np.abs(episode.actions[:, element]) >= 1).mean() >= 0.5:
                found["saturated", f"action[{element}]"].append(k)
        parts = (*(episode.observations[name] for name in sorted(episode.observations)), episode.actions)
        content = b"".join(np.asarray(part).tobytes() for part in (*parts, episode.rewards))
        if content in seen:
            found["duplicate", ""].append(k)
        seen.setdefault(content, k)
        if (episode.run_id, episode.seed) in seeds:
            found["duplicate_seed", ""].append(k)
        seeds.add((episode.run_id, episode.seed))
        if episode.end_reason in ("cut", "interrupted"):
            found[episode.end_reason, ""].append(k)
    returns: Any = [e.episode_return for e in view]
    for name, column in (("episode_return", returns), ("reward", None)):
        extremes: Any = [column] if column else [
            [np.min(e.rewards[np.isfinite(e.rewards)], initial=np.nan) for e in view],
            [np.fmax.reduce(np.where(np.isfinite(e.rewards), e.rewards, np.nan)) for e in view],
        ]  # fmt: skip
        for values in extremes:
            numbers = sorted(value for value in values if np.isfinite(value))
            if not numbers:
                continue
            low, high = (numbers[round((len(numbers) - 1) * share)] for share in (0.05, 0.95))
            far = [low - 5 * (high - low), high + 5 * (high - low)]
            found["outlier", name] += [
                k for k, value in enumerate(values) if np.isfinite(value) and not far[0] <= value <= far[1]
            ]
    return {key: sorted(set(positions)) for key, positions in found.items() if positions}


def findings(report: el.types.HealthReport) -> dict[tuple[str, str], list[int]]:
    """The same of a report."""
    by: dict[tuple[str, str], set[int]] = defaultdict(set)
    for each in report.findings:
        by[each.kind, each.column] |= set(each.positions.tolist())
    return {key: sorted(positions) for key, positions in by.items()}


def test_findings_are_those_of_a_loop(sick: el.EpisodeStore) -> None:
    """Each planted fault is found in its episode, and nothing else; a view counts from its own first."""
    for view in (sick, sick[2:], sick[::-1]):
        assert findings(view.health()) == looped(view)
    expected = {"nan", "infinite", "constant", "saturated", "outlier", "duplicate", "duplicate_seed", "cut"}
    assert {each.kind for each in sick.health().findings} == expected


def test_report_names_values_and_episodes(sick: el.EpisodeStore) -> None:
    """A finding counts its values, its positions open its episodes, and the frame has a row for each."""
    report = sick.health()
    nan = next(each for each in report.findings if (each.kind, each.column) == ("nan", "observation.body"))
    assert (nan.values, nan.message) == (2, "2 NaN of observation.body in 1 episode")
    assert np.isnan(sick[nan.positions][0].observations["body"]).sum() == 2
    assert report.frame().height == len(report.findings)
    ids = report.affected.filter(kind="cut")["episode_id"].to_list()
    assert ids == [sick[19].id] and not report.ok and 0 < report.share < 1
    everywhere = [each for each in report.findings if len(each.positions) == len(sick)]
    some = [each for each in report.findings if len(each.positions) < len(sick)]
    episodes = {int(position) for each in some for position in each.positions}
    said = f"{len(some)} in {len(episodes)} of {len(sick)} episodes ({len(episodes) / len(sick):.2%})."
    assert report.summary.startswith(f"{len(report.findings)} findings: ") and report.summary.endswith(said)
    assert (f"{len(everywhere)} in all {len(sick)} episodes" in report.summary) == bool(everywhere)
    kinds = {each.kind for each in sick.health(ignore=["nan", "cut"]).findings}
    assert kinds.isdisjoint({"nan", "cut"}) and kinds
    with pytest.raises(el.errors.InvalidArgumentError, match="Did you mean outlier"):
        sick.health(ignore=["outliers"])


def test_findings_have_the_names_of_the_card(tmp_path: Path) -> None:
    """Messages and reasons name joints as the card does; a reason is found by the position of its episode."""
    random = np.random.default_rng(3)
    store = el.create(tmp_path / "named", **SPACES)
    with store.writer() as writer:
        for k in range(12):
            arrays = healthy(random, 12)
            if k == 5:
                arrays["observations"]["body"][3:5, 1:] = np.nan
                arrays["actions"][:, 1] = 1
            writer.write_episode(**arrays)
    store.refresh().card = {
        "names": {"observation.body": ["hip", "{knee}", "toe"], "action": ["left", "right"]}
    }
    report = store.health()
    assert [each.message for each in report.findings] == [
        "4 NaN of observation.body ({knee}, toe) in 1 episode",
        "action[1] (right) is at a bound for 50% of the steps or more in 1 episode",
    ]
    assert [(each.column, each.label) for each in report.findings] == [
        ("observation.body", "observation.body ({knee}, toe)"),
        ("action[1]", "action[1] (right)"),
    ]
    reasons = ["4 NaN in observation.body ({knee}, toe), t = 3", "action[1] (right) is saturated"]
    assert report.reasons(5)["reason"].to_list() == reasons == report.outliers()["reasons"][0].to_list()
    assert report.reasons(5)["t"].to_list() == [3, None] and report.reasons(4).is_empty()


def test_a_clean_store_has_no_findings(tmp_path: Path) -> None:
    """Random episodes of a real environment and made ones are healthy; a goal that stays is no finding."""
    random = np.random.default_rng(1)
    made = el.create(tmp_path / "made", **SPACES)
    with made.writer() as writer:
        for _ in range(30):
            writer.write_episode(**healthy(random, 15))
    env = gymnasium.make("CartPole-v1")
    played = el.create(tmp_path / "played", env)
    el.collect(env, None, played, episodes=200, seed=0)
    for store in (made, played):
        report = store.refresh().health()
        assert report.ok and report.share == 0 and report.frame().is_empty()
        assert str(report) == f"No findings in {report.count} episodes."
    assert el.create(tmp_path / "empty", env).health().ok


def test_gaps_and_dead_sensors(tmp_path: Path) -> None:
    """Deleted episodes leave a gap, and an element that never changes is named with all episodes."""
    random = np.random.default_rng(2)
    store = el.create(tmp_path / "store", **SPACES)
    with store.writer() as writer:
        for k in range(12):
            arrays = healthy(random, 12)
            arrays["observations"]["body"][:, 0] = 7
            writer.write_episode(**arrays, metadata={"k": k})
    store.refresh().delete("number IN (3, 4, 9)")
    found = {(each.kind, each.column): each for each in store.health().findings}
    assert set(found) == {("gap", "number"), ("constant", "observation.body[0]")}
    assert found["gap", "number"].values == 3
    assert [store[int(k)].metadata["k"] for k in found["gap", "number"].positions] == [5, 10]
    assert len(found["constant", "observation.body[0]"].positions) == 9


def test_agents_are_measured_by_episode(tmp_path: Path) -> None:
    """NaN of one agent and a copied episode are findings about whole episodes."""
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    store = el.create(tmp_path / "store", agents={name: (box, box) for name in "ab"})
    random = np.random.default_rng(3)
    first: Any = None
    with store.team_writer() as writer:
        for k in range(4):
            if k == 3:
                random = np.random.default_rng(30)
            agents = {
                name: {
                    "observations": random.normal(size=(6, 2)).astype(np.float32),
                    "actions": random.normal(size=(5, 2)).astype(np.float32),
                    "rewards": random.normal(size=5),
                    "terminations": True,
                    "truncations": False,
                }
                for name in "ab"
            }
            if k == 0:
                first = agents
            if k == 1:
                agents["b"]["observations"][2] = np.nan
            writer.write_episode(first if k == 2 else agents)
    found = findings(store.refresh().health())
    assert found["duplicate", ""] == [2]
    assert [key for key in found if key[0] == "nan"] and all(
        positions == [1] for key, positions in found.items() if key[0] == "nan"
    )


DEAD = """\
import os, sys, numpy as np, episodelake as el
store = el.open(sys.argv[1])
writer = store.writer(run="dead")
episode = writer.begin(np.zeros(1, np.float32))
episode.append(0, 1.0, np.ones(1, np.float32), terminated=True)
episode.end()
writer.flush()
os.kill(os.getpid(), 9)
"""


def test_command_ends_with_one_above_the_threshold(sick: el.EpisodeStore) -> None:
    """`episodelake health` prints the report, and its status follows the share of episodes."""
    result = call("health", sick.path, "--json")
    told = json.loads(result.stdout)
    report = sick.health()
    assert result.exit_code == 1 and told["episodes"] == 30
    assert [each["kind"] for each in told["findings"]] == [each.kind for each in report.findings]
    assert told["findings"][0]["episode_ids"] == [sick[3].id]
    assert call("health", sick.path, "--threshold", 0.9).exit_code == 0
    assert call("health", sick.path, "--filter", "number = 1 AND seed = 4").exit_code == 0
    assert "saturated" in call("health", sick.path).stdout
    assert "no kind" in call("health", sick.path, "--ignore", "nothing").stderr


def test_runs_of_dead_writers_are_named(tmp_path: Path) -> None:
    """A journal that waits for recovery fails the check, though it concerns no episode yet."""
    box = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    el.create(tmp_path / "store", observation_space=box, action_space=gymnasium.spaces.Discrete(2))
    ended = subprocess.run([sys.executable, "-c", DEAD, tmp_path / "store"], timeout=PATIENCE, check=False)
    assert ended.returncode == -signal.SIGKILL and os.listdir(tmp_path / "store" / "journal")
    (finding,) = el.open(tmp_path / "store").health().findings
    assert (finding.kind, finding.values, len(finding.positions)) == ("unsealed", 1, 0)
    assert call("health", tmp_path / "store", "--threshold", 1).exit_code == 1
    el.recover(tmp_path / "store")
    assert el.open(tmp_path / "store").health(ignore=["constant"]).ok


def test_episodes_that_stand_out(sick: el.EpisodeStore) -> None:
    """Episodes are listed with their reasons, and the step at which the first of them shows. One that the
    recorder ended, as it does at the end of each run, does not stand out for that alone.
    """
    rows = {row["position"]: row for row in sick.health().outliers().to_dicts()}
    assert list(rows)[:2] == [3, 13] and {5, 7, 9, 11, 15} <= set(rows) and 19 not in rows
    assert rows[3]["reasons"] == ["2 NaN in observation.body, t = 2"] and rows[3]["t"] == 2
    values = sick[5].rewards
    assert rows[5]["t"] == sick[5].length  # The last observation.
    assert f"{np.isinf(values).sum()} infinite values in reward, t = 1" in rows[5]["reasons"][1]
    assert rows[11]["t"] == 4 and "of 50000, far from other episodes, t = 4" in rows[11]["reasons"][1]
    assert rows[9]["reasons"] == ["action[1] is saturated"] and rows[9]["t"] is None
    assert len(sick.health().outliers(2)) == 2


def test_lengths_that_stand_out(tmp_path: Path) -> None:
    """An episode that ended early and one that never ended stand out among those of one length."""
    random = np.random.default_rng(3)
    store = el.create(tmp_path / "lengths", **SPACES)
    with store.writer() as writer:
        for number in range(60):
            writer.write_episode(**healthy(random, {7: 1, 40: 900}.get(number, 50)))
    store = store.refresh()
    (finding,) = (each for each in store.health().findings if each.column == "length")
    assert finding.positions.tolist() == [7, 40] and finding.kind == "outlier"
    assert finding.amounts is not None and finding.amounts.tolist() == [1, 900]
    assert store.health().outliers()["position"].to_list()[:2] == [7, 40]


def test_a_healthy_store_has_no_outliers(tmp_path: Path) -> None:
    """Without findings, and without episodes, the list is empty."""
    store = el.create(tmp_path / "empty", **SPACES)
    assert store.health().outliers().is_empty()


def test_extremes_of_rewards_are_told_apart(tmp_path: Path) -> None:
    """An outlying reward is the smallest or the largest, and each finding lists its own episodes."""
    random = np.random.default_rng(5)
    store = el.create(tmp_path / "extremes", **SPACES)
    with store.writer() as writer:
        for number in range(40):
            episode = healthy(random, 30)
            if number in (5, 7):
                episode["rewards"][3] = -1e4
            if number in (5, 6):
                episode["rewards"][4] = 1e4
            writer.write_episode(**episode)
    report = store.refresh().health()
    found = {
        each.extreme: part["position"].to_list()
        for each, part in zip(report.findings, report.parts(), strict=True)
        if (each.kind, each.column) == ("outlier", "reward")
    }
    assert found == {"smallest": [5, 7], "largest": [5, 6]}
    told = json.loads(call("health", store.path, "--json").stdout)["findings"]
    listed = [len(each["episode_ids"]) for each in told if each["column"] == "reward"]
    assert listed == [each["episodes"] for each in told if each["column"] == "reward"] == [2, 2]
    rows = {row["position"]: row["reasons"] for row in report.outliers().to_dicts()}
    assert "smallest reward of -10000, far from other episodes, t = 3" in rows[7]
    assert "largest reward of 10000, far from other episodes, t = 4" in rows[6]

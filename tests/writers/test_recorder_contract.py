"""The contract of recorders, for every recorder and writer but those of vector environments."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
import recorder_adapters as adapters
from effort import some
from environment_rules import SHARED_RULES, EnvironmentContract
from episodelake.testing import RecorderContract
from episodelake.testing.adapters import case
from episodelake.testing.recorder_rules import check_episode
from episodelake.testing.values import same

#: Rules of stores and columns, which `TestSingle` and `TestSteps` try.
OF_COLUMNS = (
    "test_a_key_may_change_its_type_between_runs",
    "test_handles_at_the_same_time_keep_apart",
    "test_spaces_are_stored_exactly_by_themselves",
)


class TestSingle(EnvironmentContract):
    """One environment."""

    waits = seeded = True
    adapter = adapters.Single()


@pytest.mark.further
class TestAutoreset(EnvironmentContract):
    """One environment that resets itself with the step after an end."""

    adapter = adapters.AUTORESET()


@pytest.mark.further
class TestWithinStep(EnvironmentContract):
    """One environment that resets itself within its last step."""

    late = False
    adapter = adapters.WITHIN_STEP()


class TestPool(EnvironmentContract):
    """Environments that are ready at different times."""

    further_rules = SHARED_RULES
    early, again = False, True
    adapter = adapters.PoolOf()

    def env_of(self, recorder: Any, envs: Any, lane: int) -> Any:
        """None: environments of a pool are elsewhere."""
        return None

    def lockstep(self) -> adapters.PoolOf:
        """A pool whose environments are ready together."""
        return adapters.PoolOf(3)


class TestParallel(EnvironmentContract):
    """Agents that act together."""

    further_rules = SHARED_RULES
    joint = waits = True
    adapter = adapters.PARALLEL()


class TestTurns(EnvironmentContract):
    """Agents that take turns."""

    further_rules = (*OF_COLUMNS, "test_integers_are_exact_or_refused")
    joint = waits = True
    continues = late = False
    adapter = adapters.TURNS()

    def test_the_caller_gets_the_very_objects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`last` and every other attribute are the environment's own."""
        _, driver = self.opened(tmp_path, self.envs())
        recorder = driver.recorder
        assert recorder.agents is recorder.env.agents and recorder.last == recorder.env.last
        assert recorder.possible_agents is recorder.unwrapped.possible_agents

    def test_a_callback_goes_on_without_a_reset(self, tmp_path: Path) -> None:
        """Outcomes of the last turns are not known yet, so it is refused."""
        go_on: Any = lambda step: replace(step, end="continue")  # noqa: E731
        with pytest.raises(el.errors.InvalidArgumentError, match="end=True"):
            self.opened(tmp_path, self.envs(), step_callback=go_on)

    @pytest.mark.parametrize("cases", some(itertools.product(range(1, 9), ("step", "last")), 6))
    def test_exceptions_of_the_environment_cost_no_step(self, tmp_path: Path, cases: Any) -> None:
        """Each agent keeps the turns whose outcome it saw; only a reset goes on."""
        for turn, way in cases:
            envs = self.envs(lengths=[[9, 9]])
            store, driver = self.opened(tmp_path / f"{turn} {way}", envs)
            with case(f"{way} of turn {turn}"), driver:
                agents: Any = driver.recorder.env
                method = getattr(agents, way)

                def failing(*given: Any, method: Any = method, turns: Any = [turn], envs: Any = envs) -> Any:  # noqa: B006
                    result = method(*given)
                    if [sum(env.calls for env in envs)] == turns:
                        turns.clear()
                        raise TimeoutError
                    return result

                setattr(agents, way, failing)
                with pytest.raises(TimeoutError):
                    for _ in range(9):
                        driver.step()
                with pytest.raises(el.errors.RecorderStateError, match=r"reset\("):
                    driver.recorder.step(envs[0].action())
                driver.reset()
                driver.step()
            # The turn that failed has no outcome; that of any other is known with the next turn of its agent.
            counts = [max((turn - 1 - lane + 2) // 3 - (1 if turn - 1 > lane else 0), 0) for lane in range(3)]
            found = [self.adapter.episodes(store.refresh(), lane) for lane in range(3)]
            for lane, episodes in enumerate(found):
                whole = [episode for episode in episodes if episode.seed == 5]
                assert sum(map(len, whole)) <= counts[lane] + 1 + (way == "last")
                for episode in whole:
                    kept = envs[lane].history[0].cut(episode.length)
                    if kept.actions:
                        check_episode(episode, kept, envs[lane], self.adapter.kept_infos(kept, lane))
            assert not store.verify().faults


class TestSteps(RecorderContract):
    """An `EpisodeWriter`, step by step."""

    adapter = adapters.Steps()


class WholeEpisodes(RecorderContract):
    """Writers that get policy values as arrays."""

    def test_values_that_are_logged_stand_beside_their_observation(self, tmp_path: Path) -> None:
        """Policy arrays have a value for each action, and one more for the last observation if given."""
        (env, *_) = self.envs(lengths=[[4]])
        adapters.play_alone(env)
        team = isinstance(self.adapter, adapters.Team)
        store = self.adapter.create(tmp_path / "store", env)
        policies = [
            {"p": np.arange(4.0 + more), "q": np.arange(8 + 2 * more).reshape(-1, 2)} for more in (0, 1)
        ]
        with store.team_writer() if team else store.writer() as writer:
            for policy in policies:
                given: Any = {**adapters.arrays(env, env.history[0]), "policy": policy}
                writer.write_episode({"lane_0": given}) if team else writer.write_episode(**given)
        for episode, policy in zip(self.adapter.episodes(store.refresh(), 0), policies, strict=True):
            assert all(same(episode.policy[key], values) for key, values in policy.items())


class TestWhole(WholeEpisodes):
    """An `EpisodeWriter`, from arrays."""

    further_rules = OF_COLUMNS
    adapter = adapters.Whole()


class TestArrow(RecorderContract):
    """An `EpisodeWriter`, from Arrow data."""

    further_rules = OF_COLUMNS[:2]
    adapter = adapters.Arrow()


@pytest.mark.further
class TestTeamSteps(RecorderContract):
    """A `TeamWriter`, step by step."""

    adapter = adapters.TEAM_STEPS()


@pytest.mark.further
class TestTeamWhole(WholeEpisodes):
    """A `TeamWriter`, from arrays."""

    adapter = adapters.TEAM_WHOLE()


@pytest.mark.further
class TestCollect(RecorderContract):
    """`collect` in one environment."""

    adapter = adapters.Collect()

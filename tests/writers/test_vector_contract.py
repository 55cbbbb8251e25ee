"""The contract of recorders, for vector environments in each of Gymnasium's autoreset modes."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

import recorder_adapters as adapters
from environment_rules import SHARED_RULES, EnvironmentContract
from episodelake.testing import RecorderContract

#: Rules that vector environments keep alike in each mode.
ALIKE = (
    *SHARED_RULES,
    "test_pauses_and_discarded_episodes",
    "test_seal_shows_finished_episodes_only",
    "test_what_a_step_callback_raises_or_gets_wrong_loses_nothing",
)


class Vector(EnvironmentContract):
    """Vector environments."""

    def env_of(self, recorder: Any, envs: Any, lane: int) -> Any:
        """The sub-environment."""
        return envs[lane]


class TestVectorNextStep(Vector):
    """Vector environments that begin the next episode with the step after an end."""

    further_rules = (
        "test_a_key_may_change_its_type_between_runs",
        "test_handles_at_the_same_time_keep_apart",
    )
    seeded = again = True
    adapter = adapters.Vector(AutoresetMode.NEXT_STEP)


class TestVectorSameStep(Vector):
    """Vector environments that begin the next episode within the last step."""

    further_rules = ALIKE
    seeded = True
    late = False
    adapter = adapters.Vector(AutoresetMode.SAME_STEP)


class TestVectorDisabled(Vector):
    """Vector environments whose caller resets those that ended."""

    further_rules = ALIKE
    seeded = again = waits = True
    adapter = adapters.Vector(AutoresetMode.DISABLED)


@pytest.mark.further
class TestCollectVector(RecorderContract):
    """`collect` in a vector environment."""

    adapter = adapters.CollectVector(AutoresetMode.NEXT_STEP)

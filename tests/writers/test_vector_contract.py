"""The contract of recorders, for vector environments in each of Gymnasium's autoreset modes."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

import recorder_adapters as adapters
from environment_rules import EnvironmentContract
from episodelake.testing import RecorderContract


class Vector(EnvironmentContract):
    """Vector environments."""

    def env_of(self, recorder: Any, envs: Any, lane: int) -> Any:
        """The sub-environment."""
        return envs[lane]


class TestVectorNextStep(Vector):
    """Vector environments that begin the next episode with the step after an end."""

    seeded = again = True
    adapter = adapters.Vector(AutoresetMode.NEXT_STEP)


#: Rules that do not depend on when an environment is reset: one mode is enough for `make test`.
ANY_MODE = (
    "test_rewards_of_every_number_type_are_stored",
    "test_vector_rewards_are_stored",
    "test_integers_are_exact_or_refused",
    "test_values_are_cast_only_where_it_is_asked_for",
    "test_seeds_of_any_size_come_back",
    "test_a_key_may_change_its_type_between_runs",
    "test_handles_at_the_same_time_keep_apart",
    "test_recording_nothing_leaves_an_empty_store",
    "test_a_closed_recorder_refuses_to_go_on",
    "test_closing_closes_the_environment_once",
    "test_recorders_are_neither_copied_nor_pickled",
    "test_what_cannot_be_recorded_is_refused",
    "test_callbacks_cannot_change_what_is_being_recorded",
    "test_steps_reach_the_journal_by_count",
)


class TestVectorSameStep(Vector):
    """Vector environments that begin the next episode within the last step."""

    further_rules = ANY_MODE
    seeded = True
    late = False
    adapter = adapters.Vector(AutoresetMode.SAME_STEP)


class TestVectorDisabled(Vector):
    """Vector environments whose caller resets those that ended."""

    further_rules = ANY_MODE
    seeded = again = waits = True
    adapter = adapters.Vector(AutoresetMode.DISABLED)


@pytest.mark.further
class TestCollectVector(RecorderContract):
    """`collect` in a vector environment."""

    adapter = adapters.CollectVector(AutoresetMode.NEXT_STEP)

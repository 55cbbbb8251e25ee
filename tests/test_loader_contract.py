"""Loaders of every kind of unit, held to `LoaderContract`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import episodelake as el
from loader_batches import small_row_groups
from loader_cases import Kind
from loader_rules import LoaderContract
from loader_stores import World, make_agent_world, make_world


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, World]]:
    """The store of single agents, and that of several."""
    with pytest.MonkeyPatch.context() as patch:
        small_row_groups(patch)
        yield {
            False: make_world(tmp_path_factory.mktemp("loaders") / "store"),
            True: make_agent_world(tmp_path_factory.mktemp("agents") / "store"),
        }


class TestTransitions(LoaderContract):
    """Single transitions."""

    kind = Kind(el.Transitions())
    thorough = True


class TestNSteps(LoaderContract):
    """Transitions over several steps."""

    kind = Kind(el.NSteps(3, gamma=0.9))


class TestWindows(LoaderContract):
    """Whole windows, which short episodes do not have."""

    kind = Kind(el.Windows(4, stride=2))


class TestWindowsPaddedLeft(LoaderContract):
    """Windows that end at the last step."""

    kind = Kind(el.Windows(4, stride=3, pad="left", burn_in=1))


class TestWindowsPaddedRight(LoaderContract):
    """Windows that begin at the first step."""

    kind = Kind(el.Windows(3, stride=2, pad="right", burn_in=2))


class TestDeltas(LoaderContract):
    """Values at relative steps."""

    kind = Kind(el.Deltas({"observation": (-2, 0, 3), "reward": (0, 5), "next_info.battery": (0, 9)}))


class TestEpisodes(LoaderContract):
    """Whole episodes."""

    kind = Kind(el.Episodes())
    thorough = True


class TestAgent(LoaderContract):
    """The transitions of one of several agents."""

    kind = Kind(el.Transitions(), ("scout_1",), (("agent", "scout_1"),))


class TestGroup(LoaderContract):
    """Windows of all agents of a group."""

    kind = Kind(el.Windows(3, pad="right"), ("tank_0", "tank_1"), (("group", "tank"),))


class TestGroupNSteps(LoaderContract):
    """Transitions over several steps, which end with the agent."""

    kind = Kind(el.NSteps(3, gamma=0.5), ("scout_0", "scout_1"), (("group", "scout"),))


class TestJoint(LoaderContract):
    """All agents of a group side by side."""

    kind = Kind(el.Transitions(), ("tank_0", "tank_1"), (("group", "tank"), ("joint", True)), "")


class TestJointWindows(LoaderContract):
    """Windows of all agents of a group side by side."""

    kind = Kind(el.Windows(3, pad="left"), ("scout_0", "scout_1"), (("group", "scout"), ("joint", True)), "")

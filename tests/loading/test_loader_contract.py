"""Loaders of every kind of unit, held to `LoaderContract`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_environments as environments
import episodelake as el
from episodelake.readers.columns import step_arrays
from episodelake.readers.loading import feed, stream
from loader_batches import small_row_groups
from loader_cases import FACTORS, Case, Kind
from loader_rules import LoaderContract, check_epochs
from loader_stores import World, make_agent_world, make_ragged_world, make_world
from plain_loader import assert_same


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    """The store of single agents, and those of several; a few rows and units are made at a time."""
    with pytest.MonkeyPatch.context() as patch:
        small_row_groups(patch)
        patch.setattr(step_arrays, "_PART_BYTES", 800)
        for module in (feed, stream):
            patch.setattr(module, "_PLANNED", 10)
        yield {
            "one": make_world(tmp_path_factory.mktemp("loaders") / "store"),
            "several": make_agent_world(tmp_path_factory.mktemp("agents") / "store"),
            "turns": make_agent_world(tmp_path_factory.mktemp("turns") / "store", environments.Turns),
            "ragged": make_ragged_world(tmp_path_factory.mktemp("ragged") / "store"),
        }


@pytest.fixture(scope="module")
def spawned() -> Iterator[ProcessPoolExecutor]:
    """A process that imports the library itself."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


class TestTransitions(LoaderContract):
    """Single transitions."""

    kind = Kind(el.Transitions())
    thorough = paired = True
    in_workers = True


@pytest.mark.further
class TestNSteps(LoaderContract):
    """Transitions over several steps."""

    kind = Kind(el.NSteps(3, gamma=0.9))


@pytest.mark.further
class TestWindows(LoaderContract):
    """Whole windows, which short episodes do not have."""

    kind = Kind(el.Windows(4, stride=2))


@pytest.mark.further
class TestWindowsPaddedLeft(LoaderContract):
    """Windows that end at the last step."""

    kind = Kind(el.Windows(4, stride=3, pad="left", burn_in=1))


class TestWindowsPaddedRight(LoaderContract):
    """Windows that begin at the first step."""

    kind = Kind(el.Windows(3, stride=2, pad="right", burn_in=2))


@pytest.mark.further
class TestDeltas(LoaderContract):
    """Values at relative steps."""

    kind = Kind(el.Deltas({"observation": (-2, 0, 3), "reward": (0, 5), "next_info.battery": (0, 9)}))


class TestEpisodes(LoaderContract):
    """Whole episodes."""

    kind = Kind(el.Episodes())
    thorough = paired = True
    in_workers = True

    def test_batches_are_split_into_episodes(self, world: World, tmp_path: Path) -> None:
        """`unpadded` gives each as long as it is, without a mask."""
        case = Case(world, self.kind, tmp_path, order="shuffled")
        for batch, numbers in zip(case.loader(), case.taken(0), strict=True):
            for found, number in zip(el.unpadded(batch), numbers, strict=True):
                unit = case.units[number][1]
                assert_same(found, {key: unit[key] for key in case.keys if key != "mask"})


class TestAgent(LoaderContract):
    """The transitions of one of several agents."""

    kind = Kind(el.Transitions(), ("scout_1",), (("agent", "scout_1"),), store="several")


class TestGroup(LoaderContract):
    """Windows of all agents of a group."""

    kind = Kind(el.Windows(3, pad="right"), ("tank_0", "tank_1"), (("group", "tank"),), store="several")
    paired = True


@pytest.mark.further
class TestGroupNSteps(LoaderContract):
    """Transitions over several steps, which end with the agent."""

    kind = Kind(el.NSteps(3, gamma=0.5), ("scout_0", "scout_1"), (("group", "scout"),), store="several")


class TestTurns(LoaderContract):
    """Agents that take turns: a transition goes from one turn to the agent's next."""

    kind = Kind(el.Transitions(), ("scout_0", "scout_1"), (("group", "scout"),), store="turns")
    paired = True


class TestJoint(LoaderContract):
    """All agents of a group side by side."""

    kind = Kind(el.Transitions(), ("tank_0", "tank_1"), (("group", "tank"), ("joint", True)), "", "several")
    in_workers = True


@pytest.mark.further
class TestJointWindows(LoaderContract):
    """Windows of all agents of a group side by side."""

    kind = Kind(
        el.Windows(3, pad="left"),
        ("scout_0", "scout_1"),
        (("group", "scout"), ("joint", True)),
        "",
        "several",
    )


class TestRagged(LoaderContract):
    """Transitions of values of different lengths."""

    kind = Kind(el.Transitions(), store="ragged")
    paired = True


@pytest.mark.further
class TestRaggedNSteps(LoaderContract):
    """Such transitions over several steps."""

    kind = Kind(el.NSteps(3, gamma=0.9), store="ragged")


@pytest.mark.further
class TestRaggedWindows(LoaderContract):
    """Windows of values of different lengths, some of whose rows are padding."""

    kind = Kind(el.Windows(3, stride=2, pad="left", burn_in=1), store="ragged")


@pytest.mark.further
class TestRaggedDeltas(LoaderContract):
    """Values of different lengths at relative steps."""

    kind = Kind(
        el.Deltas({"observation": (-2, 0, 3), "reward": (0, 5), "next_info.hits": (0, 9)}), store="ragged"
    )


@pytest.mark.further
class TestRaggedEpisodes(LoaderContract):
    """Whole episodes of values of different lengths."""

    kind = Kind(el.Episodes(), store="ragged")


STEPS = st.lists(st.integers(-4, 9), min_size=1, max_size=4).map(tuple)
KINDS = st.one_of(
    st.builds(el.NSteps, st.integers(1, 40), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0])),
    st.builds(
        el.Windows,
        st.integers(1, 8),
        stride=st.integers(1, 5),
        pad=st.sampled_from([None, "left", "right"]),
        burn_in=st.integers(0, 4),
    ),
    st.builds(
        lambda *steps: el.Deltas(
            dict(zip(("observation", "action", "next_policy.value"), steps, strict=True))
        ),
        *[STEPS] * 3,
    ),
)


@given(KINDS, st.sampled_from(FACTORS["view"]), st.sampled_from(["memory", "stream"]), st.integers(0, 2))
def test_units_with_any_arguments(
    worlds: dict[str, World], units: el.types.Units, view: str, cache: str, columns: int
) -> None:
    """Whatever their sizes, strides, padding and steps are, units are those of a plain loop."""
    names = FACTORS["columns"][columns]
    check_epochs(Case(worlds["one"], Kind(units), Path(), view=view, cache=cache, columns=names))

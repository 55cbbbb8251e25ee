"""Units of loaders, beside the rules of `LoaderContract`: errors of `unpadded`, long episodes, memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
from loader_batches import BOX, NESTED, assert_identical, random_store


def test_batches_of_other_units_are_not_unpadded(tmp_path: Path) -> None:
    """`unpadded` does not take the episode column `length` for the number of rows of a window."""
    store = random_store(tmp_path / "store", [4, 3], ["terminated"] * 2, NESTED)
    for units, shape in ((el.Windows(2), r"\(5, 2\)"), (el.Transitions(), r"\(7,\)")):
        (batch,) = store.loader(9, units, columns=["length", "reward"])
        with pytest.raises(el.errors.InvalidArgumentError, match=f"has the shape {shape}; .*Episodes"):
            el.unpadded(batch)


@pytest.mark.parametrize("cache", ["memory", "stream"])
@pytest.mark.parametrize("lengths", [[90, 70, 1, 99], [200, 1, 1, 2], [1, 2, 1, 1]])
def test_long_and_short_episodes(tmp_path: Path, lengths: list[int], cache: Any) -> None:
    """Columns are copied episode by episode where these are long, and by a mask where they are short."""
    store = random_store(tmp_path / "store", lengths, ["terminated"] * len(lengths), NESTED)
    (batch,) = store.loader(
        1_000, columns=["action", "reward", "terminated", "observation.image"], cache=cache
    )
    episodes = list(store)
    for key, of_episode in {
        "action": lambda episode: episode.actions,
        "reward": lambda episode: episode.rewards,
        "terminated": lambda episode: episode.terminations,
        "observation.image": lambda episode: episode.observations["image"][:-1],
    }.items():
        np.testing.assert_array_equal(batch[key], np.concatenate([of_episode(each) for each in episodes]))


def test_only_whole_episodes_are_unpadded(tmp_path: Path) -> None:
    """A batch of transitions has no lengths, and the error says where they come from."""
    store = random_store(tmp_path / "store", [4], ["cut"], BOX)
    for batch in (next(iter(store.loader(2))), [], None):
        with pytest.raises(el.errors.InvalidArgumentError, match=r"units=el\.Episodes\(\)"):
            el.unpadded(batch)  # pyright: ignore[reportArgumentType]


def test_a_span_takes_the_memory_of_an_episode(tmp_path: Path) -> None:
    """However many steps are asked for: values and peak memory are those of the longest episode."""
    store = random_store(tmp_path / "store", [5, 3, 8], ["terminated", "cut", "truncated"], BOX, 3)
    longest = max(map(len, store))
    expected = list(store.loader(5, n_step=longest, gamma=0.9))
    loader = store.loader(5, n_step=2**40, gamma=0.9)
    tracemalloc.start()
    try:
        found = list(loader)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert_identical(found, expected)

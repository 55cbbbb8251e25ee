"""JAX arrays hold what the numpy arrays hold; `test_loader_jax` runs this in a process of its own.

JAX starts threads when it is imported, and a process with those should not fork, which many other tests do.
"""

from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np
import pytest

import episodelake as el
from test_loader_outputs import NO_DEVICES, NO_NUMBERS, UNITS, instead, store

__all__ = ["store"]


@pytest.mark.parametrize("kind", UNITS)
def test_jax_arrays_hold_what_the_arrays_hold(store: el.EpisodeStore, kind: str) -> None:
    """The same nesting and values; types of 64 bits are JAX's of 32."""
    narrow = {"float64": "float32", "int64": "int32"}
    loader = store.loader(4, output=el.Output("jax", device="cpu"), **UNITS[kind])
    for plain, batch in zip(store.loader(4, **UNITS[kind]), loader, strict=True):
        assert list(batch) == list(plain) and isinstance(batch["observation"]["pair"][1], jax.Array)
        assert batch["observation"]["image"].devices() == {jax.devices("cpu")[0]}
        expected = jax.tree.map(lambda leaf: leaf.astype(narrow.get(leaf.dtype.name, leaf.dtype)), plain)
        jax.tree.map(
            lambda found, leaf: (
                np.testing.assert_allclose(found, leaf, rtol=1e-6),
                found.dtype == leaf.dtype or pytest.fail(f"{found.dtype} {leaf.dtype}"),
            ),
            batch,
            expected,
        )


def test_an_integer_too_wide_for_jax_is_refused(store: el.EpisodeStore) -> None:
    """JAX would make another number of it; told to take 64 bits, it keeps it."""
    wide = np.array([0, 2**40, -1, 3])
    loader = store.loader(4, output="jax", transforms=[instead(wide=wide)])
    with pytest.raises(el.errors.InvalidArgumentError, match=r"'wide'.*jax_enable_x64"):
        next(iter(loader))
    jax.config.update("jax_enable_x64", True)
    try:
        assert next(iter(loader))["wide"].tolist() == wide.tolist()
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_number_is_refused_by_name(store: el.EpisodeStore, value: Any) -> None:
    """Strings and objects are no arrays of JAX; the message names the key."""
    with pytest.raises(el.errors.InvalidArgumentError, match="'wrong'"):
        next(iter(store.loader(4, output="jax", transforms=[instead(wrong=value)])))


@pytest.mark.parametrize("device", NO_DEVICES)
def test_a_device_that_is_not_here_is_refused(store: el.EpisodeStore, device: Any) -> None:
    """When the loader is made; the message names those that are here."""
    with pytest.raises(el.errors.InvalidArgumentError, match="There are: cpu:0"):
        store.loader(4, output=el.Output("jax", device=device))


def test_a_loader_can_be_pickled(store: el.EpisodeStore) -> None:
    """With a device too; the copy yields the same batches."""
    loader = store.loader(4, columns=["t"], output=el.Output("jax", device=jax.devices()[0]))
    copy = pickle.loads(pickle.dumps(loader))
    for one, other in zip(loader, copy, strict=True):
        assert isinstance(other["t"], jax.Array) and one["t"].tolist() == other["t"].tolist()


@pytest.mark.parametrize("ask", ["torch_loader", "iterable_dataset", "map_dataset"])
def test_torch_does_not_take_them(store: el.EpisodeStore, ask: str) -> None:
    """DataLoader hands out tensors; a loader of JAX arrays is refused."""
    with pytest.raises(el.errors.InvalidArgumentError, match="output='torch'"):
        getattr(store.loader(4, output="jax"), ask)()

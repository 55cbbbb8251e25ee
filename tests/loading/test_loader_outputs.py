"""What batches are made of: torch tensors, TensorDicts and JAX arrays hold what the numpy arrays hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import episodelake as el
from episodelake.readers.columns.tree import leaves
from episodelake.testing.adapters import case
from loader_batches import NESTED, random_store
from plain_loader import assert_same
from waiting import PATIENCE

torch = pytest.importorskip("torch")

UNITS: dict[str, dict[str, Any]] = {
    "transitions": {},
    "n-step": {"n_step": 3},
    "windows": {"units": el.Windows(4, pad="left")},
    "deltas": {"units": el.Deltas({"observation": [-1, 0], "action": [0, 1, 2]})},
    "episodes": {"units": el.Episodes()},
}

NO_NUMBERS: list[Any] = [np.array(["a", "b"]), np.array([{}, None]), "text", [[1], [2, 3]], None]
NO_DEVICES = ["nonsense", "cuda:77", 1.5]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Five episodes of nested observations."""
    path = tmp_path_factory.mktemp("outputs") / "store"
    return random_store(path, [5, 1, 7, 3, 2], ["terminated", "truncated", "cut", "both", "cut"], NESTED)


def with_numpy(tree: Any) -> Any:
    """Tensors or JAX arrays as numpy arrays."""
    if isinstance(tree, dict):
        return {key: with_numpy(part) for key, part in tree.items()}
    return tuple(map(with_numpy, tree)) if isinstance(tree, tuple) else np.asarray(tree)


def instead(**values: Any) -> Any:
    """A transform that puts other values in a batch's place."""
    return lambda batch: values


def test_tensors_share_the_memory_of_the_arrays(store: el.EpisodeStore) -> None:
    """On the CPU nothing is copied: writing to the array shows in the tensor."""
    kept: list[dict[str, Any]] = []

    def keep(batch: dict[str, Any]) -> dict[str, Any]:
        kept.append(batch)
        return batch

    batch = next(iter(store.loader(4, output=el.Output("torch", device="cpu"), transforms=[keep])))
    kept[0]["reward"][2] = 77.0
    kept[0]["observation"]["image"][1] = 9
    assert batch["reward"][2] == 77.0 and (batch["observation"]["image"][1] == 9).all()


def test_every_numeric_dtype_is_kept(store: el.EpisodeStore) -> None:
    """A tensor has the dtype of its array, unsigned ones of many bits too."""
    cases: list[Any] = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "c8"]
    for dtype in cases:
        with case(dtype):
            values = np.array([0, 1, 1, 0], dtype)
            batch = next(iter(store.loader(4, output="torch", transforms=[instead(x=values)])))
            assert_same(batch["x"].numpy(), values)


def test_what_torch_cannot_share_is_copied(store: el.EpisodeStore) -> None:
    """Arrays that are read-only, broadcast or reversed, and plain numbers, become tensors of their own."""
    fixed = np.arange(4)
    fixed.setflags(write=False)
    values = {"fixed": fixed, "same": np.broadcast_to(1.5, (4, 2)), "back": np.arange(4)[::-1], "one": 3}
    batch = next(iter(store.loader(4, output="torch", transforms=[instead(**values)])))
    for key, value in values.items():
        np.testing.assert_array_equal(batch[key].numpy(), value)
    batch["fixed"][0] = 9
    assert fixed[0] == 0


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("output", ["torch", "tensordict"])
def test_what_is_no_number_is_refused_by_name(store: el.EpisodeStore, value: Any, output: Any) -> None:
    """Strings and objects are refused by name; an array of texts stays beside tensors."""
    pytest.importorskip(output)
    loader = store.loader(4, output=output, transforms=[instead(wrong=value)])
    if output == "torch" and isinstance(value, np.ndarray) and value.dtype.kind == "U":
        np.testing.assert_array_equal(next(iter(loader))["wrong"], value)
        return
    with pytest.raises(el.errors.InvalidArgumentError, match="'wrong'"):
        next(iter(loader))


def test_tensors_go_to_another_device(store: el.EpisodeStore) -> None:
    """With torch's device that has no memory: every tensor is there, with its dtype and shape."""
    batch = next(iter(store.loader(4, output=el.Output("torch", device="meta"))))
    plain = next(iter(store.loader(4)))
    image, pair = batch["observation"]["image"], batch["observation"]["pair"]
    assert image.device.type == pair[0].device.type == batch["reward"].device.type == "meta"
    assert image.dtype == torch.uint8 and image.shape == plain["observation"]["image"].shape
    found = next(iter(store.loader(4, output=el.Output("tensordict", device=torch.device("meta")))))
    assert found.device.type == "meta" and found["observation", "pair", "1"].shape == (4, 3)


class _Watched:
    """Records in which order a tensor of the CPU is asked to move."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.device = torch.device("cpu")

    def pin_memory(self) -> _Watched:
        self.calls.append("pinned")
        return self

    def to(self, device: Any, non_blocking: bool) -> _Watched:
        self.calls.append((str(device), non_blocking))
        return self


def test_a_gpu_fetches_from_pinned_memory() -> None:
    """For CUDA a tensor is pinned first and copied without waiting; for other devices it is only copied."""
    from episodelake.readers.loading.torch_output import moved

    for device, calls in {"cuda:1": ["pinned", ("cuda:1", True)], "meta": [("meta", False)]}.items():
        watched: Any = _Watched()
        moved(watched, torch.device(device))
        assert watched.calls == calls


def _doubled(batch: dict[str, Any]) -> dict[str, Any]:
    for _, leaf in leaves(batch):
        if leaf.dtype == np.float64:
            leaf *= 2
    return batch


@pytest.mark.parametrize("transforms", [(), (_doubled,)])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", UNITS)
def test_batches_are_gathered_into_pinned_memory(
    store: el.EpisodeStore,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    prefetch: int,
    transforms: tuple[Callable[..., Any], ...],
) -> None:
    """With memory that only counts as pinned, and a copy for a device: each batch has the same values, also
    where several are gathered at once and where a transform changes them afterwards.
    """
    from episodelake.readers.loading import torch_output

    sizes: list[int] = []
    copies: list[Any] = []

    def memory(size: int) -> Any:
        sizes.append(size)
        return torch.zeros(size, dtype=torch.uint8)

    def copy(tensor: Any, device: Any, non_blocking: bool) -> Any:
        copies.append(tensor)
        return tensor.clone()

    def loader(size: int | el.Batches) -> el.Loader:
        return store.loader(size, output="torch", seed=3, shuffle=True, transforms=transforms, **UNITS[kind])

    expected = list(loader(3))
    monkeypatch.setattr(torch_output, "_PINNING", ("cpu",))
    monkeypatch.setattr(torch_output, "pinned_bytes", memory)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: SimpleNamespace(stream_id=7))
    made = loader(el.Batches(3, prefetch=prefetch))
    made._output = torch_output.TorchOutput(torch.device("cpu"))
    found = list(made)
    monkeypatch.undo()
    assert len(found) == len(expected)
    for batch, right in zip(found, expected, strict=True):
        for (name, leaf), (_, wanted) in zip(leaves(batch), leaves(right), strict=True):
            assert leaf.dtype == wanted.dtype and torch.equal(leaf, wanted), name
    # Nothing is copied a second time on the host; without transforms pieces go as a whole.
    assert sizes
    whole = [tensor for tensor in copies if len(tensor) in sizes and tensor.dtype == torch.uint8]
    assert (sum(map(torch.Tensor.numel, whole)) >= sum(sizes) // 2) == (not transforms)


@pytest.mark.parametrize("output", ["torch", "tensordict"])
@pytest.mark.parametrize("device", NO_DEVICES)
def test_a_device_that_is_not_here_is_refused(store: el.EpisodeStore, output: Any, device: Any) -> None:
    """When the loader is made, and not at the first batch."""
    pytest.importorskip(output)
    with pytest.raises(el.errors.InvalidArgumentError, match="device="):
        store.loader(4, output=el.Output(output, device=device))


def test_numpy_has_no_device_and_other_outputs_do_not_exist(store: el.EpisodeStore) -> None:
    """Both errors name what there is."""
    with pytest.raises(el.errors.InvalidArgumentError, match="main memory"):
        store.loader(4, output=el.Output(device="cpu"))
    with pytest.raises(el.errors.InvalidArgumentError, match="'numpy', 'torch', 'jax', 'tensordict'"):
        store.loader(4, output="tensorflow")  # pyright: ignore[reportArgumentType]


def test_a_tensordict_needs_one_first_axis(store: el.EpisodeStore) -> None:
    """The message gives the shapes."""
    pytest.importorskip("tensordict")
    values = {"a": np.zeros((4, 2)), "b": np.zeros(3)}
    with pytest.raises(el.errors.InvalidArgumentError, match=r"a: \(4, 2\), b: \(3,\)"):
        next(iter(store.loader(4, output="tensordict", transforms=[instead(**values)])))


@pytest.mark.parametrize("output", ["torch", "tensordict", "jax"])
def test_a_missing_package_is_named(
    store: el.EpisodeStore, output: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an ImportError of the library's tree, and says how to install the package."""
    monkeypatch.setitem(sys.modules, output, None)
    with pytest.raises(el.errors.MissingPackageError, match=f"pip install {output}") as caught:
        store.loader(4, output=output)
    assert isinstance(caught.value, ImportError) and f"output='{output}'" in str(caught.value)
    if output == "torch":
        loader = store.loader(4)
        for ask in (loader.torch_loader, loader.iterable_dataset, loader.map_dataset):
            with pytest.raises(el.errors.MissingPackageError, match="pip install torch"):
                ask()
        with pytest.raises(el.errors.MissingPackageError, match="pip install torch"):
            store.loader(4, shard="distributed")


@pytest.mark.further
def test_numpy_batches_need_no_other_package(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A program that feeds numpy arrays imports neither torch nor JAX nor tensordict, which are there."""
    program = (
        "import sys, episodelake as el\n"
        "assert el.TorchModule\n"
        "loader = el.open(sys.argv[1]).loader(el.Batches(4, prefetch=1), shuffle=True)\n"
        "assert sum(1 for _ in loader) == len(loader) > 0\n"
        "print(sorted({'torch', 'jax', 'tensordict', 'torchdata'} & sys.modules.keys()))\n"
    )
    command = [sys.executable, "-c", program, str(store.path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")


def test_tensors_of_whole_episodes_are_unpadded(store: el.EpisodeStore) -> None:
    """A list of episodes of tensors holds what the episodes hold."""
    batches = store.loader(3, el.Episodes(), output="torch")
    found = [each for batch in batches for each in el.unpadded(batch)]
    for one, episode in zip(found, store, strict=True):
        assert_same(with_numpy(one["observation"]), episode.observations)
        assert torch.is_tensor(one["reward"]) and one["reward"].tolist() == episode.rewards.tolist()

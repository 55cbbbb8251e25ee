"""Loading to a GPU: `python benchmarks/gpu_loading.py [--device cuda] [--quick]`.

It first checks that batches on the device equal those of the CPU: also where the copies of a whole epoch
wait behind other work of the device, and where another stream than the default one uses them. Then it
measures batches until they are on the device, beside bare copies of the same batches, and an epoch streamed
to it. With `--device cpu` it runs without pinned memory and without streams, which tests the script.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import episodelake as el
import sampling
from episodelake.readers.columns.tree import leaves, map_leaves
from measure import Row, interleave, scaled
from peer_process import Peer
from report import print_table
from setting import Setting

SIZE = sampling.SIZE
#: Clock cycles for which the device is kept busy: some tenths of a second.
_BUSY = 400_000_000


class Device:
    """A device of torch, and the loaders and copies that bring batches to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.streams = torch.device(name).type == "cuda"
        self.output = el.Output("torch", device=name)

    def wait(self) -> None:
        """Wait for all that the device was given to do."""
        if self.streams:
            torch.cuda.synchronize()

    def keep_busy(self) -> None:
        """Give the default stream work, behind which copies have to wait."""
        if self.streams:
            torch.cuda._sleep(_BUSY)

    def other_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Let this thread use another stream than the default one."""
        return torch.cuda.stream(torch.cuda.Stream()) if self.streams else contextlib.nullcontext()

    def pinned(self, batch: Any) -> Any:
        """Return a copy of a batch in pinned memory."""
        return map_leaves(torch.Tensor.pin_memory, batch) if self.streams else batch

    def copied(self, batch: Any) -> Any:
        """Return a batch on the device; from pinned memory the copy goes on while the program does."""
        return map_leaves(lambda leaf: leaf.to(self.name, non_blocking=self.streams, copy=True), batch)

    def seconds(self, batches: Iterator[Any], count: int) -> float:
        """Return the seconds of a batch until it is on the device; the first few are not counted."""
        for _ in itertools.islice(batches, 5):
            pass
        self.wait()
        start = time.perf_counter()
        for _ in itertools.islice(batches, count):
            pass
        self.wait()
        return (time.perf_counter() - start) / count


def check(device: Device, work: str, make: Callable[..., el.Loader]) -> None:
    """Compare an epoch's batches with those of the CPU, in each way that they reach the device.

    Raises:
        AssertionError: a batch differs.
    """
    expected = list(make(SIZE, output="torch"))
    loader = make(SIZE, output=device.output)
    ways = {
        "in turn": loader,
        "made ahead": make(el.Batches(SIZE, prefetch=2), output=device.output),
        "by workers": make(SIZE, output=device.output).torch_loader(num_workers=2),
    }
    streams = (contextlib.nullcontext, device.other_stream)
    for (way, made), stream, keep in itertools.product(ways.items(), streams, (True, False)):
        made.set_epoch(0)
        device.keep_busy()
        with stream():
            # Summed at once, while the copies still wait; later batches take memory that is not kept.
            sums, kept = zip(*((_sums(batch), batch if keep else None) for batch in made), strict=True)
            device.wait()
        for number, right in enumerate(expected):
            where = f"batch {number} of {work}, {way}"
            assert torch.equal(sums[number].cpu(), _sums(right)), f"{where}: it was used before it was there"
            for (name, leaf), (_, wanted) in (
                zip(leaves(kept[number]), leaves(right), strict=True) if keep else ()
            ):
                assert leaf.device.type == torch.device(device.name).type, f"{where}: {name} is elsewhere"
                assert torch.equal(leaf.cpu(), wanted), f"{where}: {name} differs"
        assert len(sums) == len(expected)


def _sums(batch: Any) -> torch.Tensor:
    """Return the sum of the bytes of each leaf."""
    return torch.stack([leaf.contiguous().view(torch.uint8).sum() for _, leaf in leaves(batch)])


def transfer(
    device: Device, setting: Setting, work: str, count: int, make: Callable[..., el.Loader]
) -> list[Row]:
    """Measure batches until they are on the device, beside bare copies of one batch."""
    loader = make(SIZE, output=device.output)
    ahead = make(el.Batches(SIZE, prefetch=2), output=device.output)
    workers = loader.torch_loader(num_workers=2, persistent_workers=True)
    plain = make(SIZE, output="torch")
    batch = next(iter(plain))
    ready = device.pinned(batch)
    size = sum(leaf.nbytes for _, leaf in leaves(batch))
    sides: Mapping[str, Callable[[], Iterator[Any]]] = {
        "ours": lambda: _endless(loader),
        "ahead": lambda: _endless(ahead),
        "workers": lambda: _endless(workers),
        "gathered": lambda: _endless(plain),
        "pageable": lambda: (device.copied(made) for made in _endless(plain)),
        "bare pageable": lambda: (device.copied(batch) for _ in itertools.count()),
        "bare pinning": lambda: (device.copied(device.pinned(batch)) for _ in itertools.count()),
        "bare pinned": lambda: (device.copied(ready) for _ in itertools.count()),
    }
    found = interleave(
        {name: lambda side=side: _closed(device, side, count) for name, side in sides.items()},
        setting.repeats,
    )
    us = {name: scaled(values, 1e6) for name, values in found.items()}
    work = f"{work}, {size / 1e6:.2f} MB"
    return [
        Row(work, "us", us["ours"], "gathered on the CPU", us["gathered"]),
        Row(work, "us", us["ours"], "the same, copied without pinning", us["pageable"]),
        Row(f"{work}, prefetch=2", "us", us["ahead"], "bare copy, pinned once", us["bare pinned"]),
        Row(f"{work}, 2 workers", "us", us["workers"], "bare copy, pinned once", us["bare pinned"]),
        Row(work, "us", us["ours"], "bare copy, pinned each time", us["bare pinning"]),
        Row(work, "us", us["ours"], "bare copy, without pinning", us["bare pageable"]),
    ]


def streamed(device: Device, setting: Setting, path: Path) -> list[Row]:
    """Measure an epoch that is streamed to the device, beside one that stays on the CPU."""
    make = partial(_loader, path, shuffle=True, cache=el.Cache("stream", buffer_bytes=sampling.BUFFER))
    kinds = {
        "ours": (SIZE, device.output),
        "cpu": (SIZE, "torch"),
        "ahead": (el.Batches(SIZE, prefetch=2), device.output),
    }
    loaders = {name: make(size, output=output) for name, (size, output) in kinds.items()}
    found = interleave(
        {name: lambda loader=loader: _epoch(device, loader) for name, loader in loaders.items()},
        setting.repeats,
    )
    ms = {name: scaled(values, 1e3) for name, values in found.items()}
    work = f"an epoch streamed, buffer of {sampling.BUFFER >> 20} MiB"
    return [
        Row(work, "ms", ms["ours"], "the same on the CPU", ms["cpu"]),
        Row(f"{work}, prefetch=2", "ms", ms["ahead"], "the same on the CPU", ms["cpu"]),
    ]


def _loader(path: Path, size: Any, **options: Any) -> el.Loader:
    return el.open(path).loader(size, **options)


def _endless(loader: el.Loader) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _closed(device: Device, side: Callable[[], Iterator[Any]], count: int) -> float:
    return device.seconds(side(), count)


def _epoch(device: Device, loader: el.Loader) -> float:
    start = time.perf_counter()
    for _ in loader:
        pass
    device.wait()
    return time.perf_counter() - start


def main(
    device: Annotated[str, typer.Option(help="A device of torch.")] = "cuda",
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that everything works.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each side is measured.")] = 5,
) -> None:
    """Check and measure the loading of batches to a device."""
    target = Device(device)
    with tempfile.TemporaryDirectory(prefix="episodelake-benchmarks-") as folder:
        peer = Peer(Path(folder), Path(folder))
        setting = Setting(Path(folder), repeats, quick, peer, peer, Path(folder))
        small = sampling.make_store(setting, 20_000)
        path = sampling.make_store(setting, setting.choose(sampling.STEPS, 50_000))
        frames = sampling.make_frames(setting, setting.choose(sampling.FRAMES, 2_000))
        shapes = {"window": sampling.WINDOW, "shuffle": True}
        pixels = {"columns": ["observation", "next_observation"], "shuffle": True}
        check(target, "transitions", partial(_loader, small, shuffle=True))
        check(target, "windows", partial(_loader, small, **shapes))
        check(target, "a stream", partial(_loader, small, shuffle=True, cache="stream"))
        check(target, "frames", partial(_loader, sampling.make_frames(setting, 1_000), **pixels))
        rows = [
            *transfer(target, setting, f"{SIZE} transitions", 1_000, partial(_loader, path, shuffle=True)),
            *transfer(target, setting, f"{SIZE} windows", 100, partial(_loader, path, **shapes)),
            *transfer(target, setting, f"{SIZE} pairs of frames", 30, partial(_loader, frames, **pixels)),
            *streamed(target, setting, path),
        ]
    print_table("Loading to a GPU", rows, Console(width=170))


if __name__ == "__main__":
    typer.run(main)

"""Batches of packed token sequences beside numpy's concatenation of the same arrays.

The peer has the packs and the arrays of each rollout in lists, and concatenates them: as little as any
packing loader does for a batch. Figures are processor time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import episodelake as el
from measure import Row, interleave, scaled
from setting import Setting

TOKENS, TURNS, MEAN = 8192, 3, 300
#: Batches that one repeat times.
BATCHES = 100
GOAL = 1.3
NAMES = ("input_ids", "position_ids", "loss_mask", "logprobs", "advantages")


def write(folder: Path, rollouts: int) -> el.EpisodeStore:
    """Write rollouts of three turns, about 900 tokens each, with log-probabilities and an advantage."""
    generator = np.random.default_rng(0)
    store = el.create(folder / "rollouts", el.Rollouts())
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}] * TURNS
    with store.writer() as writer:
        for _ in range(rollouts):
            tokens = [
                generator.integers(0, 150_000, size)
                for size in generator.geometric(1 / (MEAN / 2), 2 * TURNS)
            ]
            logprobs = [
                -generator.exponential(size=len(each)) if at % 2 else None for at, each in enumerate(tokens)
            ]
            writer.write_rollout(messages, tokens=tokens, logprobs=logprobs, advantages=generator.normal())
    return store.refresh()


def concatenated(store: el.EpisodeStore, packs: list[np.ndarray]) -> Callable[[], object]:
    """Return the peer: it concatenates the arrays of the rollouts of each pack.

    Args:
        store: whose rollouts have one branch each.
        packs: the rollouts of each pack.
    """
    whole = store.loader(1, el.Padded(TOKENS, too_long="cut"))
    arrays: dict[str, list[np.ndarray]] = {}
    for batch in whole:
        (length,) = batch["sequence_lengths"]
        for name in NAMES:
            arrays.setdefault(name, []).append(batch[name][0, :length].copy())
    numbers = [pack.tolist() for pack in packs]

    def run() -> None:
        for pack in numbers:
            for name in NAMES:
                own = arrays[name]
                np.concatenate([own[number] for number in pack])

    return run


def run(setting: Setting) -> list[Row]:
    """Measure batches of 8192 tokens, and the first batch of a loader."""
    rollouts = 200 if setting.quick else 4_000
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder), rollouts)
        units = el.Packed(TOKENS, too_long="cut")

        def make(output: Any = "numpy") -> Any:
            return store.loader(units=units, shuffle=True, output=output)

        loader, tensors = make(), make("torch")
        peer = concatenated(store, [batch["episode"] for batch in make()][:BATCHES])

        def batches(own: Any) -> Callable[[], object]:
            def run() -> None:
                own.set_epoch(0)
                for number, _ in enumerate(own, 1):
                    if number == BATCHES:
                        break

            return run

        sides = {"ours": batches(loader), "torch": batches(tensors), "peer": peer}
        results = interleave({name: _timed(side) for name, side in sides.items()}, setting.repeats)
        count = min(BATCHES, len(loader))
        work = f"packed batch of {TOKENS:,} tokens"
        theirs = scaled(results["peer"], 1e6 / count)
        rows = [
            Row(work, "us", scaled(results["ours"], 1e6 / count), "numpy concatenation", theirs, GOAL),
            Row(
                f"{work}, tensors", "us", scaled(results["torch"], 1e6 / count), "numpy concatenation", theirs
            ),
        ]
        loading = interleave({"ours": _timed(make)}, setting.repeats)["ours"]
        return [*rows, Row(f"loader of {rollouts:,} rollouts", "ms", scaled(loading, 1e3))]


def _timed(task: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        begun = time.process_time()
        task()
        return time.process_time() - begun

    return run

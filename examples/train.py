"""Record CartPole, train three learners from the store, evaluate them, and draw their learning curves.

    python examples/train.py                        # all three, about a minute
    python examples/train.py cloning --seed 3
    python examples/train.py --store cartpole --svg curves.svg

It needs the extra `training`: pip install '.[training]'.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import episodelake as el
from learners.cloning import clone
from learners.curves import draw_curves
from learners.playing import play
from learners.q_learning import learn_values
from learners.recording import mean_return, record
from learners.sequence_model import learn_sequences
from learners.training import Trained

LEARNERS: dict[str, Callable[..., Trained]] = {
    "cloning": clone,
    "q-learning": learn_values,
    "sequence-model": learn_sequences,
}


def main(words: Sequence[str] | None = None) -> dict[str, float]:
    """Run the command line; return each learner's mean return in 100 new episodes."""
    parser = _arguments()
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.learners if name not in LEARNERS]:
        parser.error(f"no learner is called {unknown[0]!r}; there are {', '.join(LEARNERS)}")
    # One thread: small networks gain nothing from more, and sums keep one order.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = _store(asked.store or Path(folder) / "cartpole", asked.seed)
        recorded = mean_return(store)
        print(f"{len(store)} recorded episodes with a mean return of {recorded:.1f}", flush=True)
        trained, reached = {}, {}
        for name in asked.learners or LEARNERS:
            begun = time.perf_counter()
            trained[name] = LEARNERS[name](store, seed=asked.seed)
            seconds = time.perf_counter() - begun
            reached[name] = float(play(trained[name].policy, 100, first_seed=2_000_000).mean())
            print(f"{name}: mean return {reached[name]:.1f} after {seconds:.0f} s", flush=True)
        if asked.svg:
            draw_curves(trained, recorded, asked.svg)
    return reached


def _store(folder: Path, seed: int) -> el.EpisodeStore:
    """Open the store in a folder, or record one there."""
    return el.open(folder) if folder.exists() else record(folder, seed=seed)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train three learners from a store of CartPole episodes.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("learners", nargs="*", metavar="learner", help=f"some of {', '.join(LEARNERS)}")
    parser.add_argument("--store", type=Path, help="a store to learn from; recorded if there is none")
    parser.add_argument("--seed", type=int, default=0, help="of recording, batches and networks")
    parser.add_argument("--svg", type=Path, help="where to draw the learning curves")
    return parser


if __name__ == "__main__":
    main()

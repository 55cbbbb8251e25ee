"""Ray Data: reading, writing and units beside Ray's own Parquet files, and beside the adapter of RLlib.

    .venv-rllib/bin/python benchmarks/ray_data.py [writing] [reading] [units] [--quick] [--repeats N]

It needs the environment of `make test-rllib`. Both sides run on one small cluster of this machine, in turn.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
import ray
import ray.data
import typer
from rich.console import Console

import episodelake as el
from episodelake.integrations.ray import read_steps, read_units, write_steps
from episodelake.integrations.rllib import StoreOfflineData
from measure import Row, interleave, scaled
from peer_process import Peer
from report import print_table
from setting import Setting, create, write_all
from trajectories import control

LENGTH = 500
BATCH = 512
READ_TARGET, WRITE_TARGET = 1.2, 1.3


def rows_of(dataset: ray.data.Dataset) -> int:
    """Read a dataset block by block and return its rows."""
    return sum(block.num_rows for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"))


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def reading(setting: Setting, path: Path, steps: int) -> list[Row]:
    """Read all columns of all steps; both sides read the same files."""
    files = sorted(str(file) for file in (path / "steps").glob("*.parquet"))

    def bare(**options: int) -> float:
        return timed(lambda: rows_of(ray.data.read_parquet(files, **options)))

    sides = {
        "ours": lambda: timed(lambda: rows_of(read_steps(path, last=True))),
        "read_parquet": bare,
        "read_parquet, a block for each file": lambda: bare(override_num_blocks=len(files)),
    }
    measured = interleave(sides, setting.repeats)
    ours, *peers = [(name, scaled(values, 1e6 / steps)) for name, values in measured.items()]
    return [Row("read steps", "us/step", ours[1], *peer, ratio_target=READ_TARGET) for peer in peers]


def writing(setting: Setting, path: Path, steps: int) -> list[Row]:
    """Write the rows of all steps, which are in the cluster's memory, in blocks of whole episodes."""
    store = el.open(path)
    blocks = [store[start : start + 100].steps.collect().to_arrow() for start in range(0, len(store), 100)]
    dataset = ray.data.from_arrow(blocks).materialize()
    rows = sum(block.num_rows for block in blocks)

    def ours() -> float:
        target = setting.fresh("written")
        create(target, "control")
        seconds = timed(lambda: write_steps(dataset, target, write_id="one"))
        assert sum(file.rows for file in el.open(target).context.snapshot.step_files) == rows
        return seconds

    def bare() -> float:
        target = setting.fresh("parquet")
        seconds = timed(lambda: dataset.write_parquet(str(target), compression="zstd"))
        assert sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet")) == rows
        return seconds

    measured = interleave({"ours": ours, "bare": bare}, setting.repeats)
    both = [scaled(measured[side], 1e6 / steps) for side in ("ours", "bare")]
    return [Row("write steps", "us/step", both[0], "write_parquet", both[1], ratio_target=WRITE_TARGET)]


def units(setting: Setting, path: Path, steps: int) -> list[Row]:
    """Take an epoch of shuffled batches of transitions, from the second batch on."""

    def ours() -> float:
        dataset = read_units(path)
        batches = dataset.iter_batches(batch_size=BATCH, local_shuffle_buffer_size=10 * BATCH)
        return after_the_first(batches, steps)

    def rllib() -> float:
        return after_the_first(_offline_batches(path), steps)

    measured = interleave({"ours": ours, "rllib": rllib}, setting.repeats)
    both = [scaled(measured[side], 1e6 / steps) for side in ("ours", "rllib")]
    return [Row(f"batches of {BATCH} transitions", "us/step", both[0], "StoreOfflineData, for BC", both[1])]


def after_the_first(batches: Iterable[Any], steps: int) -> float:
    """Return the seconds from the first batch to the last of an epoch."""
    iterator = iter(batches)
    next(iterator)
    return timed(lambda: sum(1 for _ in islice(iterator, steps // BATCH - 1)))


def _offline_batches(path: Path) -> Iterable[Any]:
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.core.columns import Columns  # noqa: F401  (imports what its specs need)
    from ray.rllib.env import INPUT_ENV_SPACES

    store = el.open(path)
    spaces = store.observation_space, store.action_space
    config = BCConfig().environment(observation_space=spaces[0], action_space=spaces[1])
    config.offline_data(
        input_=[str(path)],
        offline_data_class=StoreOfflineData,
        dataset_num_iters_per_learner=1,
        materialize_mapped_data=False,
    )
    config.training(train_batch_size_per_learner=BATCH).debugging(seed=0)
    data = StoreOfflineData(config)
    data.spaces = {INPUT_ENV_SPACES: spaces}
    data.module_spec = config.get_multi_rl_module_spec(spaces={"default_policy": spaces})
    state = data.module_spec.build().get_state()
    while True:
        yield data.sample(BATCH, module_state=state)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Which to run: writing, reading, units.")] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that everything works.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each side is measured.")] = 5,
) -> None:
    """Measure the integration of Ray Data."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
    ray.init(num_cpus=4, object_store_memory=500 << 20, include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # The newer reader lists files in a task of its own, which waits for half a minute without a network.
    context.use_datasource_v2 = False
    with tempfile.TemporaryDirectory(prefix="episodelake-benchmarks-") as name:
        folder = Path(name)
        peer = Peer(folder, folder)
        setting = Setting(folder, repeats, quick, peer, peer, folder)
        data = control(episodes=setting.choose(500, 100), length=LENGTH)
        path = setting.fresh("store")
        write_all(create(path, data.kind), data)
        for measure in (writing, reading, units):
            if names and measure.__name__ not in names:
                continue
            print_table("Ray Data", measure(setting, path, int(data.steps)), Console(width=170))


if __name__ == "__main__":
    typer.run(main)

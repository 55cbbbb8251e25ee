"""Lance's side of the object-store benchmark: a process that does one job per line of JSON.

It runs in a virtual environment of its own; see `peer_process`. A row is a transition. The order of files and
of batches is random, that of the rows in a batch is not: single rows would take a request each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import lance
import numpy as np
import pyarrow as pa
from lance.torch.data import LanceDataset, ShardedFragmentSampler

import sampling_data
from peer_side import serve, versions

URL = "s3://episodes/lance"
FRAGMENTS = 6


def build(steps: int, length: int, options: Mapping[str, str]) -> dict:
    """Write the transitions of the episodes in six files."""
    data = list(sampling_data.episodes(steps, length))
    start = time.perf_counter()
    for part in np.array_split(np.arange(len(data)), FRAGMENTS):
        columns = {
            "observation": np.concatenate([data[number].observations[:-1] for number in part]),
            "action": np.concatenate([data[number].actions for number in part]),
            "reward": np.concatenate([data[number].rewards for number in part]),
        }
        arrays = {
            name: pa.array(values)
            if values.ndim == 1
            else pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
            for name, values in columns.items()
        }
        lance.write_dataset(pa.table(arrays), URL, mode="append", storage_options=dict(options))
    return {"seconds": time.perf_counter() - start}


def epoch(options: Mapping[str, str], size: int) -> dict:
    """Open the data set and read all batches as tensors."""
    start = time.perf_counter()
    dataset = lance.dataset(URL, storage_options=dict(options))
    first, rows = 0.0, 0
    sampler = ShardedFragmentSampler(0, 1, randomize=True, seed=0)
    for batch in LanceDataset(dataset, batch_size=size, sampler=sampler):
        first = first or time.perf_counter() - start
        rows += len(batch["reward"])
    assert rows == dataset.count_rows()
    return {"seconds": time.perf_counter() - start, "first": first}


if __name__ == "__main__":
    serve({"build": build, "epoch": epoch, "versions": versions("pylance", "torch")})

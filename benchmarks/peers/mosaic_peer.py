"""MosaicML Streaming's side of the object-store benchmark: a process that does one job per line of JSON.

It runs in a virtual environment of its own; see `peer_process`. A sample is a transition. Shards are fetched
into a folder that is empty at the beginning of each epoch, and samples are shuffled within some shards.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # Built for another torch. Streaming imports it, and nothing here uses its operators.
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
        )

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

import sampling_data
from peer_side import serve, versions

URL, LOCAL = "s3://episodes/mosaic", "mosaic"
COLUMNS = {
    "observation": f"ndarray:float32:{sampling_data.OBSERVATION_SIZE}",
    "action": f"ndarray:float32:{sampling_data.ACTION_SIZE}",
    "reward": "float32",
}
WORKERS = 2


def _reach(options: Mapping[str, str]) -> None:
    os.environ["S3_ENDPOINT_URL"] = options["aws_endpoint"]
    os.environ["AWS_ACCESS_KEY_ID"] = options["aws_access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = options["aws_secret_access_key"]
    os.environ["AWS_DEFAULT_REGION"] = options["aws_region"]
    # The server of the tests takes whole bodies only.
    os.environ["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"


def build(steps: int, length: int, options: Mapping[str, str]) -> dict:
    """Write the transitions as shards with zstd, of 8 MB each."""
    _reach(options)
    start = time.perf_counter()
    with MDSWriter(out=URL, columns=COLUMNS, compression="zstd:1", size_limit=10 << 20) as writer:
        for episode in sampling_data.episodes(steps, length):
            rows = zip(episode.observations, episode.actions, episode.rewards, strict=False)
            for observation, action, reward in rows:
                writer.write({"observation": observation, "action": action, "reward": reward})
    return {"seconds": time.perf_counter() - start}


def epoch(options: Mapping[str, str], size: int) -> dict:
    """Open the data set and read all batches with two workers."""
    _reach(options)
    shutil.rmtree(LOCAL, ignore_errors=True)
    clean_stale_shared_memory()
    start = time.perf_counter()
    dataset = StreamingDataset(remote=URL, local=LOCAL, shuffle=True, batch_size=size)
    first, rows = 0.0, 0
    for batch in DataLoader(dataset, size, num_workers=WORKERS):
        first = first or time.perf_counter() - start
        rows += len(batch["reward"])
    assert rows == len(dataset)
    return {"seconds": time.perf_counter() - start, "first": first}


if __name__ == "__main__":
    serve({"build": build, "epoch": epoch, "versions": versions("mosaicml-streaming", "torch")})

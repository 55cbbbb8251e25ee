"""Minari's side of the benchmarks: a process that does one job per line of JSON.

It runs in a virtual environment of its own. A command such as
`{"do": "iterate", "dataset": "control-hdf5-v0"}` comes in on standard input; one line of JSON goes out.
Datasets lie where the environment variable `MINARI_DATASETS_PATH` says, and `PYTHONPATH` leads to the modules
that both sides import.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import minari
from minari.data_collector import EpisodeBuffer

import environments
import trajectories

PACKAGES = ("minari", "h5py", "pyarrow", "numpy", "gymnasium", "mujoco", "jax")

_envs: dict[str, Any] = {}


def versions() -> dict:
    """Say which versions are installed."""
    return {name: version(name) for name in PACKAGES}


def bare(env: str, steps: int) -> dict:
    """Run the loop with nothing recorded."""
    inner, actions = _env(env)
    return {"seconds": environments.seconds_stepping(inner, actions, steps)}


def record(env: str, steps: int, data_format: str, infos: bool) -> dict:
    """Run the same loop through a `DataCollector`, then create the dataset; the two are timed apart."""
    inner, actions = _env(env)
    collector = minari.DataCollector(
        inner, record_infos=infos, data_format=data_format, step_data_callback=_callback(infos)
    )
    stepping = environments.seconds_stepping(collector, actions, steps)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector.create_dataset("recorded-v0")
    creating = time.perf_counter() - start
    shutil.rmtree(_path("recorded-v0"))
    shutil.rmtree(collector._tmp_dir.name, ignore_errors=True)
    return {"stepping": stepping, "creating": creating}


def build(arrays: str, dataset: str, data_format: str, jpeg: bool = True) -> dict:
    """Write saved arrays as a dataset with `create_dataset_from_buffers`."""
    data = trajectories.load(Path(arrays))
    observation_space, action_space = trajectories.spaces(data.kind)
    buffers = [_buffer(number, trajectory) for number, trajectory in enumerate(data)]
    if _path(dataset).exists():
        shutil.rmtree(_path(dataset))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            dataset,
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            data_format=data_format,
            jpeg_encoding=jpeg,
        )
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in _path(dataset).rglob("*") if file.is_file())
    return {"seconds": seconds, "bytes": size, "steps": data.steps}


def iterate(dataset: str) -> dict:
    """Open a dataset and read every episode as arrays.

    One value of each array is added up, so that none is left undecoded.
    """
    total, steps = 0.0, 0
    start = time.perf_counter()
    for episode in minari.load_dataset(dataset).iterate_episodes():
        total += episode.observations[-1, 0] + episode.actions[-1, 0] + episode.rewards[-1]
        total += episode.terminations[-1] + episode.truncations[-1]
        steps += len(episode.rewards)
    return {"seconds": time.perf_counter() - start, "total": float(total), "steps": steps}


def filter_by_return(dataset: str, threshold: float) -> dict:
    """Open a dataset and keep the episodes whose return is above a threshold."""
    start = time.perf_counter()
    count = len(
        minari.load_dataset(dataset).filter_episodes(lambda episode: episode.rewards.sum() > threshold)
    )
    return {"seconds": time.perf_counter() - start, "count": count}


COMMANDS: dict[str, Callable[..., dict]] = {
    "versions": versions,
    "bare": bare,
    "record": record,
    "build": build,
    "iterate": iterate,
    "filter_by_return": filter_by_return,
}


class _SameKeys(minari.StepDataCallback):
    """Give the reset's info the keys that a step's info has.

    HalfCheetah's reset reports fewer keys than its step, and `record_infos=True` raises when they differ.
    """

    def __call__(self, env: Any, **arguments: Any) -> Any:
        step = super().__call__(env, **arguments)
        if step["action"] is None:
            step["info"] = dict.fromkeys(environments.HALFCHEETAH_INFO, 0.0) | step["info"]
        return step


def _callback(infos: bool) -> type[minari.StepDataCallback]:
    return _SameKeys if infos else minari.StepDataCallback


def _env(name: str) -> tuple[Any, list[Any]]:
    if name not in _envs:
        env = environments.make(name)
        _envs[name] = env, environments.make_actions(env)
    return _envs[name]


def _buffer(number: int, trajectory: trajectories.Trajectory) -> EpisodeBuffer:
    return EpisodeBuffer(
        id=number,
        observations=trajectory.observations,
        actions=trajectory.actions,
        rewards=trajectory.rewards,
        terminations=trajectory.terminations,
        truncations=trajectory.truncations,
    )


def _path(dataset: str) -> Path:
    return Path(os.environ["MINARI_DATASETS_PATH"], dataset)


def main() -> None:
    """Answer commands until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        command = json.loads(line)
        job = COMMANDS[command.pop("do")]
        print(json.dumps(job(**command)), file=answers)


if __name__ == "__main__":
    main()

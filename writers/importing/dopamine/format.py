"""Dopamine: folders with the checkpoints of its circular replay buffer, such as the DQN replay dataset.

A row has an observation (one frame of the stack), and the action, reward and terminal that followed. Rows
with `terminal` are terminated; the agents in TensorFlow set it at a time limit as well. Rows of
`episode_end_indices` without a terminal are truncated. Where the ring stops, an episode is cut. The
observation after an end is not stored (`last_observation`).

Each episode begins with rows of zeros, one fewer than a stack has frames; these are left out. The oldest rows
of the ring are left out in the same number, as Dopamine does: they may be such zeros. `invalid_range` has a
slot for each frame of a stack and each step of a return; how many are frames follows from the zeros.

`episode_end_indices` is a pickled set, read by an unpickler that knows sets of numbers only. The replay
buffer of Dopamine 4.1 in JAX, an Orbax checkpoint with stacked states, is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium import Space

from ....store.errors import DatasetError
from ..dataset import ForeignDataset, ImportOptions, Match, Part
from ..flat import FlatEpisodes, FlatRows, extra_column
from ..hdf5 import box_of, discrete_of, fingerprint, is_discrete
from ..npy import closed_on_error
from .checkpoints import COUNTERS, ENDS, NEEDED, find_checkpoints, read_counters
from .episodes import Episodes, Joined, stack_padding

_BLOCK_ROWS = 1 << 20


class _Format:
    name = "dopamine"
    extra = None
    rule = "a folder with files $store$_observation_ckpt.N.gz"

    def detect(self, source: Any) -> Match:
        """Look at the names of the files."""
        if not isinstance(source, str | Path) or not Path(source).is_dir():
            return Match("it is no folder", 3, related=False)
        try:
            found = find_checkpoints(Path(source))
        except OSError as error:
            return Match(str(error), 3)
        if not found:
            return Match("it has no files $store$_NAME_ckpt.N.gz", 2, related=False)
        lacking = [name for name in NEEDED if name not in found[0].arrays]
        if lacking:
            return Match(f"checkpoint {found[0].number} has no {', '.join(lacking)}", len(lacking))
        return Match(f"it has checkpoints {found[0].number} to {found[-1].number}")

    def open(self, source: Any, options: ImportOptions) -> ForeignDataset:
        """Open a folder."""
        match = self.detect(source)
        if match.lacks:
            raise DatasetError(f"{source!s:.200} has no checkpoints of Dopamine: {match.reason}.")
        dataset = _Dataset()
        with closed_on_error(dataset):
            dataset.read(Path(source), options)
        return dataset


class _Dataset(ForeignDataset):
    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[str, Joined] = {}

    def read(self, folder: Path, options: ImportOptions) -> None:
        """Find the episodes, and open the arrays.

        Raises:
            DatasetError: a file is missing or damaged.
        """
        self.settings = {"last_observation": options.last_observation}
        checkpoints = read_counters(find_checkpoints(folder))
        found = Episodes(stack_padding(checkpoints[0]), self.losses)
        for checkpoint in checkpoints:
            found.add(checkpoint)
        found.cut()
        if not found.spans:
            raise DatasetError(f"{folder} has no transitions.")
        extras = [name for name in checkpoints[0].arrays if name not in NEEDED]
        for name in (*NEEDED[:3], *extras):
            self._arrays[name] = Joined(name, found.spans)
        observation, action, reward, *_ = self._arrays.values()
        self.reward_shape = reward.shape[1:]
        self.observation_space = options.observation_space or box_of(observation, "observation_space")
        self.action_space = options.action_space or _action_space(action)
        self.mapping = {
            **dict(zip(("observation", "action", "reward", "terminated"), NEEDED, strict=True)),
            "truncated": f"{ENDS} without terminal",
        }
        for name in sorted(set(checkpoints[0].others) - {*COUNTERS, ENDS}):
            self.losses.add(f"{name}, which is no array of transitions", len(checkpoints))
        lasts, terminated, truncated = found.flags()
        self.identity = f"dopamine:{fingerprint(observation, action, reward, rows=int(lasts[0]) + 1)}"
        rows = FlatRows(
            place=str(folder),
            observation=observation,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            ends=lasts,
            passed={extra_column(name, "dopamine"): self._arrays[name] for name in extras},
        )
        self._episodes = FlatEpisodes(self, options, rows)
        self.count = self._episodes.count

    def parts(self) -> Iterator[Part]:
        """Yield parts of a few megabytes or one episode."""
        return self._episodes.parts()

    def close(self) -> None:
        """Close the files."""
        for array in self._arrays.values():
            array.close()


def _action_space(actions: Joined) -> Space:
    if not is_discrete(actions):
        return box_of(actions, "action_space")
    starts = range(0, len(actions), _BLOCK_ROWS)
    return discrete_of(actions[start : start + _BLOCK_ROWS] for start in starts)


FORMAT = _Format()

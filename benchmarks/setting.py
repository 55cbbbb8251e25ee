"""The setting of a benchmark run (scratch folder, repeats, peers) and common tools."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import episodelake as el
from peer_process import Peer
from trajectories import Trajectories, spaces

FORMATS = ("hdf5", "arrow")


@dataclass(frozen=True)
class Growth:
    """The choices of `scale` and `billion`.

    Attributes:
        steps: the sizes of stores; none for the usual ones.
        folder: where stores and results stay, or None for the scratch folder.
        only: the work to do, even if it was done; none for all.
        skip: the work not to do.
        seconds: what any work may take.
    """

    steps: tuple[int, ...] = ()
    folder: Path | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    seconds: float = 3600.0


@dataclass(frozen=True)
class Setting:
    """The setting of one run: a scratch folder, repeats, the peers, and where they are installed."""

    folder: Path
    repeats: int
    quick: bool
    minari: Peer
    tianshou: Peer
    environments: Path
    growth: Growth = Growth()

    def choose(self, full: int, quick: int) -> int:
        """Return the size to use: `full`, or `quick` in a quick run."""
        return quick if self.quick else full

    def fresh(self, name: str) -> Path:
        """Return a path in the scratch folder with nothing at it."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path


def create(path: Path, kind: str) -> el.EpisodeStore:
    """Create a store for a kind of data."""
    observation_space, action_space = spaces(kind)
    return el.create(path, observation_space=observation_space, action_space=action_space)


def write_all(store: el.EpisodeStore, data: Trajectories) -> None:
    """Write every episode with `write_episode` and close the writer, which seals."""
    with store.writer() as writer:
        for episode in data:
            writer.write_episode(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
            )


def folder_bytes(path: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

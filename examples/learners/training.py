"""Shared parts of the learners: endless batches, networks, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

import episodelake as el

from .playing import Policy, play

#: Gradient norm for clipping.
LARGEST_NORM = 1.0


@dataclass(frozen=True)
class Point:
    """One point of a learning curve.

    Attributes:
        updates: gradient steps until then.
        loss: the mean loss since the point before; NaN before the first update.
        mean_return: of the episodes that it played then.
    """

    updates: int
    loss: float
    mean_return: float


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        policy: what was learnt.
        curve: how it came to that.
    """

    policy: Policy
    curve: tuple[Point, ...]


class Watch:
    """Evaluates a policy before the first update, and then at regular intervals.

    Args:
        policy: who plays.
        every: updates from one time to the next.
        episodes: how many are played each time.
    """

    def __init__(self, policy: Policy, every: int, episodes: int = 20) -> None:
        self._policy, self._every, self._episodes = policy, every, episodes
        self._losses: list[torch.Tensor] = []
        self._updates = 0
        self.curve: list[Point] = []
        self._play()

    def count(self, loss: torch.Tensor) -> None:
        """Count one update with this loss."""
        self._updates += 1
        self._losses.append(loss.detach())
        if self._updates % self._every == 0:
            self._play()

    def _play(self) -> None:
        loss = float(torch.stack(self._losses).mean()) if self._losses else math.nan
        self._losses.clear()
        self.curve.append(Point(self._updates, loss, float(play(self._policy, self._episodes).mean())))


def batches(loader: el.Loader, updates: int) -> Iterator[dict[str, Any]]:
    """Yield `updates` batches, epoch after epoch."""

    def endless() -> Iterator[dict[str, Any]]:
        while True:
            yield from loader

    return islice(endless(), updates)


def network(inputs: int, outputs: int, width: int = 128) -> nn.Module:
    """Two hidden layers; every output is 0 before training."""
    last = nn.Linear(width, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), last)


class Descent:
    """Optimiser with a decaying learning rate, so that the last updates change little.

    Args:
        net: whose parameters.
        rate: the learning rate of the first step; it falls to 0 as half a cosine.
        updates: how many steps there will be.
    """

    def __init__(self, net: nn.Module, rate: float, updates: int) -> None:
        self._parameters = list(net.parameters())
        self._optimiser = torch.optim.Adam(self._parameters, lr=rate)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimiser, updates)

    def step(self, loss: torch.Tensor) -> None:
        """One step."""
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, LARGEST_NORM)
        self._optimiser.step()
        self._schedule.step()


class GreedyPolicy:
    """Greedy policy: the action with the network's greatest output.

    Args:
        net: from observations, normalized, to a number for each action.
        normalize: the transform that normalized the batches.
    """

    def __init__(self, net: nn.Module, normalize: el.Normalize) -> None:
        self.net, self.normalize = net, normalize

    def begin(self, episodes: int) -> None:
        """Do nothing: the policy has no state."""

    def act(self, observation: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        """See `Policy`."""
        batch = self.normalize({"observation": observation.numpy()})
        return self.net(torch.from_numpy(batch["observation"])).argmax(-1)

"""A single file in the style of CleanRL: DQN whose replay buffer is a store.

    pip install '.[training]'
    python examples/cleanrl_dqn.py dqn-cartpole

Each iteration records some steps as a run and then trains from the newest episodes. All of them stay in the
store after the training.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import episodelake as el


@dataclass(frozen=True)
class Settings:
    """Of the training.

    Attributes:
        steps: of each of the environments, in each iteration.
        updates: of the network, in each iteration.
        exploration: the share of random actions in the first and in the last iteration.
        buffer: how many of the newest episodes are trained from.
        tracking: the share of the network that goes into the target network at each update.
    """

    iterations: int = 10
    environments: int = 8
    steps: int = 125
    updates: int = 200
    exploration: tuple[float, float] = (1.0, 0.05)
    buffer: int = 300
    batch: int = 128
    gamma: float = 0.99
    rate: float = 1e-3
    tracking: float = 0.02
    seed: int = 0


def batches(store: el.EpisodeStore, settings: Settings, iteration: int) -> Iterator[dict[str, Any]]:
    """The batches of an iteration: epochs over the newest episodes, in an order that the seed decides."""
    loader = store[-settings.buffer :].loader(
        settings.batch,
        columns=["observation", "action", "reward", "next_observation", "terminated"],
        transforms=[el.Cast(["reward"], "float32")],
        shuffle=True,
        seed=settings.seed + iteration,
        output="torch",
    )
    return islice(chain.from_iterable(repeat(loader)), settings.updates)


def main(folder: str | Path, settings: Settings = Settings()) -> el.EpisodeStore:
    """Train; return the store with the episodes of all iterations."""
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    with gymnasium.make("CartPole-v1") as env:
        store = el.create(folder, env)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target_net = copy.deepcopy(net)
    optimiser = torch.optim.Adam(net.parameters(), settings.rate)
    for iteration, share in enumerate(np.linspace(*settings.exploration, settings.iterations)):
        envs = gymnasium.make_vec("CartPole-v1", num_envs=settings.environments, vectorization_mode="sync")
        # Episodes become visible as their recorder closes, which closes the environments too.
        with store.record(envs, run=f"iteration {iteration}", metadata={"exploration": share}) as recorder:
            observations, _ = recorder.reset(seed=settings.seed + 1000 * iteration)
            for _ in range(settings.steps):
                with torch.no_grad():
                    actions = net(torch.as_tensor(observations)).argmax(-1).numpy()
                drawn = random.random(len(actions)) < share
                actions = np.where(drawn, random.integers(0, 2, len(actions)), actions)
                observations, *_ = recorder.step(actions)
        for batch in batches(store.refresh(), settings, iteration):
            with torch.no_grad():
                best = target_net(batch["next_observation"]).max(-1).values
                target = batch["reward"] + settings.gamma * best * ~batch["terminated"]
            values = net(batch["observation"]).gather(1, batch["action"][:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(values, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                for old, new in zip(target_net.parameters(), net.parameters(), strict=True):
                    old.lerp_(new, settings.tracking)
    return store


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = main(sys.argv[1])
    print(found.sql("select name, avg(length) from episodes join runs using (run_id) group by name"))

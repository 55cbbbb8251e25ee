"""An offline Q-learner: double Q-learning on n-step transitions, with a conservative term.

Targets are `reward + discount * value of the observation n steps later`; the loader's `discount` accounts for
how an episode ended. Actions absent from the data have no target, so their values are arbitrary; the
conservative term (Kumar et al. 2020) lowers the values of all actions and raises that of the recorded one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

import episodelake as el

from .training import Descent, GreedyPolicy, Trained, Watch, batches, network


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of a Q-learner.

    Attributes:
        n_step: transitions that a target spans.
        gamma: the discount of a step.
        conservatism: the weight of the conservative term.
        tracking: the share of the network that goes into the target network at each update.
        reward_scale: rewards are multiplied by it, so that values are near 1.
    """

    n_step: int = 5
    gamma: float = 0.99
    conservatism: float = 0.2
    tracking: float = 0.005
    reward_scale: float = 0.05


def q_loss(net: nn.Module, target_net: nn.Module, batch: dict[str, Any], settings: Settings) -> torch.Tensor:
    """The loss of a batch of n-step transitions."""
    values = net(batch["observation"])
    taken = values.gather(1, batch["action"][:, None])[:, 0]
    with torch.no_grad():
        best = net(batch["next_observation"]).argmax(-1, keepdim=True)
        following = target_net(batch["next_observation"]).gather(1, best)[:, 0]
        target = settings.reward_scale * batch["reward"] + batch["discount"] * following
    conservative = (values.logsumexp(-1) - taken).mean()
    return smooth_l1_loss(taken, target) + settings.conservatism * conservative


def learn_values(
    store: el.EpisodeView,
    settings: Settings = Settings(),
    *,
    updates: int = 3000,
    watch_every: int = 150,
    seed: int = 0,
) -> Trained:
    """Learn action values from all episodes of a store and act greedily.

    Args:
        store: whose episodes.
        settings: of the learner.
        updates: gradient steps.
        watch_every: updates from one evaluation to the next.
        seed: of the order of batches, and of the network's weights.
    """
    torch.manual_seed(seed)
    normalize = el.Normalize.from_stats(store.stats(["observation"]), "observation")
    loader = store.loader(
        256,
        n_step=settings.n_step,
        gamma=settings.gamma,
        columns=["observation", "action", "reward", "next_observation", "discount"],
        shuffle=True,
        seed=seed,
        transforms=[normalize, el.Cast(["reward", "discount"], "float32")],
        output="torch",
    )
    net = network(4, 2)
    target_net = copy.deepcopy(net)
    # The target network averages the last few hundred networks and plays more evenly than the newest.
    policy = GreedyPolicy(target_net, normalize)
    descent, watch = Descent(net, 1e-3, updates), Watch(policy, watch_every)
    for batch in batches(loader, updates):
        loss = q_loss(net, target_net, batch, settings)
        descent.step(loss)
        with torch.no_grad():
            for old, new in zip(target_net.parameters(), net.parameters(), strict=True):
                old.lerp_(new, settings.tracking)
        watch.count(loss)
    return Trained(policy, tuple(watch.curve))

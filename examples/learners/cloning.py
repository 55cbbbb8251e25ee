"""Behaviour cloning: predict the action of good episodes."""

from __future__ import annotations

import polars as pl
import torch
from torch.nn.functional import cross_entropy

import episodelake as el

from .training import Descent, GreedyPolicy, Trained, Watch, batches, network


def good_episodes(store: el.EpisodeView, share: float) -> el.EpisodeView:
    """The episodes whose return is among the highest `share` of all."""
    returns = store.episodes.select("episode_return").collect()["episode_return"]
    return store.filter(pl.col("episode_return") >= returns.quantile(1 - share, "nearest"))


def clone(
    store: el.EpisodeView, *, updates: int = 500, share: float = 0.1, watch_every: int = 25, seed: int = 0
) -> Trained:
    """Learn to act like the best episodes of a store.

    Args:
        store: whose episodes.
        updates: gradient steps.
        share: of the episodes that are good enough, by their return.
        watch_every: updates from one evaluation to the next.
        seed: of the order of batches, and of the network's weights.
    """
    torch.manual_seed(seed)
    normalize = el.Normalize.from_stats(store.stats(["observation"]), "observation")
    loader = good_episodes(store, share).loader(
        256,
        columns=["observation", "action"],
        shuffle=True,
        seed=seed,
        transforms=[normalize],
        output="torch",
    )
    net = network(4, 2)
    policy = GreedyPolicy(net, normalize)
    descent, watch = Descent(net, 3e-4, updates), Watch(policy, watch_every)
    for batch in batches(loader, updates):
        loss = cross_entropy(net(batch["observation"]), batch["action"])
        descent.step(loss)
        watch.count(loss)
    return Trained(policy, tuple(watch.curve))

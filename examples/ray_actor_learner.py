"""Actors of Ray play CartPole and record; a learner follows the store and sends them new weights.

    python examples/ray_actor_learner.py                       # two actors, about a minute
    python examples/ray_actor_learner.py --actors 4 --rounds 100

The policy is logistic in the observation, and learns by clipped policy gradients in NumPy. No episode goes
through Ray: actors write into the store, and a following loader reads its newest episodes.
It needs the extra `ray`: pip install '.[ray]' 'gymnasium[classic-control]'.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

import episodelake as el

EPISODES = 5
BATCH = 1024
UPDATES = 8


class Policy:
    """Push right with the probability 1 / (1 + exp(-weights @ observation)); records its log-probability."""

    def __init__(self, seed: int) -> None:
        self.weights = np.zeros(4)
        self._generator = np.random.default_rng(seed)

    def __call__(self, observation: Any, info: Any, state: Any) -> tuple[int, dict[str, float]]:
        """Draw an action."""
        right = 1 / (1 + np.exp(-(self.weights @ observation)))
        action = int(self._generator.random() < right)
        return action, {"log_prob": float(np.log(right if action else 1 - right))}


@ray.remote
class Actor:
    """Plays with the weights that it was given last, and records."""

    def __init__(self, path: str, seed: int) -> None:
        self._store, self._policy = el.open(path), Policy(seed)
        self._env = self._store.record("CartPole-v1", run=f"actor-{seed}")

    def set_weights(self, weights: np.ndarray) -> None:
        """Play with these from the next episode on."""
        self._policy.weights = weights

    def play(self, episodes: int) -> float:
        """Record episodes, show them to the learner, and return their mean return."""
        stats = el.collect(self._env, self._policy, self._store, episodes=episodes)
        self._env.seal()
        return float(stats.return_mean)

    def close(self) -> None:
        """End the run."""
        self._env.close()


def updated(weights: np.ndarray, batch: Any, step: float = 0.1, clip: float = 0.2) -> np.ndarray:
    """Return the weights after a step along the clipped policy gradient.

    Args:
        weights: float64, shape (4,).
        batch: transitions with `return_to_go` and the log-probability that the actor recorded.
        step: its length for a gradient of length 1.
        clip: transitions whose probability has grown or fallen further than this no longer count.
    """
    observation = batch["observation"].astype(np.float64)
    features = np.concatenate([np.ones((len(observation), 1)), observation, observation**2], axis=1)
    target = batch["return_to_go"]
    advantage = target - features @ np.linalg.lstsq(features, target, rcond=None)[0]
    advantage /= advantage.std() + 1e-8
    right = 1 / (1 + np.exp(-(observation @ weights)))
    action = batch["action"]
    ratio = np.where(action == 1, right, 1 - right) / np.exp(batch["policy.log_prob"])
    counts = np.where(advantage > 0, ratio < 1 + clip, ratio > 1 - clip)
    gradient = ((counts * ratio * advantage * (action - right))[:, None] * observation).mean(axis=0)
    return weights + step * gradient / (np.linalg.norm(gradient) + 1e-8)


def learn(path: str | Path, actors: int = 2, rounds: int = 40, seed: int = 0) -> list[float]:
    """Let actors play and learn from what they recorded; return the mean return of each round.

    Whichever actor has played gets the newest weights and plays on, while the learner goes through batches.
    """
    store = el.create(path, "CartPole-v1")
    players = [Actor.remote(str(path), seed + index) for index in range(actors)]
    loader = store.loader(
        BATCH,
        columns=["observation", "action", "policy.log_prob", "return_to_go"],
        transforms=[el.ReturnToGo(gamma=0.98)],
        follow=el.Follow(refresh_seconds=0, newest_episodes=EPISODES * actors * 2),
        seed=seed,
    )
    weights, returns, batches = np.zeros(4), [], iter(loader)
    playing = {actor.play.remote(EPISODES): actor for actor in players}
    while len(returns) < rounds:
        (done,), _ = ray.wait(list(playing), num_returns=1)
        actor = playing.pop(done)
        returns.append(ray.get(done))
        for _ in range(UPDATES):
            weights = updated(weights, next(batches))
        actor.set_weights.remote(weights)
        playing[actor.play.remote(EPISODES)] = actor
        print(f"round {len(returns)}: mean return {returns[-1]:.1f}", flush=True)
    ray.get([actor.close.remote() for actor in players])
    return returns


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Learn CartPole with actors of Ray.")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument(
        "--rounds", type=int, default=40, help=f"of {EPISODES} episodes, by all actors together"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, help="where to create the store; a temporary folder by default")
    asked = parser.parse_args(words)
    ray.init(include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        returns = learn(asked.store or Path(folder) / "cartpole", asked.actors, asked.rounds, asked.seed)
    quarter = max(len(returns) // 4, 1)
    print(f"mean return {np.mean(returns[:quarter]):.1f} at first, {np.mean(returns[-quarter:]):.1f} at last")


if __name__ == "__main__":
    main()

"""A sequence model conditioned on a target return, after the Decision Transformer (Chen et al. 2021).

It reads the last steps of an episode as a sequence of tokens, three per step: the return to go, the
observation, the action. At each observation it predicts the next action. Windows are padded on the left, so
that the newest step is always last, as it is when the model plays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import episodelake as el

from .training import Descent, Trained, Watch, batches

#: Divides returns to go and step numbers, so that they are near 1.
RETURN_SCALE = 500.0


class Block(nn.Module):
    """One layer: attention over the earlier tokens, then a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.look_norm, self.think_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.gathered = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Tokens (b, k, width); `seen` (b, 1, k, k) is the attention mask."""
        b, k, width = tokens.shape
        split = self.look(self.look_norm(tokens)).view(b, k, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, attn_mask=seen)
        tokens = tokens + self.gathered(found.transpose(1, 2).reshape(b, k, width))
        return tokens + self.think(self.think_norm(tokens))


class SequenceModel(nn.Module):
    """Transformer from windows of steps to the action's logits at each step."""

    def __init__(
        self, observations: int, actions: int, window: int, width: int = 64, layers: int = 1
    ) -> None:
        super().__init__()
        self.window = window
        self.of_return, self.of_observation = nn.Linear(1, width), nn.Linear(observations, width)
        self.of_action = nn.Embedding(actions, width)
        self.of_time, self.of_place = nn.Linear(1, width), nn.Parameter(torch.zeros(3 * window, width))
        self.blocks = nn.ModuleList(Block(width, heads=4) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, actions))

    def forward(
        self,
        return_to_go: torch.Tensor,
        observation: torch.Tensor,
        action: torch.Tensor,
        t: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Logits (b, w, actions). All arguments are (b, w), the observation (b, w, d)."""
        time = self.of_time(t.float()[..., None] / RETURN_SCALE)
        returns = self.of_return(return_to_go[..., None] / RETURN_SCALE)
        parts = [returns + time, self.of_observation(observation) + time, self.of_action(action) + time]
        tokens = torch.stack(parts, 2).flatten(1, 2) + self.of_place
        seen = self._seen(mask)
        for block in self.blocks:
            tokens = block(tokens, seen)
        return self.head(tokens[:, 1::3])

    def _seen(self, mask: torch.Tensor) -> torch.Tensor:
        """Mask the future and padding; padding attends to itself, so that no row is empty."""
        count = 3 * self.window
        ones = torch.ones(count, count, dtype=torch.bool)
        real = mask.repeat_interleave(3, 1)[:, None, None, :]
        return (ones.tril() & real) | torch.eye(count, dtype=torch.bool)


class SequencePolicy:
    """Policy of a sequence model: keeps the last steps and the rest of the target return.

    Args:
        model: trained or not.
        normalize: the transform that normalized the batches.
        target: the return to reach.
    """

    def __init__(self, model: SequenceModel, normalize: el.Normalize, target: float) -> None:
        self.model, self.normalize, self.target = model, normalize, target

    def begin(self, episodes: int) -> None:
        """See `Policy`."""
        w = self.model.window
        self._missing = torch.full((episodes,), float(self.target))
        self._returns, self._observations = torch.zeros(episodes, w), torch.zeros(episodes, w, 4)
        self._actions, self._times = torch.zeros(episodes, w, dtype=torch.int64), torch.zeros(episodes, w)
        self._mask, self._t = torch.zeros(episodes, w, dtype=torch.bool), 0

    def act(self, observation: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        """See `Policy`."""
        self._missing = self._missing - reward
        normalized = torch.from_numpy(self.normalize({"observation": observation.numpy()})["observation"])
        for memory, newest in (
            (self._returns, self._missing),
            (self._observations, normalized),
            (self._actions, torch.zeros(len(reward), dtype=torch.int64)),
            (self._times, torch.full_like(reward, self._t)),
            (self._mask, torch.ones_like(reward, dtype=torch.bool)),
        ):
            memory[:, :-1] = memory[:, 1:].clone()
            memory[:, -1] = newest
        logits = self.model(self._returns, self._observations, self._actions, self._times, self._mask)
        action = logits[:, -1].argmax(-1)
        self._actions[:, -1] = action
        self._t += 1
        return action


@dataclass(frozen=True)
class SequenceSettings:
    """Hyperparameters of a sequence model.

    Attributes:
        window: steps that it sees.
        target: the return that it is asked for when it plays.
        batch_size: windows of a batch.
    """

    window: int = 8
    target: float = 500.0
    batch_size: int = 64


def learn_sequences(
    store: el.EpisodeView,
    settings: SequenceSettings = SequenceSettings(),
    *,
    updates: int = 600,
    watch_every: int = 40,
    seed: int = 0,
) -> Trained:
    """Learn from all episodes to predict the next action, given the return to go.

    Args:
        store: whose episodes.
        settings: of the learner.
        updates: gradient steps.
        watch_every: updates from one evaluation to the next.
        seed: of the order of batches, and of the model's weights.
    """
    torch.manual_seed(seed)
    normalize = el.Normalize.from_stats(store.stats(["observation"]), "observation")
    loader = store.loader(
        settings.batch_size,
        el.Windows(settings.window, pad="left"),
        columns=["observation", "action", "t", "mask"],
        shuffle=True,
        seed=seed,
        transforms=[el.ReturnToGo(), normalize, el.Cast("return_to_go", "float32")],
        output="torch",
    )
    model = SequenceModel(4, 2, settings.window)
    policy = SequencePolicy(model, normalize, settings.target)
    descent, watch = Descent(model, 1e-3, updates), Watch(policy, watch_every)
    for batch in batches(loader, updates):
        real, action = batch["mask"], batch["action"]
        logits = model(batch["return_to_go"], batch["observation"], action, batch["t"], real)
        loss = cross_entropy(logits[real], action[real])
        descent.step(loss)
        watch.count(loss)
    return Trained(policy, tuple(watch.curve))

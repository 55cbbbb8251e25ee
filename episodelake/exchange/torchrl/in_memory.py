"""Transitions of a view as a TensorDict, or as a replay buffer of TorchRL.

They have the layout of its collectors, TED
(https://docs.pytorch.org/rl/stable/reference/data.html, "TorchRL Episode Data Format"): the outcome of step t
under "next" in row t, and the flags at the root false, since no episode ends before a transition of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import EpisodeView, Output
from ...plugin import require
from ...readers.exporting.conversions import Converted, FlatTransitions, flat_transitions


def to_torchrl(view: EpisodeView, target: str, *, buffer: bool) -> Converted:
    """Return a TensorDict, or a full `TensorDictReplayBuffer` in main memory."""
    purpose = "view.to.torchrl()"
    require("tensordict", purpose)
    data = require("torchrl.data", purpose, "torchrl") if buffer else None
    flat, export = flat_transitions(view, target)
    transitions = _tensordict(flat)
    if data is None:
        return transitions, export.losses
    made = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(len(flat)))
    made.extend(transitions)
    return made, export.losses


def _tensordict(flat: FlatTransitions) -> Any:
    """Return a TensorDict of batch size (N,); its arrays are those of the transitions."""
    import torch

    rewards = flat.reward.astype(np.float32)
    never = np.zeros((len(flat), 1), bool)
    batch = {
        "observation": flat.observation,
        "action": flat.action,
        "done": never,
        "terminated": never.copy(),
        "next": {
            "observation": flat.next_observation,
            "reward": rewards if rewards.ndim > 1 else rewards[:, None],
            "done": flat.done[:, None],
            "terminated": flat.terminated[:, None],
            "truncated": flat.truncated[:, None],
        },
        "truncated": never.copy(),
        "collector": {"traj_ids": flat.episode},
    }
    tensors: Any = Output("tensordict").converter()(batch)
    for key in tensors.keys(include_nested=True, leaves_only=False):
        # Parts of Dict spaces have the batch size too.
        if not torch.is_tensor(tensors.get(key)):
            tensors.get(key).batch_size = [len(flat)]
    return tensors

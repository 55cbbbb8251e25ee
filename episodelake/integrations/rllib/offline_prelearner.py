"""Train batches from episodes of a store: RLlib's learner connectors run over whole episodes."""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tree
from ray.rllib.offline.offline_prelearner import OfflinePreLearner
from ray.rllib.utils import flatten_dict

from ...readers.view import EpisodeView
from ...store.errors import InvalidArgumentError
from .offline_episodes import STATE_OUT, EpisodeOptions, n_step_transitions, to_rllib


class StorePreLearner(OfflinePreLearner):
    """Reads the episodes that `StoreOfflineData` names and makes train batches of them, in Ray Data workers.

    Override `episodes` to change them before the learner connectors see them, and pass the subclass as
    `prelearner_class`.
    """

    def __init__(self, *, config: Any, **others: Any) -> None:
        super().__init__(config=config, **others)
        self._rng = np.random.default_rng(config.seed)

    def __call__(
        self, batch: Mapping[str, Any], *, views: Sequence[EpisodeView], options: EpisodeOptions
    ) -> dict[str, Any]:
        """Map groups of episodes to rows of a train batch, in random order.

        Args:
            batch: rows of the plan of `StoreOfflineData`: columns `store`, `episodes`, `starts` and `stops`.
            views: the episodes of each store.
            options: how they become RLlib's.

        Returns:
            Flat columns of tensors, `<module>/<column>`. Modules that are not trained are left out; of those
            with fewer rows than others, rows come several times, since Ray Data needs as many of each.

        Raises:
            InvalidArgumentError: `policies_to_train` leaves no module.
        """
        episodes = [
            episode
            for group in range(len(batch["store"]))
            for episode in self._read(batch, group, views, options)
        ]
        columns = self._learner_connector(
            rl_module=self._module, batch={}, episodes=self.episodes(episodes), shared_data={}, metrics=None
        )
        trained = {
            module: values
            for module, values in columns.items()
            if self._should_module_be_updated(module, columns)
        }
        if not trained:
            raise InvalidArgumentError(
                f"`policies_to_train` contains none of the modules of these episodes: {sorted(columns)}."
            )
        return flatten_dict(self._shuffled(trained))

    def episodes(self, episodes: list[Any]) -> list[Any]:
        """Return the episodes that the learner connectors get: SingleAgentEpisodes or MultiAgentEpisodes.

        Here: recorded states of stateful modules are dropped unless `prelearner_use_recorded_module_states`
        is set, and with an `n_step` other than 1 every transition becomes an episode of one step.
        """
        singles = [
            single
            for episode in episodes
            for single in getattr(episode, "agent_episodes", {0: episode}).values()
        ]
        if not self.config.prelearner_use_recorded_module_states:
            for episode in singles:
                episode.extra_model_outputs.pop(STATE_OUT, None)
        n_step = self.config.get("n_step")
        if n_step in (None, 1) or self._module.is_stateful() or self.config.is_multi_agent:
            return episodes
        steps = partial(self._rng.integers, *n_step) if isinstance(n_step, tuple) else lambda: n_step
        return [
            part for episode in episodes for part in n_step_transitions(episode, steps, self.config.gamma)
        ]

    def _read(
        self, batch: Mapping[str, Any], group: int, views: Sequence[EpisodeView], options: EpisodeOptions
    ) -> Iterator[Any]:
        view = views[int(batch["store"][group])]
        spans: dict[int, list[tuple[int, int]]] = {}
        columns = (np.asarray(batch[name][group]).tolist() for name in ("episodes", "starts", "stops"))
        for place, start, stop in zip(*columns, strict=True):
            spans.setdefault(place, []).append((start, stop))
        # In the order of the store each row group is decoded once.
        places = np.array(sorted(spans), np.int64)
        for place, episode in zip(places.tolist(), view[places], strict=True):
            for start, stop in spans[place]:
                yield to_rllib(episode, start, stop, options)

    def _shuffled(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        sizes = {module: len(tree.flatten(columns)[0]) for module, columns in batch.items()}
        count = max(sizes.values())
        found = {}
        for module, columns in batch.items():
            rounds = range(-(-count // sizes[module]))
            order = np.concatenate([self._rng.permutation(sizes[module]) for _ in rounds])[:count]
            found[module] = tree.map_structure(lambda column, order=order: column[order], columns)
        return found

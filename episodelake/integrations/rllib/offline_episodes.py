"""RLlib episodes from those of a store, and train batches from these: learner connectors run over episodes.

Episodes are whole or in chunks, of one or several agents; transitions have n steps.
"""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import tree
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.offline.offline_prelearner import OfflinePreLearner
from ray.rllib.utils import flatten_dict
from ray.rllib.utils.spaces.space_utils import get_base_struct_from_space

from ... import AgentEpisode, Episode, EpisodeView
from ... import MultiAgentEpisode as TeamEpisode
from ...errors import InvalidArgumentError
from ...plugin import StepSchema

#: RLlib's recorded state of a module after each step.
STATE_OUT = Columns.STATE_OUT
REWARDS = Columns.REWARDS
#: RLlib's columns that may have another source than the store's.
REPLACEABLE = (Columns.ACTIONS, REWARDS)
#: Those that are no output of a module: an output of such a name would change what learners do.
RESERVED = frozenset(
    {
        *REPLACEABLE,
        *(Columns.OBS, Columns.NEXT_OBS, Columns.INFOS, Columns.TERMINATEDS, Columns.TRUNCATEDS),
        *(Columns.T, Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID),
        *(Columns.SEQ_LENS, Columns.STATE_IN, Columns.NEXT_STATE_IN, Columns.LOSS_MASK),
        *("n_step", "weights"),
    }
)
#: The columns of a store that RLlib's have anyway.
OWN_COLUMNS = {
    Columns.OBS: "observation",
    Columns.ACTIONS: "action",
    REWARDS: "reward",
    Columns.TERMINATEDS: "terminated",
    Columns.TRUNCATEDS: "truncated",
    Columns.EPS_ID: "episode_id",
    Columns.T: "t",
}


@dataclass(frozen=True)
class StepSource:
    """A column of steps whose values RLlib gets by a name of its own.

    Attributes:
        key: the key of an output of the policy, or the name of an annotation.
        annotation: whether it is an annotation.
    """

    key: str
    annotation: bool = False

    def __str__(self) -> str:
        return f"the annotation {self.key!r}" if self.annotation else f"{self.key!r} of the policy"

    def values(self, episode: Episode) -> Any:
        """Return the values of all transitions, stacked.

        Raises:
            InvalidArgumentError: a transition has no number, or an array of another shape.
        """
        columns = episode.step_annotations if self.annotation else episode.policy
        values = columns.get(self.key)
        if not is_numeric(values):
            raise InvalidArgumentError(
                f"Episode {episode.id!r} lacks a number, or an array of one shape, at some step of {self}; "
                f"it has {sorted(map(str, columns))}. Choose outputs that all episodes have with "
                "`input_read_method_kwargs={'extra_model_outputs': [...]}`, or filter."
            )
        return tree.map_structure(lambda a: a[: episode.length], values)


def check_rewards(episode: Episode, source: StepSource) -> np.ndarray:
    """Return the rewards of an episode from another source, float64 unless they are floats already.

    Raises:
        InvalidArgumentError: they are not one number for each transition.
    """
    values = source.values(episode)
    if not isinstance(values, np.ndarray) or values.shape != (episode.length,):
        raise InvalidArgumentError(
            f"Episode {episode.id!r} has no single number at each step of {source}; expected one, as a "
            "reward."
        )
    return values if values.dtype.kind == "f" else values.astype(np.float64)


@dataclass(frozen=True)
class EpisodeOptions:
    """How episodes of a store become RLlib's.

    Attributes:
        sources: the columns to hand on, by the names that RLlib gives them: outputs of the policy, and what
            replaces actions and rewards.
        infos: whether infos are read, too.
        lookback: how many steps before the first one of a chunk come with it.
        normalize: whether actions of Box spaces are mapped from their bounds to -1 and 1, as RLlib's modules
            give them.
        mapping: which module an agent belongs to, `mapping(agent, episode)`.
    """

    sources: Mapping[str, StepSource]
    infos: bool = False
    lookback: int = 0
    normalize: bool = False
    mapping: Callable[..., str] | None = None


def to_rllib(episode: Episode, start: int, stop: int, options: EpisodeOptions) -> Any:
    """Return transitions `start` to `stop` of an episode as a SingleAgentEpisode, or a team's whole episode
    as a MultiAgentEpisode. Arrays are copied only where actions are normalized.

    Raises:
        InvalidArgumentError: a column that `options` names has no value at some step.
    """
    if isinstance(episode, TeamEpisode):
        return _team(episode, options)
    return _single(episode, start, stop, options, id_=episode.id)


def _single(
    episode: Episode, start: int, stop: int, options: EpisodeOptions, **names: Any
) -> SingleAgentEpisode:
    first = max(0, start - options.lookback)
    schema = episode.agent_schema if isinstance(episode, AgentEpisode) else episode.schema
    ended = stop == episode.length

    def buffer(values: Any, end: int) -> InfiniteLookbackBuffer:
        cut = (
            values[first:end]
            if isinstance(values, list)
            else tree.map_structure(lambda a: a[first:end], values)
        )
        lookback = InfiniteLookbackBuffer(cut)
        lookback.lookback = start - first
        return lookback

    sources = dict(options.sources)
    # What the module sampled, before it was clipped or mapped to the bounds of the space.
    sampled, shaped = (sources.pop(name, None) for name in REPLACEABLE)
    actions = _actions(episode, schema, options) if sampled is None else sampled.values(episode)
    rewards = episode.rewards if shaped is None else check_rewards(episode, shaped)
    infos = episode.infos if options.infos else [{}] * (episode.length + 1)
    return SingleAgentEpisode(
        observations=buffer(episode.observations, stop + 1),
        observation_space=schema.observation_space,
        infos=buffer(infos, stop + 1),
        actions=buffer(actions, stop),
        action_space=schema.action_space,
        rewards=buffer(rewards, stop),
        terminated=ended and episode.terminated,
        truncated=ended and episode.truncated and not episode.terminated,
        extra_model_outputs={name: buffer(source.values(episode), stop) for name, source in sources.items()},
        t_started=start,
        len_lookback_buffer=0,
        **names,
    )


def _actions(episode: Episode, schema: StepSchema, options: EpisodeOptions) -> Any:
    if not options.normalize:
        return episode.actions
    return tree.map_structure(_normalized, episode.actions, get_base_struct_from_space(schema.action_space))


def _normalized(actions: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    """Map bounded floats to [-1, 1], as RLlib's `unsquash_action` expects them."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype.kind != "f" or not space.is_bounded():
        return actions
    width = space.high - space.low
    return ((actions - space.low) * 2.0 / np.where(width > 0, width, 1) - 1.0).astype(space.dtype)


def is_numeric(values: Any) -> bool:
    """Return whether values can become tensors: an array of numbers, or a dict or tuple of such."""
    leaves = [] if values is None or isinstance(values, list) else tree.flatten(values)
    return bool(leaves) and all(isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" for leaf in leaves)


def _team(episode: TeamEpisode, options: EpisodeOptions) -> MultiAgentEpisode:
    """Return the episode of a team. An agent that left before it acted has no transition and is left out."""
    team = MultiAgentEpisode(
        episode.id,
        agent_to_module_mapping_fn=options.mapping,
        terminateds={"__all__": episode.terminated},
        truncateds={"__all__": episode.truncated and not episode.terminated},
        len_lookback_buffer=0,
    )
    team.env_t = episode.length
    for name in episode.agents:
        agent = episode.agent(name)
        if not agent.length:
            continue
        team.agent_episodes[name] = _single(
            agent,
            0,
            agent.length,
            options,
            id_=f"{episode.id}/{name}",
            agent_id=name,
            module_id=team.module_for(name),
            multi_agent_episode_id=episode.id,
        )
        moments: list[int | str] = [team.SKIP_ENV_TS_TAG] * (episode.length + 1)
        for place, moment in enumerate(agent.env_steps.tolist()):
            moments[moment] = place
        team.env_t_to_agent_t[name] = InfiniteLookbackBuffer(moments)
    return team


def n_step_transitions(
    episode: SingleAgentEpisode, steps: Callable[[], int], gamma: float
) -> Iterator[SingleAgentEpisode]:
    """Yield each transition over several steps, as RLlib's replay buffer makes them: an episode of one step.

    Its reward is the discounted sum of the rewards in between, its second observation the one after them. At
    the end of the episode fewer steps are left; the output `n_step` has the true number.

    Args:
        episode: a whole episode or a chunk.
        steps: gives the number of steps, for each transition anew.
        gamma: discount of a step.
    """
    rewards = episode.get_rewards()
    for t in range(len(episode)):
        stop = min(t + steps(), len(episode))
        count = stop - t
        ended = stop == len(episode)
        outputs = {
            key: InfiniteLookbackBuffer(episode.get_extra_model_outputs(key, slice(t, t + 1)))
            for key in episode.extra_model_outputs
        }
        yield SingleAgentEpisode(
            f"{episode.id_}/{t + episode.t_started}",
            observations=[episode.get_observations(t), episode.get_observations(stop)],
            observation_space=episode.observation_space,
            infos=[episode.get_infos(t), episode.get_infos(stop)],
            actions=[episode.get_actions(t)],
            action_space=episode.action_space,
            rewards=[float(rewards[t:stop] @ gamma ** np.arange(count))],
            terminated=ended and episode.is_terminated,
            truncated=ended and episode.is_truncated,
            extra_model_outputs=outputs | {"n_step": InfiniteLookbackBuffer(np.array([count]))},
            t_started=t + episode.t_started,
            len_lookback_buffer=0,
        ).to_numpy()


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
        shuffled = {}
        for module, columns in batch.items():
            rounds = range(-(-count // sizes[module]))
            order = np.concatenate([self._rng.permutation(sizes[module]) for _ in rounds])[:count]
            shuffled[module] = tree.map_structure(lambda column, order=order: column[order], columns)
        return shuffled

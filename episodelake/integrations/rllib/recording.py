"""`StoreRecorder`: an RLlib callback that records what RLlib's `EnvRunner`s sample.

    config.callbacks(StoreRecorder("data/cartpole", run="ppo"))

It puts a recorder around the environments of each `EnvRunner`, because `env.step` happens once for each
transition. RLlib's own episodes come in chunks, which repeat rows, and some are dropped. They may hold
observations that connectors changed and actions that the environment did not get.

    module -> connectors -> ModuleOutputs -> recorder -> env
                                |                |
                              policy.*      transitions
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from typing import Any, Protocol, Unpack

import numpy as np
from gymnasium.vector import VectorWrapper
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.vector.vector_multi_agent_env import VectorMultiAgentEnv
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.spaces.space_utils import batch as stacked

from ... import EpisodeStore, create
from ... import open as open_store
from ...errors import InvalidArgumentError, StoreExistsError, StoreNotFoundError
from ...plugin import InfoChoice, Layout, expect
from ...types import SessionKeywords, SessionOptions, VectorRecorder
from .recording_agents import (
    SAMPLED_ACTION,
    AgentsRecording,
    ModuleOutputs,
    Outputs,
    agent_spaces,
    as_mappings,
    is_rescaled,
    recorded_columns,
)

#: The metadata of an episode with its id in RLlib.
RLLIB_EPISODE = "rllib_episode"


class StoreRecorder:
    """Records every transition that an algorithm's `EnvRunner`s sample, each once, with infos.

    Give it to `config.callbacks`, alone or in a list. Each process that steps environments writes a run of
    its own; the first creates the store, with the spaces of the environment. A run ends when RLlib closes its
    environments, as `Algorithm.stop` does. If a process is killed before, its rows are recovered by the next
    run on the store, such as that of the restarted process, or by `episodelake.recover`; its unfinished
    episodes end as `interrupted`.

    Observations, rewards, flags and infos are those of the environment, and actions are those that it got.
    The other outputs of the module are `policy` values under RLlib's names, such as `action_logp`,
    `action_dist_inputs`, `state_out` and `weights_seq_no`. For Box actions, which RLlib clips or rescales,
    `sampled_action` is the action before. Episodes that RLlib leaves unfinished end as `cut`. Their metadata
    `rllib_episode` is their id in RLlib; the metadata of runs say `worker_index` and `evaluation`.

    Args:
        path: the store, created if it does not exist. All processes must reach it.
        run: a readable name for the runs.
        metadata: what to keep with the runs.
        policy: the outputs of the module to record, such as `("action_logp",)`; None for all.
        record_infos: whether to store infos, or the keys to store; see `EpisodeStore.record`.
        evaluation: whether to record the episodes of evaluation workers too.
        storage_options: how to reach an object store.
        options: see `SessionOptions`: `seal_seconds`, `durability`, `cast` and the others.

    Raises:
        InvalidArgumentError: an argument has no such value.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: Collection[str] | None = None,
        record_infos: bool | Collection[str] = True,
        evaluation: bool = False,
        storage_options: Mapping[str, str] | None = None,
        **options: Unpack[SessionKeywords],
    ) -> None:
        valid = not isinstance(policy, str) and isinstance(policy, Collection | None)
        expected = "the outputs to record, such as ('action_logp',), or None for all of them"
        expect(valid, "policy", policy, expected)
        SessionOptions.of(options)
        InfoChoice.of(record_infos)
        # Workers have working folders of their own.
        self.path = str(Layout.at(path, storage_options).root)
        self.run = run
        self.metadata = dict(metadata or {})
        self.policy = policy
        self.record_infos: bool | Collection[str] = record_infos
        self.evaluation = evaluation
        self.storage_options = storage_options
        self.options = options

    def __call__(self) -> RLlibCallback:
        """Return a callback for one process; RLlib calls this in each."""
        return _Callback(self)

    def store(self, **spaces: Any) -> EpisodeStore:
        """Open the store, or create it if it does not exist; safe in several processes.

        Args:
            spaces: those of a new store, as `episodelake.create` takes them.
        """
        try:
            return self._opened()
        except StoreNotFoundError:
            try:
                return create(self.path, storage_options=self.storage_options, **spaces)
            except StoreExistsError:
                return self._opened()

    def _opened(self) -> EpisodeStore:
        return open_store(self.path, storage_options=self.storage_options)


class Recording(Protocol):
    """The recorded environments of one `EnvRunner`."""

    def log(self, outputs: Outputs, weights_seq_no: int | None) -> None:
        """Keep outputs of the module beside the actions that go to the next step."""
        ...


class _Callback(RLlibCallback):
    """Records the environments of one `EnvRunner`; in other processes it does nothing."""

    def __init__(self, recorder: StoreRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._outputs = ModuleOutputs(receive=self._log)
        self._env_runner: Any = None
        self._envs: Any = None
        self._recording: Recording | None = None
        #: RLlib's ids of the running episodes, by index of the environment.
        self._ids: dict[int, str] = {}

    def on_environment_created(self, *, env_runner: Any = None, **_: Any) -> None:
        """Record the environments that replace some that failed."""
        # The first ones come before the rest of their EnvRunner.
        if self._recording is not None:
            self._record(env_runner)

    def on_episode_created(self, *, env_runner: Any = None, **_: Any) -> None:
        """Record the environments from their first reset on, which is about to come."""
        if self._recorder.evaluation or not env_runner.config.in_evaluation:
            self._record(env_runner)

    def on_episode_start(self, *, episode: Any, env_index: int, **_: Any) -> None:
        """Remember RLlib's id of an episode, until after its end has been recorded."""
        self._ids[env_index] = episode.id_

    def _record(self, env_runner: Any) -> None:
        if env_runner.env is self._envs:
            return
        pipeline = env_runner._module_to_env
        if not any(connector is self._outputs for connector in pipeline.connectors):
            pipeline.append(self._outputs)
        envs = env_runner.env
        arguments: dict[str, Any] = {
            "run": self._recorder.run,
            "metadata": _run_metadata(env_runner) | self._recorder.metadata,
            "record_infos": self._recorder.record_infos,
        }
        if isinstance(envs, VectorMultiAgentEnv):
            store = self._recorder.store(agents=agent_spaces(envs))
            self._recording = AgentsRecording(envs, store, self._facts, arguments, self._recorder.options)
        elif isinstance(envs, VectorWrapper):
            store = self._recorder.store(env=envs.env)
            self._recording = _VectorRecording(
                store.record(
                    envs.env,
                    episode_callback=lambda episode: self._facts(episode.env_index),
                    **arguments,
                    **self._recorder.options,
                )
            )
            # Below RLlib's own wrapper, which takes infos apart.
            envs.env = self._recording.envs
        else:
            raise InvalidArgumentError(
                f"{type(env_runner).__name__} has an environment of type {type(envs).__name__}, which "
                "StoreRecorder cannot record; expected that of a SingleAgentEnvRunner or MultiAgentEnvRunner."
            )
        self._env_runner, self._envs = env_runner, envs

    def _facts(self, env_index: int) -> dict[str, Any]:
        """Return the metadata of the episode that ends."""
        return {RLLIB_EPISODE: self._ids[env_index]} if env_index in self._ids else {}

    def _log(self, batch: Outputs) -> None:
        if self._recording is not None:
            chosen = self._recorder.policy
            wanted = chosen is None or WEIGHTS_SEQ_NO in chosen
            weights = getattr(self._env_runner, "_weights_seq_no", None) if wanted else None
            self._recording.log(recorded_columns(batch, chosen), weights)


class _VectorRecording:
    """The environments of a `SingleAgentEnvRunner`."""

    def __init__(self, envs: VectorRecorder) -> None:
        self.envs = envs
        self._rescaled = is_rescaled(envs.single_action_space)

    def log(self, outputs: Outputs, weights_seq_no: int | None) -> None:
        """See `Recording.log`; the environments about to be reset drop their actions."""
        if not self._rescaled:
            outputs.pop(SAMPLED_ACTION, None)
        values = {
            name: as_mappings(stacked(list(column)) if isinstance(column, list) else column)
            for name, column in outputs.items()
        }
        if weights_seq_no is not None:
            values[WEIGHTS_SEQ_NO] = np.full(self.envs.num_envs, weights_seq_no)
        self.envs.log(mask=~self.envs.resetting, **values)


def _run_metadata(env_runner: Any) -> dict[str, Any]:
    metadata = {
        "worker_index": env_runner.worker_index,
        "evaluation": bool(env_runner.config.in_evaluation),
        "trial": getattr(env_runner, "tune_trial_id", None),
    }
    return {name: value for name, value in metadata.items() if value is not None}

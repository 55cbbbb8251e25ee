"""Step and episode callbacks: arguments and return values.

Both are plain callables. A step callback sees every `reset` and every `step` of a recorder before it is
recorded; an episode callback sees every finished episode. The values of an episode are decoded from its rows
when the callback asks for them: the rows are still in the row buffer where the episode is short, else in the
journal, which the session reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ...store.common.arguments import as_flag
from ...store.dynamic.column_groups import INFO, merge_rows
from ...store.errors import InvalidArgumentError, RecorderStateError, SpaceMismatchError
from ...store.journal.episodes import AgentRecord, EndReason
from ...store.schema import JOURNAL_AGENT, JOURNAL_KIND, LATE_ROW, STEP_ROW, StepSchema
from ...store.spaces import SpaceCodec

#: Returns journal batches with the rows of one episode in order, with columns of infos if asked.
ReadRows = Callable[[bool], Sequence[pa.RecordBatch]]


class EpisodeValues:
    """Values of one episode, while its callback runs.

    Args:
        schema: the store's.
        read: gives its rows.
        rows: how many there must be, those of values logged last left out.
        agents: of a multi-agent episode, in the order in which they appeared.
    """

    def __init__(
        self, schema: StepSchema, read: ReadRows, rows: int, agents: Sequence[AgentRecord] = ()
    ) -> None:
        self._schema, self._rows, self._agents = schema, rows, agents
        self._read: ReadRows | None = read

    def close(self) -> None:
        """Read nothing more: the rows are about to leave the buffer and the journal."""
        self._read = None

    def __getstate__(self) -> dict[str, Any]:
        """Keep nothing: the rows stay in this process."""
        return {"_read": None}

    def get(self, name: str) -> Any:
        """Return an attribute of `LaneValues`; of a multi-agent episode by agent.

        Raises:
            RecorderStateError: the callback has returned, and the rows were not read before.
            StoreAccessError: the journal cannot be written or read.
        """
        lanes = self._lanes_with_infos if name == "infos" else self._lanes
        if not self._schema.groups:
            return getattr(lanes[0], name)
        return {agent.agent_id: getattr(lane, name) for agent, lane in zip(self._agents, lanes, strict=True)}

    @cached_property
    def _lanes(self) -> list[LaneValues]:
        return self._found(infos=False)

    @cached_property
    def _lanes_with_infos(self) -> list[LaneValues]:
        return self._found(infos=True)

    def _found(self, *, infos: bool) -> list[LaneValues]:
        if self._read is None:
            raise RecorderStateError(
                "The values of an episode can be read while its episode callback runs. Read them there, or "
                "from the store once the episode is sealed."
            )
        batches = [_chosen(batch, JOURNAL_KIND, lambda kind: kind != LATE_ROW) for batch in self._read(infos)]
        if sum(batch.num_rows for batch in batches) != self._rows:
            raise RecorderStateError(
                "The episode was recovered by another process meanwhile: read the store."
            )
        if not self._schema.groups:
            return [LaneValues(self._schema, batches)]
        return [
            LaneValues(
                self._schema.parts[agent.group],
                [_chosen(batch, JOURNAL_AGENT, lambda own, index=index: own == index) for batch in batches],
            )
            for index, agent in enumerate(self._agents)
        ]


class LaneValues:
    """The values of a single agent.

    Args:
        schema: the agent's own.
        batches: its rows, T+1 in all.
    """

    def __init__(self, schema: StepSchema, batches: Sequence[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, batches
        self._steps = [_chosen(batch, JOURNAL_KIND, lambda kind: kind == STEP_ROW) for batch in batches]

    @cached_property
    def observations(self) -> Any:
        """T+1 observations, stacked."""
        return _decoded(self._schema.observation, self._batches)

    @cached_property
    def actions(self) -> Any:
        """T actions, stacked."""
        return _decoded(self._schema.action, self._steps)

    @cached_property
    def rewards(self) -> np.ndarray:
        """T rewards."""
        return _decoded(self._schema.reward, self._steps)

    @cached_property
    def infos(self) -> list[dict[Any, Any]]:
        """T+1 infos."""
        return [info for batch in self._batches for info in merge_rows(INFO, pa.Table.from_batches([batch]))]


def _chosen(
    batch: pa.RecordBatch, column: pa.Field, wanted: Callable[[np.ndarray], np.ndarray]
) -> pa.RecordBatch:
    """Return some rows of a batch, which share no memory with it."""
    return batch.filter(pa.array(wanted(batch.column(column.name).to_numpy())))


def _decoded(codec: SpaceCodec, batches: Sequence[pa.RecordBatch]) -> Any:
    schema = pa.schema(codec.fields)
    columns = [batch.select(schema.names) for batch in batches]
    return codec.decode(pa.Table.from_batches(columns, schema).combine_chunks().columns)


#: Why a step is refused after a callback has set a flag of its own.
ENDED_EARLY = (
    "The step callback set terminated or truncated, which ended the episode, but the environment goes on. "
    "With end=True as well, its steps up to the next reset are left unrecorded."
)
#: Why a step is refused after an exception.
INTERRUPTED = "An exception interrupted the last step or reset, and the environment may have moved."


@dataclass(frozen=True)
class StepData:
    """One `reset` or one `step`, as it is about to be recorded.

    The values are the environment's own objects: change what is recorded with `dataclasses.replace`, not in
    place, or the caller of the environment sees the change too.

    Attributes:
        t: index of the observation within the episode; 0 for a reset.
        observation: the observation that came back.
        action, reward, terminated, truncated: of the transition that led here; None for a reset.
        info: the info that came with the observation.
        policy: what was logged for the action.
        extra: the user's own columns, on the row of the observation.
        end: True ends the episode here and leaves the steps up to the next reset unrecorded. "continue" ends
            it and begins the next one with this observation, info and extra, without a reset; at a reset it
            changes nothing, and where the environment has ended the episode itself it equals True. If a
            callback sets `terminated` or `truncated` alone, the episode ends too, and the next step without a
            reset raises `RecorderStateError`.
        agent: whose step it is, in a multi-agent episode; `t` counts that agent's observations.
        env_index: which sub-environment; 0 for a single one.
        env: the environment that the recorder wraps, so that a callback can read the simulator's state; of a
            `SyncVectorEnv` the sub-environment. None where it is in another process (`AsyncVectorEnv`) or not
            in Python (pools). It has taken the step; where episodes restart within the step (SAME_STEP), it
            has been reset already when the last transition of an episode is shown.
    """

    t: int
    observation: Any
    action: Any = None
    reward: Any = None
    terminated: bool | None = None
    truncated: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    end: bool | Literal["continue"] = False
    agent: str | None = None
    env_index: int = 0
    env: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class EpisodeSummary:
    """A finished episode, as an episode callback sees it.

    Attributes:
        id, number: of the episode.
        length: transitions T.
        episode_return: sum of rewards (a list for vector rewards).
        terminated, truncated: the flags of the last transition.
        end_reason: "terminated", "truncated" or "cut".
        seed: of the reset, if known.
        options: of the reset, if any.
        metadata: the episode's metadata so far.
        agent_lengths, agent_returns: of a multi-agent episode, transitions and sum of rewards by agent.
        env_index: which sub-environment; 0 for a single one.
        values: what the properties read.

    An episode callback can also read the properties `observations`, `actions`, `rewards` and `infos`, and
    the statistics of the rewards. Nothing of them is read before it is asked for, and nothing after the
    callback has returned (`RecorderStateError`). Of a multi-agent episode they are mappings by agent, and the
    statistics are those of all its agents' rewards.
    """

    id: str
    number: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool
    end_reason: EndReason
    seed: int | None
    options: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    agent_lengths: Mapping[str, int] = field(default_factory=dict)
    agent_returns: Mapping[str, float | list[float]] = field(default_factory=dict)
    env_index: int = 0
    values: EpisodeValues | None = field(default=None, repr=False, compare=False)

    @property
    def observations(self) -> Any:
        """T+1 observations, stacked like `Episode.observations`."""
        return self._value("observations")

    @property
    def actions(self) -> Any:
        """T actions, stacked."""
        return self._value("actions")

    @property
    def rewards(self) -> Any:
        """T rewards, float64, shape (T,) or (T, k)."""
        return self._value("rewards")

    @property
    def infos(self) -> Any:
        """T+1 infos as they are recorded."""
        return self._value("infos")

    @property
    def reward_mean(self) -> Any:
        """Mean of the rewards; of vector rewards an array, like the next three."""
        return self._all_rewards.mean(0)

    @property
    def reward_std(self) -> Any:
        """Standard deviation of the rewards, that of the population."""
        return self._all_rewards.std(0)

    @property
    def reward_min(self) -> Any:
        """Least reward."""
        return self._all_rewards.min(0)

    @property
    def reward_max(self) -> Any:
        """Greatest reward."""
        return self._all_rewards.max(0)

    @property
    def _all_rewards(self) -> np.ndarray:
        rewards = self.rewards
        return np.concatenate(list(rewards.values())) if isinstance(rewards, dict) else rewards

    def _value(self, name: str) -> Any:
        if self.values is None:
            raise RecorderStateError(
                f"The {name} of an episode can be read in an episode callback, while it runs. Read them from "
                "the store once the episode is sealed."
            )
        return self.values.get(name)


StepCallback = Callable[[StepData], StepData | Mapping[str, Any] | None]
EpisodeCallback = Callable[[EpisodeSummary], Mapping[str, Any] | None]


class Guarded:
    """A user's callback; `running` during a call, when its recorder is in the middle of a step."""

    def __init__(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback
        self.running = False

    @staticmethod
    def of(name: str, callback: Any) -> Guarded | None:
        """Return a callback that was given as the argument `name`, guarded; None if there is none.

        Raises:
            InvalidArgumentError: it cannot be called.
        """
        if callback is None:
            return None
        if not callable(callback):
            raise InvalidArgumentError(
                f"{name}={callback!r:.200} is of type {type(callback).__name__}; expected a function or None."
            )
        return Guarded(callback)

    def __call__(self, value: Any) -> Any:
        """Call it."""
        self.running = True
        try:
            return self._callback(value)
        finally:
            self.running = False


def apply_step_callback(callback: StepCallback, step: StepData, schema: StepSchema) -> StepData:
    """Call a step callback and read its answer: None keeps the step, a mapping adds extra columns.

    Raises:
        InvalidArgumentError: the answer is something else, or a column's name is taken.
    """
    answer = callback(step)
    if answer is None:
        return step
    if isinstance(answer, Mapping):
        answer = replace(step, extra={**step.extra, **answer})
    if isinstance(answer, StepData):
        answer = _checked(answer)
        schema.check_extra(answer.extra)
        return answer
    raise InvalidArgumentError(
        f"A step callback returned {type(answer).__name__}; expected StepData, a mapping of extra "
        f"columns, or None."
    )


def continues(step: StepData) -> bool:
    """Return whether a callback's answer begins the next episode without a reset."""
    return isinstance(step.end, str)


def _checked(step: StepData) -> StepData:
    """Return a step whose flags are booleans."""
    for name in ("info", "policy", "extra"):
        value = getattr(step, name)
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(f"StepData.{name} is {type(value).__name__}; expected a mapping.")
    for name in ("terminated", "truncated"):
        value = getattr(step, name)
        if value.__class__ is not bool and not (value is None and step.t == 0):
            try:
                step = replace(step, **{name: as_flag(f"StepData.{name}", value)})
            except SpaceMismatchError as error:
                raise InvalidArgumentError(str(error)) from error
    if isinstance(step.end, str) and step.end != "continue":
        raise InvalidArgumentError(f"StepData.end is {step.end!r}; expected True, False or 'continue'.")
    return step


def apply_episode_callback(callback: EpisodeCallback, episode: EpisodeSummary) -> Mapping[str, Any]:
    """Call an episode callback and return the metadata that it adds.

    Raises:
        InvalidArgumentError: the answer is neither a mapping nor None.
    """
    try:
        answer = callback(episode)
    finally:
        if episode.values is not None:
            episode.values.close()
    if answer is None:
        return {}
    if isinstance(answer, Mapping):
        return answer
    raise InvalidArgumentError(
        f"An episode callback returned {type(answer).__name__}; expected a mapping of metadata, or None."
    )

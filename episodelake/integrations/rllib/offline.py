"""Offline training of RLlib from stores: what is read, in which groups, and how it goes to the learners."""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from ray.rllib.offline.offline_data import OfflineData

from ... import EpisodeView
from ... import open as open_store
from ...errors import InvalidArgumentError
from ...plugin import Address, collected, counted, expect, flag, suggest, warn_caller
from ...plugin.columns import POLICY
from ...plugin.files import options_of, refuse_unused
from .offline_episodes import (
    OWN_COLUMNS,
    REPLACEABLE,
    RESERVED,
    REWARDS,
    EpisodeOptions,
    StepSource,
    StorePreLearner,
    check_rewards,
    is_numeric,
)

#: Into how many runs of neighbouring episodes a group is divided: more mix better, fewer read faster.
_RUNS = 8
#: Blocks of the plan; each goes to a worker.
_BLOCKS = 1000
#: Ray Data restarts its workers when the plan ends: where batches are not kept, it lasts for so many steps.
_STEPS, _EPOCHS = 2_000_000, 100
#: What `input_read_method_kwargs` takes: choices of episodes and values, and arguments of `open_store`.
_CHOICES = ("where", "extra_model_outputs", "infos", "chunk_length")
_OPENING = ("version", "storage_options", "check_pages")
#: Options of `config.offline_data` that mean nothing for a store.
_IGNORED = (
    "input_read_method",
    "input_read_episodes",
    "input_read_sample_batches",
    "input_read_batch_size",
    "input_filesystem",
    "input_filesystem_kwargs",
    "input_compress_columns",
    "ignore_final_observation",
    "materialize_data",
    "postprocess_inputs",
    "prelearner_buffer_class",
    "shuffle_buffer_size",
)


class StoreOfflineData(OfflineData):
    """Reads stores as true episodes for RLlib's offline algorithms (new API stack).

        config.offline_data(input_=["data/cartpole"], offline_data_class=StoreOfflineData)

    Learner connectors see whole episodes, so returns, value targets, n-step rewards and states of modules
    reach over rows. Workers of Ray Data (`map_batches_kwargs`) read groups of episodes and mix the rows of
    each group; Ray Data splits them between learners. A group has the `capacity` of
    `prelearner_buffer_kwargs` steps, by default ten train batches. With `materialize_mapped_data` the batches
    of one epoch are kept in memory and come again; without it, groups and rows are drawn anew for each epoch.
    Options of RLlib's own reader that have no effect here, such as `materialize_data`, are refused.

    `input_read_method_kwargs` chooses what is read:

    - `version`, `storage_options`, `check_pages`: as for `episodelake.open`.
    - `where`: an SQL condition or Polars expression over the episodes table.
    - `extra_model_outputs`: keys of the policy's recorded outputs; None (the default) for those of the first
      episode that are numbers or arrays of one shape, except for names of RLlib's own columns.
    - `infos`: whether episodes have their infos; False by default, since learners seldom use them.
    - `chunk_length`: at most so many steps of an episode go through the connectors at once, after
      `episode_lookback_horizon` steps of lookback. None (the default) keeps episodes whole.

    Float actions of bounded Box spaces are mapped to [-1, 1] if `normalize_actions` is set (RLlib's default),
    because modules act in that range; `actions_in_input_normalized=True` says that the store already has
    such actions. `input_read_schema` takes other columns by RLlib's names: outputs of the policy, as
    `policy.<key>`, or annotations of steps, by their names. `{"action_logp": "policy.log_prob"}` renames an
    output, `{"rewards": "shaped"}` trains on an annotation, and `{"actions": "policy.sampled_action"}` on the
    actions that a module sampled, as `StoreRecorder` records them, without a mapping. Episodes whose
    `end_reason` is `cut` or `interrupted` are neither terminated nor truncated: learners bootstrap their
    last value. Where the last
    observation of an episode is missing, its last transition is left out, and learners bootstrap there.

    Raises:
        StoreNotFoundError: a path holds no store.
        InvalidArgumentError: an option has a wrong value or no effect; `input_read_schema` names a column
            that a step lacks, or replaces one of RLlib's that only the store decides; no episode is chosen;
            the store has several agents and the config one module, or the reverse; `prelearner_class` is no
            `StorePreLearner`.
        QueryError: `where` is not valid.
    """

    def __init__(self, config: Any) -> None:
        arguments = _arguments(config)
        chosen = {key: arguments.pop(key, None) for key in _CHOICES}
        paths = config.input_ if isinstance(config.input_, list) else [config.input_]
        refuse_unused(arguments.get("storage_options"), *paths)
        views = [_view(path, chosen["where"], arguments) for path in paths]
        _check(config, paths, views, chosen["chunk_length"])
        self._sources = _sources(config, views, chosen["extra_model_outputs"])
        plan = _plan(config, views, chosen["chunk_length"])
        size = -(-len(plan) // _BLOCKS)
        # The parent reads what its config names: here the plan, in blocks.
        planned = config.copy(copy_frozen=False)
        planned.input_ = [plan.slice(start, size) for start in range(0, len(plan), size)]
        planned.input_read_method, planned.input_read_method_kwargs = "from_arrow", {}
        planned.materialize_data = False
        super().__init__(planned)
        self.config, self.path = config, config.input_
        self.data_read_batch_size = 1
        self.prelearner_class = config.prelearner_class or StorePreLearner
        options = EpisodeOptions(
            sources=self._sources,
            infos=flag("infos", chosen["infos"] or False),
            lookback=config.episode_lookback_horizon,
            normalize=config.normalize_actions and not config.actions_in_input_normalized,
            mapping=config.policy_mapping_fn if config.is_multi_agent else None,
        )
        given = self.map_batches_kwargs.get("fn_kwargs") or {}
        self.map_batches_kwargs["fn_kwargs"] = {**given, "views": views, "options": options}

    @property
    def default_map_batches_kwargs(self) -> dict[str, Any]:
        """From one worker to two, or one for each learner: a machine with one free core is enough."""
        return {"concurrency": (1, max(2, self.config.num_learners)), "zero_copy_batch": True}


def _view(path: str, where: Any, arguments: dict[str, Any]) -> EpisodeView:
    options = options_of(arguments.get("storage_options"), path)
    own: dict[str, Any] = {**arguments, "storage_options": options}
    store = open_store(path, **own)
    view = store if where is None else store.filter(where)
    if not len(view):
        raise InvalidArgumentError(
            f"There is nothing to train from: the store at {path!r} has {len(store)} episodes, none of which "
            f"fulfils where={where!r}."
            if where is not None
            else f"There is nothing to train from: the store at {path!r} has no episodes."
        )
    kept = _transitions(view)
    if not kept.any():
        raise InvalidArgumentError(
            f"There is nothing to train from: the episodes of the store at {path!r} have no transition whose "
            "next observation was recorded."
        )
    missing = view.context.snapshot.missing_at(view.positions)
    if missing is not None and (count := int(missing.sum())):
        warn_caller(
            f"RLlib leaves out {count} of {int(kept.sum()) + count} transitions, with their rewards: the "
            f"last of {counted(count, 'episode')} whose last observation is missing. A learner bootstraps "
            "there."
        )
    return view[:]


def _transitions(view: EpisodeView) -> np.ndarray:
    """Return how many transitions each episode has between two observations: RLlib needs both."""
    context = view.context
    lengths = collected(view.episodes.select("length"))["length"].to_numpy()
    missing = context.snapshot.missing_at(context.all_positions)
    return lengths if missing is None else lengths - missing


def _arguments(config: Any) -> dict[str, Any]:
    """Return `input_read_method_kwargs`.

    Raises:
        InvalidArgumentError: one of them is unknown, or an option for RLlib's own reader was set.
    """
    arguments, known = dict(config.input_read_method_kwargs), (*_CHOICES, *_OPENING)
    for name in arguments:
        if name not in known:
            raise InvalidArgumentError(
                f"input_read_method_kwargs has {name!r}.{suggest(name, known)} Stores take "
                f"{', '.join(known)}."
            )
    default = type(config)()
    buffer = {**config.prelearner_buffer_kwargs, "capacity": None} != {"capacity": None}
    ignored = [name for name in _IGNORED if getattr(config, name) != getattr(default, name)]
    if ignored or buffer:
        names = [*ignored, *(["prelearner_buffer_kwargs other than 'capacity'"] if buffer else [])]
        raise InvalidArgumentError(
            f"The config sets {', '.join(names)}, which only RLlib's own reader uses: stores are read as "
            "true episodes. Leave that out of offline_data()."
        )
    return arguments


def _check(config: Any, paths: Sequence[str], views: Sequence[EpisodeView], chunk_length: Any) -> None:
    learner = config.prelearner_class
    expect(
        not learner or issubclass(learner, StorePreLearner),
        "prelearner_class",
        learner,
        "a subclass of StorePreLearner",
    )
    if chunk_length is not None:
        whole = operator.index(chunk_length) > 0 and not config.is_multi_agent
        expect(whole, "chunk_length", chunk_length, "a number of steps from 1 on, for episodes of one agent")
    for path, view in zip(paths, views, strict=True):
        groups = [group.name for group in view.context.snapshot.schema.groups]
        if bool(groups) != config.is_multi_agent:
            raise InvalidArgumentError(
                f"The store at {path!r} has agents (groups {groups}), and the config has one module: set "
                "`config.multi_agent(policies=..., policy_mapping_fn=...)`."
                if groups
                else f"The config is of several agents, and the store at {path!r} of one."
            )


def _sources(config: Any, views: Sequence[EpisodeView], keys: Sequence[str] | None) -> dict[str, StepSource]:
    """Return where RLlib's columns come from, for those that do not have their usual source.

    Raises:
        InvalidArgumentError: a name or a source is not valid, or a transition lacks a value.
    """
    sources = {
        name: _source(name, column, views) for name, column in dict(config.input_read_schema or {}).items()
    }
    sources = {name: source for name, source in sources.items() if source is not None}
    renamed = {source.key for source in sources.values() if not source.annotation}
    for key in _default_outputs(views) if keys is None else keys:
        if key in renamed:
            continue
        if key not in RESERVED:
            sources[key] = StepSource(key)
        elif keys is not None:
            raise InvalidArgumentError(
                f"extra_model_outputs has {key!r}, which is a column of RLlib. Choose its name with "
                f"input_read_schema={{<name>: 'policy.{key}'}}."
            )
    for view in views:
        _check_sources(view, sources)
    return sources


def _source(name: Any, column: Any, views: Sequence[EpisodeView]) -> StepSource | None:
    """Return the source that an entry of `input_read_schema` names; None for the usual one."""
    if column is not None and OWN_COLUMNS.get(name) == column:
        return None
    entry = f"input_read_schema={{{name!r}: {column!r}}}"
    if not isinstance(name, str) or not isinstance(column, str):
        raise InvalidArgumentError(f"{entry}: expected text for both, RLlib's name and a column of steps.")
    if name in RESERVED and name not in REPLACEABLE:
        raise InvalidArgumentError(
            f"{entry}: RLlib's {name!r} comes from the store alone. Entries can replace "
            f"{' and '.join(REPLACEABLE)}, and name outputs of modules. Leave this one out."
        )
    annotated = [column in view.context.snapshot.annotation_files.annotations for view in views]
    return StepSource(column.removeprefix(POLICY.prefix), annotation=all(annotated))


def _default_outputs(views: Sequence[EpisodeView]) -> list[str]:
    """Return the keys of the outputs that the first episodes of all stores have as numbers."""
    keys = [
        {key for key, values in episode.policy.items() if is_numeric(values)} for episode in _firsts(views)
    ]
    return sorted(set.intersection(*keys))


def _firsts(views: Sequence[EpisodeView]) -> list[Any]:
    """Return the first episode of each store; of several agents that of one of them."""
    first = [view[0] for view in views]
    return [episode.agent(episode.agents[0]) if episode.agents else episode for episode in first]


def _check_sources(view: EpisodeView, sources: Mapping[str, StepSource]) -> None:
    """Refuse sources that a transition lacks, here rather than in a worker while it trains."""
    schema = view.steps.collect_schema().names()
    columns = {}
    for name, source in sources.items():
        own = source.key if source.annotation else POLICY.column((source.key,))
        columns[name] = [each for each in schema if each == own or each.startswith(f"{own}.")]
    unknown = [sources[name] for name, names in columns.items() if not names]
    lacking = [pl.col(each).is_null() for names in columns.values() for each in names]
    gaps = view.transitions.filter(pl.any_horizontal(lacking)) if lacking and not unknown else None
    ids = [] if gaps is None else collected(gaps.select("episode_id").head(1))["episode_id"].to_list()
    if unknown or ids:
        known = [name for name in schema if name.startswith(POLICY.prefix)]
        known += view.context.snapshot.annotation_files.annotations
        problem = f"no {unknown[0]}" if unknown else f"steps without an output in {ids[0]!r}"
        raise InvalidArgumentError(
            f"The store at {view.context.snapshot.layout.root} has {problem}; asked for: "
            f"{', '.join(map(str, sources.values()))}; recorded: {', '.join(sorted(known)) or 'none'}. "
            "Choose outputs that all episodes have with "
            "`input_read_method_kwargs={'extra_model_outputs': [...]}` "
            "and columns of steps with `input_read_schema`, or filter with `where`."
        )
    for name in sources.keys() & {REWARDS}:
        check_rewards(_firsts([view])[0], sources[name])


def _plan(config: Any, views: Sequence[EpisodeView], chunk_length: int | None) -> pa.Table:
    """Return groups of episodes in random order: the number of the store, places, first and last steps.

    Batches that are kept need one epoch. Others get several, each in an order of its own, unless a training
    step is defined as one epoch.
    """
    rng = np.random.default_rng(config.seed)
    lengths = [_transitions(view) for view in views]
    total = sum(int(values.sum()) for values in lengths)
    default = config.train_batch_size_per_learner * 10
    capacity = int(config.prelearner_buffer_kwargs.get("capacity", default))
    if config.num_learners > 1:
        capacity = min(capacity, -(-total // (2 * config.num_learners)))
    once = config.materialize_mapped_data or config.dataset_num_iters_per_learner is None
    epochs = []
    for _ in range(1 if once else min(_EPOCHS, -(-_STEPS // total))):
        groups = [
            group
            for store, values in enumerate(lengths)
            for group in _groups(store, values, capacity, chunk_length, rng)
        ]
        epochs += [groups[place] for place in rng.permutation(len(groups))]
    return pa.Table.from_pylist(epochs, _PLAN)


_PLAN = pa.schema(
    [("store", pa.int64()), *((name, pa.list_(pa.int64())) for name in ("episodes", "starts", "stops"))]
)


def _groups(
    store: int, lengths: np.ndarray, capacity: int, chunk_length: int | None, rng: np.random.Generator
) -> list[dict[str, Any]]:
    size = max(1, int(lengths.max())) if chunk_length is None else chunk_length
    counts = -(-lengths // size)
    episodes = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(episodes)) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    stops = np.minimum(starts + size, lengths[episodes])
    # Runs of neighbours stay together, and are mixed with other runs.
    run = (np.cumsum(stops - starts) - 1) * _RUNS // capacity
    order = np.argsort(rng.permutation(int(run[-1]) + 1)[run], kind="stable")
    groups = [order[part] for part in Address.groups((stops - starts)[order], capacity)]
    return [
        {"store": store, "episodes": episodes[part], "starts": starts[part], "stops": stops[part]}
        for part in groups
    ]

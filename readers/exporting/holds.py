"""Declarations of what formats hold of a store; `count_losses` counts everything else before it is written.

A declaration is about places: a fact of an episode, an entry of the card, a value of a step either has one or
not. A format then takes values from its `Export`, which gives only those that have a place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from gymnasium import Space, spaces
from polars.selectors import by_name

from ...store.common.exchange import Losses
from ...store.dynamic.column_groups import EXTRA, INFO, METADATA, POLICY, ColumnGroup, merge_rows
from ...store.dynamic.values import load_json
from ...store.environments.artifacts import EnvBundle
from ...store.environments.records import NamedArtifact, Records, SavedEnvironment
from ...store.layout import RUNS, STEPS
from ...store.names import DEFAULT_RUN, SOURCE_DIGEST, SOURCE_KEY
from ...store.schema import ENV_BUNDLE, LAST_OBSERVATION
from ...store.snapshot import Snapshot
from ...store.tables.annotation_files import episode_annotations
from ..context import ReadContext
from ..frames import collect_episodes, episodes_frame, stored_frame

#: Whether a value has a place, given the keys that lead to it.
Fits = Callable[[tuple[Any, ...], Any], bool]
#: What becomes of the observation after the last transition: it is kept; kept, though a missing one does not
#: show; needed, so that a transition without it is left out; needed unless the episode terminated, and lost
#: then; lost.
LastObservation = Literal["kept", "padded", "needed", "needed unless terminated", "lost"]

#: A loss of formats that have values, and no spaces.
LOST_SPACES = "spaces, which an import infers from the values"
#: Losses of formats whose episodes have an observation after each transition.
LOST_TRANSITION = "a last transition, whose next observation is missing"
LOST_EPISODE = "an episode without a transition between two observations"
_LAST = "the last observation of an episode"
_BOTH = {
    "terminated": "that an episode that terminated was truncated as well",
    "truncated": "that an episode that was truncated terminated as well",
    "either": "whether an episode was terminated or truncated",
}
#: How many rows of the episodes table are looked at together.
_ROWS = 1 << 12
#: Where the facts of a run stand in the metadata of its episodes.
RUN, RUN_METADATA = "run", "run_metadata"
IMPORTED_FROM = "imported_from"


def everything(path: tuple[Any, ...], value: Any) -> bool:
    """Say that each value has a place."""
    return True


def nothing(path: tuple[Any, ...], value: Any) -> bool:
    """Say that no value has one."""
    return False


def int64(path: tuple[Any, ...], value: Any) -> bool:
    """Say that whole numbers of 64 bits with a sign have a place."""
    return -(2**63) <= value < 2**63


@dataclass(frozen=True)
class Holds:
    """Places of a format. By default that is the transitions alone, with spaces from their values.

    Attributes:
        spaces: "whole"; "dtypes" of the values alone; or None.
        card: which entries of the card; among them is the environment, `env_spec`, of all runs.
        seed, options, metadata: which of those of an episode. Its run and the metadata of that are metadata.
        source_key: whether the metadata `source_key` come back; most imports give episodes keys of their own.
        info, policy, own: which values of steps: outputs of the environment, of the policy, own columns.
        form: what these values are, in words that follow "which is not a".
        annotations: whether annotations of steps have a place; those of episodes never do.
        last_observation: what becomes of it.
        ends: the reasons of ends that come back as another, "cut" or "truncated".
        both: of an episode that was terminated and truncated, the one flag that comes back; None for both;
            "either" where one flag stands for the two.
    """

    spaces: Literal["whole", "dtypes"] | None = "dtypes"
    card: Fits = nothing
    seed: Fits = nothing
    options: Fits = nothing
    metadata: Fits = nothing
    source_key: bool = False
    info: Fits = nothing
    policy: Fits = nothing
    own: Fits = nothing
    form: str = "value of this format"
    annotations: bool = False
    last_observation: LastObservation = "needed"
    ends: Mapping[str, str] = field(default_factory=lambda: {"interrupted": "cut"})
    both: Literal["terminated", "truncated", "either"] | None = None

    @classmethod
    def all_but(cls, **others: Any) -> Holds:
        """Return a format that has a place for everything but what is named, with the whole spaces."""
        values = dict.fromkeys(("card", "seed", "options", "metadata", "info", "policy", "own"), everything)
        return cls(**{"spaces": "whole", **values, **others})

    def of_steps(self, group: ColumnGroup) -> Fits:
        """Return which values of a group of step columns have a place."""
        return {INFO: self.info, POLICY: self.policy, EXTRA: self.own}[group]


def fitting(
    values: Mapping[Any, Any], fits: Fits, lose: Callable[[tuple[Any, ...], Any], Any]
) -> dict[Any, Any]:
    """Return the values in nested mappings that have a place; the others go to `lose`, with their keys."""

    def within(part: Mapping[Any, Any], path: tuple[Any, ...]) -> dict[Any, Any]:
        kept: dict[Any, Any] = {}
        for key, value in part.items():
            inner = (*path, key)
            if fits(inner, value):
                kept[key] = value
            elif fits is not nothing and isinstance(value, Mapping) and value:
                if inside := within(value, inner):
                    kept[key] = inside
            else:
                lose(inner, value)
        return kept

    return within(values, ())


class RunFacts:
    """The runs of some episodes, as metadata that travel with these, and the environment that they share.

    `run` is the name of a run; its id, which begins with that, where several have one name; and nothing if
    it is the only one and has the default name. The run of an import has no facts: the source keys of its
    episodes name its source.
    """

    def __init__(self, context: ReadContext) -> None:
        snapshot = context.snapshot
        ids = episodes_frame(snapshot, context.positions).select("run_id").unique()
        runs = stored_frame(snapshot, RUNS)
        frame = runs.join(ids, on="run_id", how="semi", maintain_order="left").collect()
        fields = [column for column in snapshot.runs_schema if METADATA.owns(column)]
        dynamic = merge_rows(METADATA, _cast(frame, fields))
        runs = frame.select("run_id", "name").to_dicts()
        names = Counter(row["name"] for row in runs)
        #: The facts of each run, by its id.
        self.by_run: dict[str, dict[str, Any]] = {}
        #: The ids of those that are imports.
        self.imports: set[str] = set()
        for row, metadata in zip(runs, dynamic, strict=True):
            name = row["name"] if names[row["name"]] == 1 else row["run_id"]
            facts = {} if names == {DEFAULT_RUN: 1} else {RUN: name}
            if metadata.pop(IMPORTED_FROM, None) is not None:
                facts = {}
                self.imports.add(row["run_id"])
            facts |= {RUN_METADATA: metadata} if metadata else {}
            self.by_run[row["run_id"]] = facts
        #: The specs of all environments.
        self.environments = frame["env_spec"].drop_nulls().unique(maintain_order=True).to_list()
        bundles = frame.get_column(ENV_BUNDLE.name, default=None)
        texts = [] if bundles is None else bundles.drop_nulls().to_list()
        #: How many of them have files of their environment.
        self.bundles = sum(bool(EnvBundle.from_json(text, "A run").files) for text in texts)

    @property
    def any(self) -> bool:
        """Whether a run has facts."""
        return any(self.by_run.values())

    def join(self, run_id: str, metadata: dict[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
        """Return the metadata of an episode with the facts of its run, and which of these have no room."""
        facts = self.by_run.get(run_id, {})
        return {**metadata, **{key: each for key, each in facts.items() if key not in metadata}}, [
            key for key, each in facts.items() if key in metadata and metadata[key] != each
        ]


def _cast(frame: pl.DataFrame, fields: list[pa.Field]) -> pa.Table:
    """Return columns of a frame in the types of a store, with their kinds."""
    if not fields:
        return pa.table({"row": pa.nulls(frame.height)})
    return frame.select([each.name for each in fields]).to_arrow().cast(pa.schema(fields))


@dataclass(frozen=True)
class Episodes:
    """The facts of all episodes of an export, and of their store."""

    context: ReadContext

    @property
    def snapshot(self) -> Snapshot:
        """The version of the store."""
        return self.context.snapshot

    @cached_property
    def runs(self) -> RunFacts:
        """The runs of the episodes."""
        return RunFacts(self.context)

    def frame(self) -> pl.DataFrame:
        """Return length, flags and end of each episode, and whether its last observation is missing."""
        frame = episodes_frame(self.snapshot, self.context.positions)
        last, missing = LAST_OBSERVATION.name, pl.lit(False)
        if last in self.snapshot.episodes_schema.names:
            missing = pl.col(last).is_not_null()
        names = ("length", "terminated", "truncated", "end_reason")
        return frame.select(*names, missing.alias("missing")).collect()

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield run, seed, options and metadata of each episode."""
        reader = self.context.rows
        places = map(reader.find, self.context.all_positions.tolist())
        for _, members in groupby(places, key=lambda each: id(each[0])):
            while some := list(islice(members, _ROWS)):
                table = some[0][0].take(pa.array([index for _, index in some]))
                rows = table.select(["run_id", "seed", "wide_seed", "options"]).to_pylist()
                for row, metadata in zip(rows, merge_rows(METADATA, table), strict=True):
                    yield {**row, "metadata": metadata}


def count_losses(episodes: Episodes, holds: Holds, losses: Losses, card: Mapping[str, Any]) -> None:
    """Count what a format has no place for, as far as it shows without the values of steps.

    Raises:
        CorruptStoreError: a file of the store is damaged.
    """
    count_columns(episodes, holds, losses)
    count_ends(episodes.frame(), holds, losses)
    _count_spaces(episodes.snapshot, holds, losses)
    fitting(card, holds.card, lambda path, _: losses.add(f"{'.'.join(map(str, path))} of the card"))
    _count_environments(episodes, losses)
    replaced = _replaced_keys(episodes.snapshot, holds)
    whole = holds.seed is holds.options is holds.metadata is everything
    if whole and not replaced and not episodes.runs.any:
        return
    for row in episodes.facts():
        seed = row["seed"] if row["wide_seed"] is None else int(row["wide_seed"])
        if seed is not None and not holds.seed((), seed):
            losses.add("the seed of an episode" if holds.seed is nothing else "a seed beyond 64 bits")
        if row["options"] is not None and holds.options is not everything:
            options = load_json(row["options"], "the column options")
            if holds.options is nothing:
                losses.add("the options of an episode", int(bool(options)))
            else:
                fitting(options or {}, holds.options, lambda path, _: losses.add(_named("options", path)))
        metadata, hidden = episodes.runs.join(row["run_id"], row["metadata"])
        for key in hidden:
            losses.add(f"the {key} of an episode, since its metadata have this key")
        fitting(metadata, holds.metadata, lambda path, _: losses.add(_named("metadata", path)))
        if row["run_id"] not in episodes.runs.imports:
            for key in replaced:
                if key in metadata and holds.metadata((key,), metadata[key]):
                    losses.add(f"metadata.{key}, in whose place an import puts its own")


def _replaced_keys(snapshot: Snapshot, holds: Holds) -> list[str]:
    """Return the metadata of the user's own that an import replaces by its own."""
    keys = [SOURCE_DIGEST] if holds.source_key else [SOURCE_KEY, SOURCE_DIGEST]
    names = snapshot.episodes_schema.names
    return [key for key in keys if METADATA.column((key,)) in names or METADATA.json_column in names]


def _named(place: str, path: tuple[Any, ...]) -> str:
    if path == (RUN,):
        return "the run of an episode"
    if path == (RUN_METADATA,):
        return "the metadata of a run"
    if path[0] == RUN_METADATA:
        return f"metadata.{'.'.join(map(str, path[1:]))} of a run"
    return ".".join(map(str, (place, *path)))


def count_columns(episodes: Episodes, holds: Holds, losses: Losses) -> None:
    """Count columns of steps that have no place, once for each episode, and annotations that have values."""
    snapshot, count = episodes.snapshot, len(episodes.context)
    added = snapshot.annotation_files.annotations
    for group in (INFO, POLICY, EXTRA):
        if holds.of_steps(group) is nothing:
            for column in snapshot.shown_schema(STEPS):
                if group.owns(column) and column.name not in added:
                    losses.add(f"the column {column.name}", count)
    for name in () if holds.annotations else added:
        losses.add(f"the annotation {name}", count)
    own = [each.name for each in episode_annotations(snapshot.episodes_schema)]
    if own:
        # By name, since `pl.col` takes some names for patterns.
        frame = episodes_frame(snapshot, episodes.context.positions).select(by_name(*own).count())
        for name, given in collect_episodes(snapshot, frame).row(0, named=True).items():
            losses.add(f"the annotation {name}", given)


def count_ends(frame: pl.DataFrame, holds: Holds, losses: Losses) -> None:
    """Count last observations, transitions and reasons of ends that do not come back."""
    missing, terminated = pl.col("missing"), pl.col("terminated")
    match holds.last_observation:
        case "padded":
            what = "that an episode lacks its last observation: it ends with a transition"
            losses.add(what, _count(frame, missing))
        case "lost":
            losses.add(_LAST, _count(frame, ~missing))
        case "needed unless terminated":
            losses.add(f"{_LAST} that terminated", _count(frame, terminated & ~missing))
            frame = _with_transitions(frame, missing & ~terminated, losses)
        case "needed":
            frame = _with_transitions(frame, missing, losses)
    for reason, becomes in holds.ends.items():
        changed = _count(frame, pl.col("end_reason") == reason)
        losses.add(f"that an episode was {reason}, not {becomes}", changed)
    truncated = pl.col("truncated")
    if holds.both is not None:
        several = terminated | truncated if holds.both == "either" else terminated & truncated
        losses.add(_BOTH[holds.both], _count(frame, several))


def _with_transitions(frame: pl.DataFrame, without: pl.Expr, losses: Losses) -> pl.DataFrame:
    """Count last transitions that are left out, and return the episodes that are whole."""
    losses.add(LOST_TRANSITION, _count(frame, without & (pl.col("length") > 1)))
    losses.add(LOST_EPISODE, _count(frame, without & (pl.col("length") == 1)))
    return frame.filter(~without)


def _count(frame: pl.DataFrame, condition: pl.Expr) -> int:
    return int(frame.select(condition.sum()).item() or 0)


def _count_spaces(snapshot: Snapshot, holds: Holds, losses: Losses) -> None:
    if holds.spaces == "whole":
        return
    for space in (snapshot.manifest.observation_space, snapshot.manifest.action_space):
        losses.add(LOST_SPACES, int(holds.spaces is None or not _is_unbounded(space)))


def _is_unbounded(space: Space) -> bool:
    """Return whether a space follows from the dtype of its values: a Box with the bounds of that."""
    if isinstance(space, spaces.Dict):
        return all(map(_is_unbounded, space.spaces.values()))
    if not isinstance(space, spaces.Box) or space.dtype is None:
        return False
    if space.dtype.kind == "f":
        return bool(np.all(np.isneginf(space.low)) and np.all(np.isposinf(space.high)))
    limits = np.iinfo(space.dtype) if space.dtype.kind in "iu" else None
    return limits is not None and bool(np.all(space.low == limits.min) and np.all(space.high == limits.max))


def _count_environments(episodes: Episodes, losses: Losses) -> None:
    """Count what no format holds: environments but one, and what replays need beside a spec."""
    runs, layout = episodes.runs, episodes.snapshot.layout
    if len(runs.environments) > 1:
        losses.add("the environment of a run, since there are several", len(runs.environments))
    losses.add("files of the environment of a run", runs.bundles)
    for what, kind in (("a saved environment", SavedEnvironment), ("an artifact", NamedArtifact)):
        losses.add(what, len(Records(layout, kind).all()))

"""Declarations of what formats hold of a store.

A declaration is about places: a fact of an episode, an entry of the card, a value of a step either has one or
not. `Export.count_losses` counts what has no place in any episode before an export writes. A format takes
values from its `Export`, which gives only those that have a place and counts the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl
from gymnasium import Space, spaces
from polars.selectors import by_name

from ...store.common.exchange import Losses
from ...store.dynamic.column_groups import EXTRA, INFO, METADATA, POLICY, ColumnGroup
from ...store.layout import Layout
from ...store.snapshot import Snapshot
from ..context import ReadContext
from ..dataset_facts import DatasetFacts
from ..frames import collected, episodes_frame
from ..replaying.run_envs import RunEnv

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
#: The loss of a fact of a run.
LOST_RUN = "the {} of an episode, since its metadata have this key"
_LAST = "the last observation of an episode"
_BOTH = {
    "terminated": "that an episode that terminated was truncated as well",
    "truncated": "that an episode that was truncated terminated as well",
    "either": "whether an episode was terminated or truncated",
}
#: Where the facts of a run stand in the metadata of its episodes.
RUN, RUN_METADATA = "run", "run_metadata"
#: The name of a run that got none.
_DEFAULT_RUN = "run"


def everything(path: tuple[Any, ...], value: Any) -> bool:
    """Say that each value has a place."""
    return True


def nothing(path: tuple[Any, ...], value: Any) -> bool:
    """Say that no value has one."""
    return False


def int64(path: tuple[Any, ...], value: Any) -> bool:
    """Declare that signed integers of 64 bits have a place."""
    return -(2**63) <= value < 2**63


@dataclass(frozen=True)
class Holds:
    """The parts of a store that an export format has a place for.

    By default these are the transitions alone, with spaces inferred from their values. An attribute about
    "which" values is a function of the keys that lead to a value, as a tuple, and the value, such as
    `lambda keys, value: isinstance(value, float)`; the report counts those for which it is False.

    Attributes:
        spaces: "whole"; "dtypes" of the values alone; or None.
        card: which entries of the card; among them is the environment, `env_spec`, of all runs.
        seed, options, metadata: which of those of an episode. Its run and the metadata of that are metadata.
        info, policy, own: which values of steps: of the environment's infos, of the policy, of own columns.
        form: what these values are, in words that follow "which is not a".
        annotations: whether annotations of steps have a place.
        labels: what annotations of episodes come back as; None where they have no place. Both are a loss.
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
    info: Fits = nothing
    policy: Fits = nothing
    own: Fits = nothing
    form: str = "value of this format"
    annotations: bool = False
    labels: Literal["metadata"] | None = None
    last_observation: LastObservation = "needed"
    ends: Mapping[str, str] = field(default_factory=lambda: {"interrupted": "cut"})
    both: Literal["terminated", "truncated", "either"] | None = None

    @classmethod
    def all_but(cls, **others: Any) -> Holds:
        """Return a format that has a place for everything but the named parts."""
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
    it is the only one and has the default name. The run of an import has no facts of its own: the source keys
    of its episodes name its source, and the card sums up the facts of its dataset.
    """

    def __init__(self, context: ReadContext) -> None:
        snapshot = context.snapshot
        ids = episodes_frame(snapshot, context.positions).select("run_id").unique()
        self._datasets = DatasetFacts.of(snapshot)
        frame = self._datasets.runs.join(collected(ids), on="run_id", how="semi", maintain_order="left")
        runs = frame.select("run_id", "name").to_dicts()
        names = Counter(row["name"] for row in runs)
        #: The facts of each run, by its id.
        self.by_run: dict[str, dict[str, Any]] = {}
        for row in runs:
            metadata = self._datasets.metadata[row["run_id"]]
            name = row["name"] if names[row["name"]] == 1 else row["run_id"]
            facts = {} if names == {_DEFAULT_RUN: 1} else {RUN: name}
            if row["run_id"] in self._datasets.imported:
                facts = {}
            facts |= {RUN_METADATA: metadata} if metadata else {}
            self.by_run[row["run_id"]] = facts
        #: The specs of all environments.
        self.environments = frame["env_spec"].drop_nulls().unique(maintain_order=True).to_list()
        bundles = [env.bundle for run_id, env in RunEnv.of_runs(snapshot).items() if run_id in self.by_run]
        #: How many of them have files of their environment.
        self.bundles = sum(bundle is not None and bool(bundle.files) for bundle in bundles)

    def card(self, card: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the card with the facts that hold for all episodes, and the names of those that differ."""
        return self._datasets.shared(card, list(self.by_run))

    def join(self, run_id: str, metadata: dict[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
        """Return the metadata of an episode with the facts of its run, and which of these have no room."""
        facts = self.by_run.get(run_id, {})
        return {**metadata, **{key: each for key, each in facts.items() if key not in metadata}}, [
            key for key, each in facts.items() if key in metadata and metadata[key] != each
        ]


def ends_frame(context: ReadContext) -> pl.DataFrame:
    """Return length, flags and end of each episode, and whether its last observation is missing."""
    frame = episodes_frame(context.snapshot, context.positions)
    last, missing = "last_observation", pl.lit(False)
    if last in context.snapshot.episodes_schema.names:
        missing = pl.col(last).is_not_null()
    names = ("length", "terminated", "truncated", "end_reason")
    return collected(frame.select(*names, missing.alias("missing")))


def count_facts(context: ReadContext, runs: RunFacts, holds: Holds, losses: Losses) -> None:
    """Count seeds, options, metadata and runs if the format has no place for any; exports count others."""
    snapshot = context.snapshot
    frame = episodes_frame(snapshot, context.positions)
    columns = {}
    if holds.seed is nothing:
        columns["the seed of an episode"] = pl.any_horizontal(pl.col("seed", "wide_seed").is_not_null())
    if holds.options is nothing:
        columns["the options of an episode"] = pl.col("options") != "{}"
    if holds.metadata is nothing:
        own = [METADATA.column((name,)) for name in ("source_key", "source_digest")]
        names = [each.name for each in snapshot.episodes_schema if METADATA.owns(each)]
        columns |= {f"the column {name}": by_name(name).is_not_null() for name in names if name not in own}
        for run_id, count in collected(frame.group_by("run_id").len()).iter_rows():
            for key in runs.by_run[run_id]:
                losses.add(lost_metadata((key,)), count)
    sums = frame.select(each.sum().alias(name) for name, each in columns.items())
    given = collected(sums, snapshot)
    losses.merge(given.row(0, named=True) if columns else {})


def lost_metadata(path: tuple[Any, ...]) -> str:
    """Return the loss of metadata of an episode, with the facts of its run among them."""
    if path == (RUN,):
        return "the run of an episode"
    if path == (RUN_METADATA,):
        return "the metadata of a run"
    if path[0] == RUN_METADATA:
        return f"metadata.{'.'.join(map(str, path[1:]))} of a run"
    return ".".join(map(str, ("metadata", *path)))


def count_columns(context: ReadContext, holds: Holds, losses: Losses) -> None:
    """Count columns of steps that have no place, once for each episode, and annotations that have values."""
    snapshot, count = context.snapshot, len(context)
    added = snapshot.annotation_files.annotations
    for group in (INFO, POLICY, EXTRA):
        if holds.of_steps(group) is nothing:
            for column in snapshot.shown_schema("steps"):
                if group.owns(column) and column.name not in added:
                    losses.add(f"the column {column.name}", count)
    for name in () if holds.annotations else added:
        losses.add(f"the annotation {name}", count)
    if own := snapshot.episode_annotations:
        # By name, since `pl.col` takes some names for patterns.
        frame = episodes_frame(snapshot, context.positions).select(by_name(*own).count())
        for name, given in collected(frame, snapshot).row(0, named=True).items():
            what = f", which comes back as {holds.labels}" if holds.labels else ""
            losses.add(f"the annotation {name}{what}", given)


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
    """Count last transitions that are left out, and return the complete episodes."""
    losses.add(LOST_TRANSITION, _count(frame, without & (pl.col("length") > 1)))
    losses.add(LOST_EPISODE, _count(frame, without & (pl.col("length") == 1)))
    return frame.filter(~without)


def _count(frame: pl.DataFrame, condition: pl.Expr) -> int:
    return int(frame.select(condition.sum()).item() or 0)


def count_spaces(snapshot: Snapshot, holds: Holds, losses: Losses) -> None:
    """Count the spaces that an import would infer otherwise."""
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


def count_environments(snapshot: Snapshot, runs: RunFacts, losses: Losses) -> None:
    """Count what no format holds: environments but one, and what replays need beside a spec."""
    if len(runs.environments) > 1:
        losses.add("the environment of a run, since there are several", len(runs.environments))
    losses.add("files of the environment of a run", runs.bundles)
    for folder, what in Layout.RECORDS.items():
        losses.add(what, len(snapshot.layout.records(folder)))

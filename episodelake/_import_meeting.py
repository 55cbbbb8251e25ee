"""The episodes of an import that meet episodes of its target: equal ones, and ones that have changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ._store import EpisodeStore
from .writers.episodes.source_keys import Source, committed_sources
from .writers.importing.digests import same_content


@dataclass
class Met:
    """Staged episodes whose equals or predecessors the target has.

    Attributes:
        present: the ids of those that the target has with the same content.
        changed: of each that the target has with other content, its id and that of the target's.
        changed_keys: the source keys of these.
        merged: the source keys of those that this import itself brought in before it was killed.
    """

    present: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    changed_keys: list[str] = field(default_factory=list)
    merged: set[str] = field(default_factory=set)


def meet(staging: EpisodeStore, target: EpisodeStore, identity: str) -> Met:
    """Compare staged episodes with those of the target.

    Episodes of the same source key meet. So do those of a copy: another dataset of the format in the target,
    of which every episode that both have is equal. It was imported from another place, or by a release whose
    keys had none.

    Args:
        identity: what the source keys of the import begin with.
    """
    here = list(committed_sources(target.handle.layout))
    if not here or not len(staging):
        return Met()
    target.refresh()
    known = {source.key: source for source in here}
    ids = {source.id for source in here}
    met = Met()
    fresh: dict[str, Source] = {}
    for source in committed_sources(staging.handle.layout):
        if source.id in ids:
            met.merged.add(source.key)
        elif source.key not in known:
            fresh[source.key.removeprefix(f"{identity}/")] = source
        elif _is_same(staging, source, target, known[source.key]):
            met.present.append(source.id)
        else:
            met.changed[source.id] = known[source.key].id
            met.changed_keys.append(source.key)
    for others in _datasets(here, identity).values():
        common = [name for name in fresh if name in others]
        if common and all(_is_same(staging, fresh[name], target, others[name]) for name in common):
            met.present += [fresh.pop(name).id for name in common]
    return met


def _is_same(staging: EpisodeStore, ours: Source, target: EpisodeStore, theirs: Source) -> bool:
    if ours.digest is not None and ours.digest == theirs.digest:
        return True
    return same_content(staging[ours.id], target[theirs.id])


def _datasets(here: list[Source], identity: str) -> Mapping[str, Mapping[str, Source]]:
    """Return the episodes of other datasets of the same format, by dataset and their names in it."""
    format = identity.partition(":")[0]
    pattern = re.compile(rf"({re.escape(format)}:(?:.*?@)?[0-9a-f]{{12,16}})/(.*)", re.DOTALL)
    found: dict[str, dict[str, Source]] = {}
    for source in here:
        match = pattern.fullmatch(source.key)
        if match and match[1] != identity:
            found.setdefault(match[1], {})[match[2]] = source
    return found

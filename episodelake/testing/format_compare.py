"""The differences between episodes that were written and episodes that came back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..plugin.columns import escape
from .values import same


class Difference(NamedTuple):
    """A part of an episode or store that came back otherwise.

    Attributes:
        part: one of `LOSSES`.
        name: the key of a value within the part; empty for the whole part.
        ours, theirs: what was written, and what came back.
    """

    part: str
    name: str
    ours: Any
    theirs: Any

    def is_named_by(self, lost: Mapping[str, int]) -> bool:
        """Return whether a reported loss explains it."""
        words = LOSSES.get(self.part, "$^")
        if self.name:
            name = f"{re.escape(self.name)}|{re.escape(escape(self.name))}"
            words += f"|(?<![\\w-])({name})(?![\\w-])|_json"
        return any(re.search(words, loss) for loss in lost)

    def __str__(self) -> str:
        return f"{self.part} {self.name}: {self.ours!r:.300} came back as {self.theirs!r:.300}"


_LAST = "last transition|next observation|without a transition"
#: Parts that a format may lose, and the words by which a report names the loss of the whole part.
LOSSES: dict[str, str] = {
    "spaces": "spaces|units of the buffer",
    "card": "of the card",
    "environment": "env_spec of|environment of a run",
    "run": "the run of an episode|the metadata of a run|of a run|the run of",
    "episodes": "without a transition|nothing is left",
    "observations": f"{_LAST}|last observation|the shape|digits of",
    "last observation": f"{_LAST}|last observation",
    "actions": f"{_LAST}|the shape|actions in the units|digits of",
    "rewards": f"{_LAST}|digits of",
    "ends": f"{_LAST}|not cut|not truncated|as well|whether an episode|was interrupted|was cut",
    "infos": f"{_LAST}|infos of a last|types of other",
    "policy": f"{_LAST}|types of other",
    "extra": f"{_LAST}|last observation|columns of a last|types of other",
    "seed": "seed",
    "options": "the options of|options",
    "metadata": "types of other",
    "annotations": "the annotation",
    "artifacts": "an artifact|saved environment|files of the environment",
}


#: The part of `LOSSES` that a sentence is about, by how it begins; the first that fits.
_SENTENCES = {
    "annotations": r"the annotation ",
    "infos": r"(the column )?(info\.|infos )|the infos of",
    "policy": r"(the column )?policy\.",
    "run": r"the run of|the metadata of a run|metadata\.\S+ of a run|the run_metadata of",
    "metadata": r"(the column )?metadata\.",
    "options": r"(the )?options[. ]",
    "seed": r"(the|a) seed ",
    "environment": r"env_spec of|the environment of a run",
    "card": r".* of the card|\w+ of a dataset, since",
    "spaces": r"spaces",
    "artifacts": r"an artifact|a saved environment|files of the environment",
    "ends": r"that an episode (was|that)|whether an episode",
    "last observation": r"the last observation|that an episode lacks|a last observation",
    "episodes": r"a last transition|an episode without a transition",
    "extra": r"the column |the step columns|the types of other columns",
    "observations": r"digits of|the shape",
}


def part_of(loss: str) -> str:
    """Return the part of `LOSSES` that the sentence of a loss names; the sentence itself if there is none."""
    return next((part for part, begin in _SENTENCES.items() if re.match(begin, loss)), loss)


def plain(value: Any) -> Any:
    """Return a value as dicts in order, lists and scalars of Python; floats as text, so that NaN is NaN."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in sorted(value.items(), key=str)}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return repr(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class PeerEpisode:
    """An episode as another program reads it; what the program does not give is empty.

    Attributes:
        flags: whether it terminated, and whether it was truncated.
        infos: a dict for each observation.
        ended: the reason of its end; by default that of the flags.
    """

    observations: Any
    actions: Any
    rewards: np.ndarray
    flags: tuple[bool, bool]
    infos: Sequence[Mapping[str, Any]] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    options: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ended: str | None = None

    @property
    def has_last_observation(self) -> bool:
        """Whether there is one observation more than rewards."""
        rows = self.observations
        while isinstance(rows, dict | tuple):
            rows = next(iter(rows.values())) if isinstance(rows, dict) else rows[0]
        return len(rows) > len(self.rewards)

    @property
    def terminated(self) -> bool:
        """Whether the environment ended it."""
        return self.flags[0]

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self.flags[1]

    @property
    def end_reason(self) -> str:
        """Why it ended."""
        if self.ended:
            return self.ended
        return "terminated" if self.terminated else "truncated" if self.truncated else "cut"


def unlike(store: Iterable[Any], read: Sequence[Any]) -> Iterator[Difference]:
    """Yield how the episodes of a store differ from those that were read, which may lack some."""
    whole = [*store]
    written = [each for each in whole if each.has_last_observation or each.length > 1]
    written = whole if len(read) == len(whole) else written
    if len(written) < len(whole):
        yield Difference("episodes", "", len(whole), len(read))
    if len(written) != len(read):
        yield Difference("count", "", len(written), len(read))
        return
    for ours, theirs in zip(written, read, strict=True):
        yield from differences(ours, theirs)


def differences(ours: Any, theirs: Any) -> Iterator[Difference]:
    """Yield how an episode differs from one that was written; `theirs` has the attributes of `Episode`."""
    for part in ("observations", "actions", "rewards"):
        if not same(getattr(ours, part), getattr(theirs, part)):
            yield Difference(part, "", getattr(ours, part), getattr(theirs, part))
    if ours.has_last_observation != theirs.has_last_observation:
        yield Difference("last observation", "", ours.has_last_observation, theirs.has_last_observation)
    ends = [(each.end_reason, bool(each.terminated), bool(each.truncated)) for each in (ours, theirs)]
    if ends[0] != ends[1]:
        yield Difference("ends", "", *ends)
    if ours.seed != theirs.seed:
        yield Difference("seed", "", ours.seed, theirs.seed)
    infos = [_by_key([dict(row) for row in each.infos]) for each in (ours, theirs)]
    yield from _of_mappings("infos", *infos)
    for part in ("policy", "extra"):
        yield from _of_mappings(part, dict(getattr(ours, part)), dict(getattr(theirs, part)))
    yield from _of_mappings("options", ours.options or {}, theirs.options or {})
    given = "run", "run_metadata"
    metadata = [
        {k: value for k, value in each.metadata.items() if not k.startswith("source_") and k not in given}
        for each in (ours, theirs)
    ]
    yield from _of_mappings("metadata", *metadata)


def _by_key(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the rows of each key; a row without the key has an empty tuple."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key, ()) for row in rows] for key in keys}


def _of_mappings(part: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Difference]:
    for key in {**ours, **theirs}:
        values = [plain(each[key]) if key in each else () for each in (ours, theirs)]
        if values[0] != values[1]:
            yield Difference(part, str(key), *values)

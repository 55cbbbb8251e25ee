"""Every export through the peer's own reader, for every type of value that a store holds.

The reader gives the same values, or a loss names what it lacks, or the export refuses the store beforehand.
`make test-peers` runs the formats whose libraries are in its environment alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import episodelake as el
from exchange_episodes import unexplained_transitions, webdataset_differences
from peer_cases import CASES, build
from peer_readers import PEERS, READERS, elements, plain
from strategies import same
from test_exchange_rerun import columns_of

#: What explains that a part differs, beside a loss that names the column or key.
_LAST = r"last transition|next observation|without a transition|last observation"
_ENDS = r"not cut|not truncated|as well"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The store of a case, made once."""

    @cache
    def made(name: str) -> el.EpisodeStore:
        return build(tmp_path_factory.mktemp("case") / "store", CASES[name])

    return made


def check(store: el.EpisodeStore, target: Path, form: str) -> None:
    """Export, read, and compare."""
    options, suffix, read = READERS[form]
    target = target.with_suffix(suffix)
    target.parent.mkdir()
    name = form.partition("-")[0]
    try:
        report = store.export(target, format=name, **options)
    except el.errors.DatasetError as error:
        assert "failed:" not in str(error), error
        assert not target.exists()
        return
    lost = list(report.lost)
    episodes = list(read(target, store))
    expected = [e for e in store if e.has_last_observation or e.length > 1 or len(episodes) == len(store)]
    assert len(episodes) == report.episodes == len(expected)
    for values, episode in zip(episodes, expected, strict=True):
        explained = list(differences(values, episode, lost))
        assert not explained, (explained, lost)


def differences(read: dict[str, Any], episode: el.Episode, lost: list[str]) -> Any:
    """Yield the parts that differ without a loss that says so."""
    for part in ("observations", "actions", "rewards"):
        ours, theirs = getattr(episode, part), read[part]
        ragged = isinstance(ours, list) and plain(ours) == plain(theirs)
        if not same(ours, theirs) and not ragged and not (_names(lost, _LAST) and _begins(ours, theirs)):
            yield part, ours, theirs
    flags = (bool(episode.terminated), bool(episode.truncated))
    if flags != read["flags"] and not _names(lost, f"{_LAST}|{_ENDS}"):
        yield "flags", flags, read["flags"]
    for part, theirs in read.get("rows", {}).items():
        ours = elements(episode.infos if part == "infos" else _rows(getattr(episode, part), len(theirs)))
        if repr(ours) != repr(theirs) and not _names(lost, rf"{part.removesuffix('s')}\.(x|_json)"):
            yield part, ours, theirs
    for part in ("infos", "policy", "extra") if "rows" not in read else ():
        ours = plain(getattr(episode, part))
        theirs = plain(read.get(part, [{}] * (episode.length + 1) if part == "infos" else {}))
        named = rf"{part.removesuffix('s')}\.(x|_json)|column (x|_json)"
        if not episode.has_last_observation or _names(lost, "(infos|columns) of a last observation"):
            ours, theirs = _first(ours, episode.length), _first(theirs, episode.length)
        # Equal in value and type, and NaN is NaN.
        if repr(ours) != repr(theirs) and not _names(lost, named):
            yield part, ours, theirs
    for part in ("seed", "options", "metadata"):
        ours, theirs = plain(getattr(episode, part)) or None, read.get(part) or None
        if ours != theirs and not _names(lost, part):
            yield part, ours, theirs


def _names(lost: list[str], pattern: str) -> bool:
    return any(re.search(pattern, loss) for loss in lost)


def _rows(columns: Any, count: int) -> list[Any]:
    """Columns as a dict for each row, nested as they are; those that end before as absent keys."""

    def cell(values: Any, t: int) -> Any:
        if isinstance(values, dict):
            return {key: cell(part, t) for key, part in values.items()}
        return values[t]

    def length(values: Any) -> int:
        return min(map(length, values.values())) if isinstance(values, dict) else len(values)

    return [{key: cell(v, t) for key, v in columns.items() if t < length(v)} for t in range(count)]


def _first(values: Any, count: int) -> Any:
    """The first rows of plain columns or infos."""
    if isinstance(values, dict):
        return {key: _first(part, count) for key, part in values.items()}
    return values[:count]


def _begins(ours: Any, theirs: Any) -> bool:
    """Return whether the values are those of the first steps."""
    if isinstance(ours, dict):
        return all(_begins(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, tuple):
        return all(map(_begins, ours, theirs))
    return len(theirs) in (len(ours), len(ours) - 1) and same(ours[: len(theirs)], theirs)


#: `make test` takes one case in so many, another one for each reader; `make test-cases` all.
_EVERY = 30


def chosen(cases: Sequence[str], number: int, full: bool) -> Sequence[str]:
    """The cases that a run has time for."""
    return cases if full else cases[number % _EVERY :: _EVERY]


FULL = pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.further)])


@FULL
@pytest.mark.parametrize("form", [name for name in READERS if name not in PEERS])
def test_a_reader_gives_what_the_store_holds(tmp_path: Path, stores: Any, form: str, full: bool) -> None:
    """Or a loss names the difference, or the export refuses the store."""
    for number, case in enumerate(chosen([*CASES], [*READERS].index(form), full)):
        check(stores(case), tmp_path / str(number) / "out", form)


@pytest.mark.peers
@pytest.mark.parametrize("form", PEERS)
def test_a_peer_reads_what_the_store_holds(tmp_path: Path, stores: Any, form: str) -> None:
    """Or a loss names the difference, or the export refuses the store."""
    for number, case in enumerate(CASES):
        check(stores(case), tmp_path / str(number) / "out", form)


@FULL
def test_samples_of_webdataset_hold_what_the_store_holds(tmp_path: Path, stores: Any, full: bool) -> None:
    """Read by tarfile and NumPy; keys that come and go are columns of their own there."""
    cases = [case for case in CASES if case != "info-dict-changing"]
    for number, case in enumerate(chosen(cases, 0, full)):
        assert not webdataset_differences(stores(case), tmp_path / str(number)), case


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:.* does not hold:RuntimeWarning")
@pytest.mark.parametrize("name", ["tianshou", "sb3", "torchrl", "imitation"])
def test_an_object_in_memory_has_what_the_store_holds(tmp_path: Path, stores: Any, name: str) -> None:
    """Its import gives the same transitions, or the conversion refuses the store with an error of ours."""
    cases = [case for case in CASES if case.startswith(("plain", "obs", "act", "last"))]
    for number, case in enumerate(cases):
        assert not unexplained_transitions(stores(case), tmp_path / str(number), name), case


@pytest.mark.peers
def test_rerun_reads_the_steps_of_every_store(tmp_path: Path, stores: Any) -> None:
    """Rewards at their steps, and metadata in their own type whatever stores went out before."""
    for number, case in enumerate(CASES):
        store, target = stores(case), tmp_path / str(number)
        try:
            store.export(target, format="rerun")
        except el.errors.DatasetError as error:
            assert "failed:" not in str(error), error
            continue
        for file, episode in zip(sorted(target.glob("*.rrd")), store, strict=True):
            _, entities = columns_of(file)
            rewards = entities["/reward"]
            found = [row for row in rewards["Scalars:scalars"] if row]
            assert found == [[each] for each in episode.rewards], case
            value = episode.metadata.get("x")
            if isinstance(value, bool | float | str) or (isinstance(value, int) and abs(value) < 2**63):
                assert entities["/__properties/episode"]["metadata.x"] == [[value]], case

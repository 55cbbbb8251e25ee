"""Rules of imports: episodes come in once, in one commit, after an interrupt too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

from ..opening import EpisodeStore, create, open_store
from ..store.errors import DatasetError, InvalidArgumentError, SpaceMismatchError
from ..store.spaces.codec import slice_batch
from ..writers.importing.formats import OPTIONAL
from .format_base import FormatSettings, check, delete, files_of, refused, rewards_of, steps_of
from .format_cases import VECTOR, Case
from .format_compare import plain
from .values import same

_CHANGED, _OTHER = 70.5, 80.5
#: What reports count where a source lacks a last observation.
LACKS = "a last observation, which the source lacks"
REPEATS = "a last observation, which repeats the one before"
DROPS = "a last transition, whose next observation is missing"
DROPS_REWARD = "a reward other than 0 of a last transition, whose next observation is missing"
DROPS_ALL = "an episode of one transition, whose next observation is missing"


class ImportRules(FormatSettings):
    """Rules that a format's import keeps."""

    def test_an_import_adds_each_episode_once(self, tmp_path: Path) -> None:
        """A second import and a grown source add what is new; a changed episode is for the caller."""
        for source in self.sources(tmp_path / "sources"):
            into = tmp_path / "once"
            first = self.imported(source, into)
            version = open_store(into).version
            again = self.imported(source, into)
            counts = again.episodes, again.steps, again.present
            check(counts == (0, 0, first.episodes), f"imported again: {again}")
            check(open_store(into).version == version, "an import that adds nothing makes a version")
            check(open_store(into).verify().ok, f"the store is damaged: {open_store(into).verify()}")
            delete(into)
        if self.sampled and self.stable_keys:
            store, into = self.sample(), tmp_path / "into"
            first = self.imported(self.written(store[:2], tmp_path), into)
            check((first.episodes, first.present) == (2, 0), f"two new episodes: {first}")
            check(rewards_of(into) == rewards_of(store[:2]), "other rewards than those that were written")
            grown = self.imported(self.written(store, tmp_path), into)
            check((grown.episodes, grown.present) == (1, 2), f"a source that has grown: {grown}")
            self._check_changed(tmp_path, into)
            other = self.imported(self.written(_changed(store, _OTHER), tmp_path / "elsewhere"), into)
            check((other.episodes, other.present) == (3, 0), f"another dataset of the same name: {other}")
        check(not list(tmp_path.glob(".*importing*")), "an import leaves its staging store")

    def _check_changed(self, folder: Path, into: Path) -> None:
        before, version = rewards_of(into), open_store(into).version
        source = self.written(_changed(self.sample()), folder)
        problem = "changed episodes (with other keys than before they are new: number them in the source)"
        with refused(problem, "on_changed='replace'", "(1)", kind=DatasetError):
            self.imported(source, into)
        check(open_store(into).version == version, "an import that failed makes a version")
        kept = self.imported(source, into, on_changed="keep")
        check((kept.episodes, kept.present, kept.kept) == (0, 2, 1), f"on_changed='keep': {kept}")
        check(rewards_of(into) == before, "on_changed='keep' changes an episode")
        replaced = self.imported(source, into, on_changed="replace")
        counts = replaced.episodes, replaced.present, replaced.replaced
        check(counts == (0, 2, 1), f"on_changed='replace': {replaced}")
        after = open_store(into)
        check(after.version == version + 1, "a replacement takes more than one commit")
        check(sorted(rewards_of(after)) == sorted(rewards_of(_changed(self.sample()))), "other new rewards")
        check(after.verify().ok, f"the store is damaged: {after.verify()}")
        check(self.imported(source, into).present == 3, "the replaced episode is not present")

    def test_an_interrupted_import_goes_on(self, tmp_path: Path) -> None:
        """Nothing shows before the commit; the same call brings in each episode once, as it is by then."""
        for number, source in enumerate(self.sources(tmp_path / "sources")):
            self._check_resumed(tmp_path / str(number), source, source)
        if self.sampled:
            source = self.written(self.sample(), tmp_path)
            self._check_resumed(
                tmp_path / "changed",
                source,
                lambda: self.written(_changed(self.sample()), tmp_path),
            )
            source = self.written(self.sample(), tmp_path)
            self._check_resumed(
                tmp_path / "shrunk", source, lambda: self.written(self.sample()[:2], tmp_path)
            )

    def _check_resumed(self, folder: Path, source: Any, then: Any) -> None:
        """Interrupt the import of a source, and import what there is then."""

        def stop(done: int, _: int) -> None:
            if done:
                raise KeyboardInterrupt

        folder.mkdir()
        into = folder / "into"
        try:
            self.imported(source, into, progress=stop)
        except KeyboardInterrupt:
            check(not into.exists(), "an interrupted import shows its episodes")
        else:
            raise AssertionError("the import swallows an interrupt")
        source = then() if callable(then) else then
        whole = self.imported(source, folder / "whole")
        report = self.imported(source, into)
        counts = [(each.episodes, each.steps) for each in (report, whole)]
        check(counts[0] == counts[1], f"resumed: {report}\nundisturbed: {whole}")
        transitions = sum(map(len, rewards_of(folder / "whole")))
        check(whole.steps == transitions, f"{whole} for {transitions} transitions")
        shown = [sorted(map(repr, rewards_of(each))) for each in (into, folder / "whole")]
        check(shown[0] == shown[1], "resumed: other episodes")
        check(not list(folder.glob(".*importing*")), "a resumed import leaves its staging store")

    def test_a_dry_run_tells_what_an_import_does(self, tmp_path: Path) -> None:
        """The format, spaces, mapping and first rows; nothing is written."""
        for source in self.sources(tmp_path / "sources"):
            into = tmp_path / "into"
            before = sorted(tmp_path.rglob("*"))
            rehearsed = self.imported(source, into, dry_run=True)
            check(sorted(tmp_path.rglob("*")) == before, "a dry run writes files")
            done = self.imported(source, into)
            check(done.format == self.reader, f"recognised as {done.format}: {done.reason}")
            for name in ("source", "format", "reason", "observation_space", "action_space", "mapping"):
                planned, shown = getattr(rehearsed, name), getattr(done, name)
                check(planned == shown, f"{name}: the dry run has {planned!r}, the import {shown!r}")
            store, preview = open_store(into), rehearsed.preview
            rows = [] if preview is None else plain(preview.to_dicts())
            first = [{name: row[name] for name in rows[0]} for row in steps_of(store)[: len(rows)] if rows]
            check(rows and rows == first, f"other first rows: {rows}\n{first}")
            again = self.imported(source, store, dry_run=True)
            check(again.dry_run and again.episodes == 0, f"a dry run adds episodes: {again}")
            check(open_store(into).version == store.version, "a dry run makes a version")
            delete(into)

    def test_the_caller_decides_about_last_observations(self, tmp_path: Path) -> None:
        """Where a source lacks one, it stays missing, repeats the one before, or goes with its transition."""
        for number, source in enumerate(self.sources(tmp_path / "sources")):
            rules = ("missing", "repeat", "drop")
            stores = {rule: tmp_path / f"{number}-{rule}" for rule in rules}
            reports = {rule: self.imported(source, stores[rule], last_observation=rule) for rule in rules}
            of = {rule: {key: each for key, each in _by_key(stores[rule])} for rule in rules}
            lacking = {key for key, each in of["missing"].items() if not each.has_last_observation}
            single = {key for key in lacking if of["missing"][key].length == 1}
            check(of["drop"].keys() == of["missing"].keys() - single, f"{source.name}: other episodes")
            for key, whole in of["missing"].items():
                length = whole.length - (key in lacking)
                for rule in ("repeat", "drop")[: 1 + (key not in single)]:
                    problem = f"{source.name}, episode {key}, last_observation={rule!r}"
                    _check_part(whole, of[rule][key], whole.length if rule == "repeat" else length, problem)
                    if rule == "repeat" and key in lacking:
                        last = [
                            slice_batch(of[rule][key].observations, t, t + 1) for t in (length, length + 1)
                        ]
                        check(same(*last), f"{problem}: another last observation")
            left = [of["missing"][key].rewards[-1] for key in lacking - single]
            rewarded = np.count_nonzero(np.nan_to_num(left))
            expected = {
                "missing": {LACKS: len(lacking)},
                "repeat": {REPEATS: len(lacking)},
                "drop": {
                    DROPS: len(left),
                    DROPS_ALL: len(single),
                    DROPS_REWARD: rewarded,
                },
            }
            for rule, counts in expected.items():
                lost = {what: reports[rule].lost.get(what, 0) for what in counts}
                check(lost == counts, f"{source.name}, last_observation={rule!r}: {lost}, not {counts}")

    def test_tables_of_wider_types_are_the_same(self, tmp_path: Path) -> None:
        """Parquet files that were rewritten with large lists and texts, as Polars writes them."""
        for source in self.sources(tmp_path / "sources"):
            tables = [each for each in files_of(source) if each.suffix == ".parquet"]
            if tables:
                self.imported(source, tmp_path / "plain")
                for file in tables:
                    _widen(file)
                self.imported(source, tmp_path / "large")
                check(
                    steps_of(tmp_path / "large") == steps_of(tmp_path / "plain"), f"{source.name}: other rows"
                )
                delete(tmp_path / "plain")
                delete(tmp_path / "large")

    def test_a_store_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        """Its spaces, rewards or agents are named, it stays as it was, and `skip` lists every episode."""
        if not self.sampled:
            return
        source = self.written(self.sample(), tmp_path)
        other = create(tmp_path / "other", observation_space=spaces.Box(0, 1, (3,)), action_space=VECTOR)
        for dry_run in (True, False):
            with refused("a store of other spaces", "Box(0.0, 1.0, (3,)", kind=SpaceMismatchError):
                self.imported(source, other, dry_run=dry_run, cast="no")
        report = self.imported(source, other, on_error="skip", cast="no")
        check((report.episodes, len(report.skipped)) == (0, 3), f"episodes that do not fit: {report}")
        check(len(other.refresh()) == 0, "an episode that does not fit came in")
        team = create(tmp_path / "team", agents={"a": (VECTOR, VECTOR), "b": (VECTOR, VECTOR)})
        with refused("a store of several agents", "several agents", kind=InvalidArgumentError):
            self.imported(source, team)
        goals = create(tmp_path / "goals", observation_space=VECTOR, action_space=VECTOR, reward_shape=(2,))
        with refused("a store of vector rewards", "(2,)", kind=SpaceMismatchError):
            self.imported(source, goals)

    def test_options_without_a_use_are_refused(self, tmp_path: Path) -> None:
        """An import never ignores what it was given, and creates no store."""
        if not self.sampled:
            return
        source = self.written(self.sample(), tmp_path)
        values: dict[str, Any] = {
            "mapping": {"observation": "x", "action": "y", "episode": "z"},
            "last_step": "transition",
            "observation_space": VECTOR,
            "action_space": VECTOR,
        }
        for name in OPTIONAL:
            if name not in self.taken:
                with refused(f"{name}=", f"{name} is no option", str(self.reader), kind=InvalidArgumentError):
                    self.imported(source, tmp_path / "into", **{name: values[name]})
        for name, value in {
            "last_observation": "mising",
            "on_error": "x",
            "on_changed": None,
            "name": "",
        }.items():
            with refused(f"{name}={value!r}", name, kind=InvalidArgumentError):
                self.imported(source, tmp_path / "into", **{name: value})
        check(not (tmp_path / "into").exists(), "an import that was refused makes a store")


def _by_key(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the episodes of an import with their keys in the source."""
    for episode in open_store(path):
        yield str(episode.metadata["source_key"]).rpartition("@")[2].partition("/")[2], episode


def _check_part(whole: Any, part: Any, length: int, problem: str) -> None:
    """Check that an episode has the first transitions of another, and is cut there if that has more."""
    check(part.length == length, f"{problem}: {part.length} transitions")
    check(part.has_last_observation, f"{problem}: no last observation")
    seen = whole.length + whole.has_last_observation
    ours, theirs = (slice_batch(each.observations, 0, min(seen, length + 1)) for each in (whole, part))
    check(same(ours, theirs), f"{problem}: other observations")
    check(same(slice_batch(whole.actions, 0, length), part.actions), f"{problem}: other actions")
    check(same(whole.rewards[:length], part.rewards), f"{problem}: other rewards")
    for name in ("infos", "extra"):
        ours, theirs = (_first(getattr(each, name), length) for each in (whole, part))
        check(plain(ours) == plain(theirs), f"{problem}: other {name}")
    end = whole.end_reason if length == whole.length else "cut"
    check(part.end_reason == end, f"{problem}: it is {part.end_reason}")


def _first(values: Any, count: int) -> Any:
    """Return the first rows of nested columns."""
    if isinstance(values, Mapping):
        return {key: _first(part, count) for key, part in values.items()}
    return values[:count]


def _widen(file: Path) -> None:
    table = pq.ParquetFile(file).read()
    for index, field in enumerate(table.schema):
        kind = _large(field.type)
        table = table.set_column(index, field.with_type(kind), table.column(index).cast(kind))
    pq.write_table(table, file)


def _large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.large_list(_large(kind.value_type))
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def _changed(store: EpisodeStore, reward: float = _CHANGED) -> EpisodeStore:
    """Return the sample with another reward in its second episode."""
    return Case(f"sample with rewards of {reward}", lambda path: _copy(store, path, reward)).store()


def _copy(store: EpisodeStore, path: Path, reward: float) -> EpisodeStore:
    copy = create(path, observation_space=store.observation_space, action_space=store.action_space)
    with copy.writer() as writer:
        for index, episode in enumerate(store):
            rewards = np.full(episode.length, reward) if index == 1 else episode.rewards
            writer.write_episode(
                observations=episode.observations,
                actions=episode.actions,
                rewards=rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
            )
    return copy.refresh()

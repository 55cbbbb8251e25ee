"""`FormatContract`: the rules that each format of import and export keeps.

A subclass names the format; pytest runs its rules. Each rule loops over its cases, and names one that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..importing.importing import import_dataset
from ..opening import EpisodeStore, open_store
from ..store.errors import DatasetError, EpisodelakeError, InvalidArgumentError
from .format_base import check, delete
from .format_cases import Case
from .format_compare import LOSSES, Difference, part_of, plain, unlike
from .format_exports import ExportRules
from .format_imports import ImportRules
from .format_sources import SourceRules

_SHOWN = 12
_REFUSE = "Raise a DatasetError before you write a store that the format cannot hold."
_DECLARE = (
    "Keep each value; or count it in the losses of the report and name its part in `cannot_hold`; or, where "
    "`write_source` writes sources without a place for it, name its part in `drops`."
)


class FormatContract(ImportRules, ExportRules, SourceRules):
    """Rules of a format: round trips, imports, exports, and the safety of its sources.

    A class of tests: name the format, and pytest runs the rules.

        class TestMine(FormatContract):
            format = "mine"
            suffix = ".mine"

    What does not come back has to be in a report's losses; `cannot_hold` declares which these may be. A
    format without an export overrides `write_source`, and names in `drops` what its sources have no place
    for.
    """

    def test_episodes_come_back_or_a_loss_names_what_does_not(self, tmp_path: Path) -> None:
        """Values of every type, facts and ends; or the format refuses the store before it writes."""
        problems = []
        for number, options in enumerate(self.exports if self.sampled or self.writes else ()):
            for case in self.cases():
                try:
                    differences = [*self._round_trip(case, tmp_path / str(number), options)]
                except Exception as error:
                    error.add_note(f"The case: {case.name} {dict(options)}. {_REFUSE}")
                    raise
                problems += [f"{case.name} {dict(options)}: {each}" for each in differences]
        more = f"\nand {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        check(not problems, "\n".join(problems[:_SHOWN]) + f"{more}\n{_DECLARE}")

    def test_what_was_imported_goes_out_again(self, tmp_path: Path) -> None:
        """Episodes of others come back from an export of their import, without names of the import."""
        for number, source in enumerate(self.sources(tmp_path / "sources") if self.writes else ()):
            target = tmp_path / f"out-{number}{self.suffix}"
            self.imported(source, tmp_path / f"first-{number}")
            store = open_store(tmp_path / f"first-{number}")
            lost = store.export(target, format=self.format, **self.exports[0]).lost
            report = import_dataset(target, tmp_path / f"again-{number}", **self._words(store, lost))
            again, both = open_store(tmp_path / f"again-{number}"), {**lost, **report.lost}
            differences = [each for each in unlike(store, [*again]) if not self.allows(each)]
            differences = [each for each in differences if not each.is_named_by(both)]
            check(not differences, f"{source.name}: {[*map(str, differences)]}; lost: {both}")
            named = {"run", "run_metadata"} & {*again[0].metadata} - {*store[0].metadata}
            check(not named, f"{source.name}: {named} of an import")
            kept = all(plain(again.card.get(key)) == plain(value) for key, value in store.card.items())
            kept = kept or any(part_of(loss) == "card" for loss in both)
            check(kept, f"{source.name}: the card {again.card} after {store.card}")

    def _words(self, store: EpisodeStore, lost: Mapping[str, int]) -> dict[str, Any]:
        """Return the arguments of an import of a store's export."""
        lacking = any(part_of(loss) == "spaces" for loss in lost) or "spaces" in self.drops
        given = self.spaces_of(store) if lacking else {}
        return {"last_observation": "missing", **self.arguments, **given}

    def _round_trip(self, case: Case, folder: Path, options: Mapping[str, Any]) -> Iterator[str]:
        """Yield the problems of a case, or of its parts if the format refuses it."""
        store, target = case.store(), folder / f"out{self.suffix}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            source, lost = self.write_source(store, target, options)
        except (DatasetError, InvalidArgumentError) as error:
            if "failed:" in str(error) or target.exists():
                yield f"not refused before it is written: {error}"
            for part in case.parts() if self._takes_parts_of(case, folder, options) else ():
                yield from self._round_trip(part, folder, options)
            return
        try:
            yield from self._wrong_losses(case, lost)
            if self.writes:
                yield from self.check_export(store, target, options, lost)
            if self.reader is not None:
                yield from self._read_back(case, source, folder / "back", lost)
        finally:
            for each in (target, folder / "back", folder / f".{target.name}.episodelake-export.json"):
                delete(each)

    def allows(self, difference: Difference) -> bool:
        """Return whether values may come back otherwise without a loss that names them."""
        return difference.part in self.drops

    def check_export(
        self, store: EpisodeStore, target: Path, options: Mapping[str, Any], lost: Mapping[str, int]
    ) -> Iterator[str]:
        """Yield the values that another reader gives otherwise, unless a loss names them."""
        read = self.read_export(target, store, options)
        for each in unlike(store, [*read]) if read is not None else ():
            if not self.allows(each) and not each.is_named_by(lost):
                yield f"as its library reads it, {each}; lost: {lost}"

    def _takes_parts_of(self, case: Case, folder: Path, options: Mapping[str, Any]) -> bool:
        if case.probe is None:
            return True
        target = folder / f"probe{self.suffix}"
        try:
            self.write_source(Case(f"the probe of {case.name}", case.probe).store(), target, options)
        except (DatasetError, InvalidArgumentError):
            return False
        delete(target)
        delete(folder / f".{target.name}.episodelake-export.json")
        return True

    def _wrong_losses(self, case: Case, lost: Mapping[str, int]) -> Iterator[str]:
        for loss in lost:
            part = part_of(loss)
            # A format may have words of its own for what only it does.
            if part in LOSSES and part not in self.cannot_hold:
                yield f"reports a loss of {part}, which `cannot_hold` does not have: {loss}"
        for part in case.lost:
            kept = part in case.facts or part in self.drops
            if not kept and not any(part_of(loss) == part for loss in lost):
                yield f"no loss names {part}: {dict(lost)}"

    def _read_back(self, case: Case, source: Any, into: Path, lost: Mapping[str, int]) -> Iterator[str]:
        store = case.store()
        try:
            report = import_dataset(source, into, **self._words(store, lost))
        except self.refusals:
            return
        except EpisodelakeError as error:
            yield f"its export cannot be imported: {error}"
            return
        both = {**lost, **report.lost}
        back = open_store(into)
        if report.format != self.reader:
            yield f"recognised as {report.format}: {report.reason}"
        for each in _differences(case, store, back):
            kept = each.part == "extra" and f"annotations {each.name}" in case.facts
            if not kept and not self.allows(each) and not each.is_named_by(both):
                yield f"{each}; lost: {both}"


def _differences(case: Case, store: EpisodeStore, back: EpisodeStore) -> Iterator[Difference]:
    kinds = [(each.observation_space, each.action_space) for each in (store, back)]
    if kinds[0] != kinds[1]:
        yield Difference("spaces", "", *kinds)
    for part, (of, expected) in case.facts.items():
        if plain(of(back)) != plain(expected):
            name, _, key = part.partition(" ")
            yield Difference(name, key, expected, of(back))
    yield from unlike(store, [*back])

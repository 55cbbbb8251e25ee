"""Entry points of formats that cannot be used: the error names the format and its package."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

import episodelake as el
from episodelake.store.common.exchange import entries


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a package `theirs` with these entry points."""

    def installed(text: str) -> None:
        info = tmp_path / "site" / "theirs-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: theirs\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(text)
        monkeypatch.setattr(sys, "path", [str(info.parent), *sys.path])
        entries.cache_clear()

    yield installed
    entries.cache_clear()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no_such_module:FORMAT", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:FORMAT", "cannot be loaded: AttributeError"),
        ("json:loads", "is a function without name, rule, detect, open: make it with Format"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(
    tmp_path: Path, install: Callable[[str], None], value: str, problem: str
) -> None:
    """A broken format is left out with a warning; asked for by its name, it is an error."""
    install(f"[episodelake.sources]\nmine = {value}\n")
    (tmp_path / "rows.csv").write_text("episode,observation,action,reward\n0,1.0,0,1.0\n0,2.0,1,1.0\n")
    named = f"^The format 'mine' of the package theirs, {value} in the group episodelake.sources, {problem}"
    with pytest.warns(RuntimeWarning, match=named):
        assert "mine" not in [each.name for each in el.formats()]
    for options in ({}, {"format": "csv"}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = el.import_dataset(tmp_path / "rows.csv", tmp_path / f"store {len(options)}", **options)
        assert (report.format, report.episodes) == ("table", 1)
        assert any("'mine'" in str(each.message) for each in caught) == (not options)
    with pytest.raises(el.errors.MissingPackageError, match=named):
        el.import_dataset(tmp_path / "rows.csv", tmp_path / "no", format="mine")


def test_a_target_without_its_decorator_is_named(tmp_path: Path, install: Callable[[str], None]) -> None:
    """A bare function is no target; the error says what makes one of it."""
    install("[episodelake.targets]\nmine = json:dump\n")
    rows = pl.DataFrame(
        {"episode": [0, 0], "observation": [1.0, 2.0], "action": [0, 1], "reward": [1.0, 1.0]}
    )
    el.import_dataset(rows, tmp_path / "store")
    with pytest.raises(el.errors.MissingPackageError, match=r"'mine' of .* theirs, .* with export_format"):
        el.open(tmp_path / "store").export(tmp_path / "out", format="mine")


def test_a_package_without_its_metadata_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a checkout that was installed before formats were entry points."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    entries.cache_clear()
    try:
        with pytest.raises(el.errors.MissingPackageError, match="Install the package again"):
            el.formats()
    finally:
        entries.cache_clear()

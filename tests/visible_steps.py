"""Public operations, each with one call of the system failing: the child process of `test_visible_steps.py`.

Run with the shim of `faults/` loaded. An operation either raises an error of ours and shows nothing, and the
same call then succeeds; or it succeeds and shows its change, and the same call then does what it does after a
success.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
from deltalake import DeltaTable
from gymnasium.spaces import Box, Discrete

import episodelake as el
from faults.faults import CHANGE, FAIL, LOOKS, MAKE, OPEN, STAT, SYNC, TRUNCATE, WRITE, Fault
from faults.shim import Shim

CHANGES = WRITE | MAKE | CHANGE | SYNC | TRUNCATE
#: The errors, and the kinds of calls that meet them; those that look at files are counted by themselves.
ERRORS = {
    "EIO": (errno.EIO, CHANGES, CHANGES),
    "ENOSPC": (errno.ENOSPC, WRITE | MAKE, CHANGES),
    "EMFILE": (errno.EMFILE, MAKE, CHANGES),
    "EACCES": (errno.EACCES, MAKE | CHANGE, CHANGES),
    "EIO while reading": (errno.EIO, LOOKS, LOOKS),
    "EMFILE while reading": (errno.EMFILE, OPEN, LOOKS),
    "EACCES while reading": (errno.EACCES, OPEN | STAT, LOOKS),
}
SPACES = {"observation_space": Box(-1, 1, (2,), np.float32), "action_space": Discrete(2)}


@dataclass(frozen=True)
class Operation:
    """An operation of the public API in a folder that has what `templates` makes.

    Attributes:
        call: the operation.
        done: whether its change shows, for who opens everything anew.
        again: the error of the same call after a success; None if it succeeds again.
        before: what is done unharmed before.
        look: at what the call returned, unharmed.
    """

    call: Callable[[Path], Any]
    done: Callable[[Path], bool]
    again: type[Exception] | None = None
    before: Callable[[Path], Any] = lambda folder: None
    look: Callable[[Any], Any] = lambda result: None


def record(path: Path, seeds: range, **options: Any) -> el.EpisodeStore:
    """Create a store, or open it, and write an episode for each seed."""
    store = el.open(path) if (path / "store.json").exists() else el.create(path, **SPACES, **options)
    with store.writer() as writer:
        write(writer, seeds)
    return store.refresh()


def write(writer: Any, seeds: range) -> None:
    """Write an episode for each seed."""
    for seed in seeds:
        writer.write_episode(
            observations=np.zeros((4, 2), np.float32),
            actions=[0, 1, 0],
            rewards=[float(seed)] * 3,
            terminations=True,
            truncations=False,
            seed=seed,
        )


def make_template(folder: Path) -> None:
    """A lake with two stores, a published version, and files to import and keep."""
    store = record(folder / "lake/a", range(3), card={"title": "A"})
    record(folder / "lake/a", range(3, 5))
    store.refresh()
    store.label(0, note="first")
    store.tag("old")
    store.artifacts.add(b"table", name="table")
    env = gymnasium.make("CartPole-v1")
    store.save_environment(env, name="pole")
    record(folder / "lake/b", range(10, 13)).artifacts.add(b"other", name="other")
    store.filter("seed > 0").publish(folder / "published", tag="v0")
    store.publish(folder / "published", tag="v1")
    (folder / "rows.csv").write_text(
        "episode,observation,action,reward\n"
        + "".join(f"{k // 4},{k / 100},{k % 2},1.0\n" for k in range(16))
    )


def a(folder: Path) -> el.EpisodeStore:
    """Open the first store anew."""
    return el.open(folder / "lake/a")


def _notes(folder: Path) -> list[Any]:
    return a(folder).episodes.collect()["note"].to_list()


def _advantage(folder: Path) -> None:
    store = a(folder)
    keys = store.query("select episode_id, t from steps")  # `collect` has errors of Polars
    store.annotate(keys.with_columns(advantage=1.0), on=("episode_id", "t"))


def _annotations(folder: Path) -> set[str]:
    return set(a(folder).annotations["name"])


def _segments(folder: Path) -> int:
    return len(a(folder).context.snapshot.episode_files)


def _size(episode: el.types.Episode) -> int:
    return len(episode)


def _map(folder: Path) -> None:
    a(folder).map_episodes(_size, into="size", of="episode", job_id="size")


def _opens(path: Path, episodes: int) -> bool:
    return (path / "store.json").exists() and len([each.rewards for each in el.open(path)]) == episodes


def _has_imported(path: Path) -> bool:
    """Return whether a store has each episode once, by deltalake and DuckDB alone too."""
    if not _opens(path, 4):
        return False
    files = DeltaTable(str(path / "episodes")).file_uris()
    asked = 'SELECT count(*), count(DISTINCT "metadata.source_key"), sum(length) FROM read_parquet(?)'
    counted = duckdb.execute(asked, [files]).fetchall()
    steps = DeltaTable(str(path / "steps")).file_uris()
    rows = duckdb.execute("SELECT count(*), count(reward) FROM read_parquet(?)", [steps]).fetchall()
    return counted == [(4, 4, 16)] and rows == [(20, 16)]


def _import(folder: Path, into: str) -> None:
    el.import_dataset(folder / "rows.csv", folder / into)


def _pull(folder: Path, where: str | None = None) -> el.EpisodeStore:
    return el.pull(folder / "published", folder / "pulled", where=where)


def _look(store: el.EpisodeStore, seeds: list[int], folder: str) -> None:
    """Read what a new store has, through the object that its making returned."""
    assert store.url.endswith(folder), store.url
    assert [episode.rewards[0] for episode in store] == [episode.rewards[0] for episode in store.refresh()]
    assert [episode.seed for episode in store] == seeds == store.episodes.collect()["seed"].to_list()


def _published(folder: Path) -> set[str]:
    return set(el.published(folder / "published")["tag"])


def _export(folder: Path, format: str) -> None:
    a(folder).export(folder / "exported", format=format)


def _create(folder: Path) -> el.EpisodeStore:
    return el.lake(folder / "lake").create("new", **SPACES, card={"title": "New"})


def _merge_new(folder: Path) -> None:
    el.merge([folder / "lake/a", folder / "lake/b"], folder / "merged")


EXISTS, GONE = el.errors.StoreExistsError, el.errors.VersionNotFoundError
UNKNOWN, NO_STORE = el.errors.InvalidArgumentError, el.errors.StoreNotFoundError
OPERATIONS: dict[str, Operation] = {
    "create": Operation(
        _create, lambda f: _opens(f / "lake/new", 0), EXISTS, look=lambda s: _look(s, [], "new")
    ),
    "card": Operation(lambda f: setattr(a(f), "card", {"title": "B"}), lambda f: a(f).card["title"] == "B"),
    "tag": Operation(lambda f: a(f).tag("new"), lambda f: el.open(f / "lake/a", "new").version > 0),
    "untag": Operation(lambda f: a(f).untag("old"), lambda f: "old" not in _tags(f), GONE),
    "label": Operation(lambda f: a(f).label(0, note="second"), lambda f: _notes(f)[0] == "second"),
    "annotate": Operation(_advantage, lambda f: "advantage" in _annotations(f)),
    "drop_annotation": Operation(
        lambda f: a(f).drop_annotation("note"), lambda f: "note" not in _annotations(f), UNKNOWN
    ),
    "rename": Operation(
        lambda f: a(f).rename({"note": "text"}), lambda f: "text" in _annotations(f), UNKNOWN
    ),
    "split": Operation(
        lambda f: a(f).split({"train": 0.5, "val": 0.5}), lambda f: "split" in _annotations(f)
    ),
    "map_episodes": Operation(_map, lambda f: "size" in _annotations(f)),
    "delete": Operation(lambda f: a(f).delete("seed = 1"), lambda f: len(a(f)) == 4),
    "compact": Operation(lambda f: a(f).compact(), lambda f: _segments(f) == 1),
    "vacuum": Operation(
        lambda f: a(f).vacuum(timedelta(0)),
        lambda f: not a(f).vacuum(timedelta(0), dry_run=True).files,
        before=lambda f: (a(f).untag("old"), a(f).compact()),
    ),
    "recover": Operation(lambda f: el.recover(f / "lake/a"), lambda f: len(a(f)) == 5),
    "merge": Operation(lambda f: el.merge([f / "lake/b"], a(f)), lambda f: len(a(f)) == 8),
    "merge into a new store": Operation(_merge_new, lambda f: _opens(f / "merged", 8)),
    "copy": Operation(
        lambda f: a(f).copy(f / "copied"),
        lambda f: _opens(f / "copied", 5),
        EXISTS,
        look=lambda s: _look(s, [0, 1, 2, 3, 4], "copied"),
    ),
    "publish": Operation(
        lambda f: a(f).publish(f / "published", tag="v2"), lambda f: "v2" in _published(f), EXISTS
    ),
    "publish first": Operation(
        lambda f: a(f).publish(f / "first", tag="v1"), lambda f: (f / "first/v1/store.json").exists(), EXISTS
    ),
    "pull": Operation(
        _pull, lambda f: _opens(f / "pulled", 5), EXISTS, look=lambda s: _look(s, [0, 1, 2, 3, 4], "pulled")
    ),
    "pull some": Operation(
        lambda f: _pull(f, "seed > 2"),
        lambda f: _opens(f / "pulled", 2),
        EXISTS,
        look=lambda s: _look(s, [3, 4], "pulled"),
    ),
    "export a folder": Operation(
        lambda f: _export(f, "huggingface"), lambda f: (f / "exported").exists(), EXISTS
    ),
    "export a file": Operation(lambda f: _export(f, "csv"), lambda f: (f / "exported").exists(), EXISTS),
    "import": Operation(lambda f: _import(f, "imported"), lambda f: _has_imported(f / "imported")),
    "import into a store": Operation(
        lambda f: _import(f, "target"),
        lambda f: _has_imported(f / "target"),
        before=lambda f: _empty(f / "target"),
    ),
    "draw a chart": Operation(
        lambda f: a(f).plot.returns().save(f / "chart.json"), lambda f: (f / "chart.json").is_file()
    ),
    "get an artifact": Operation(
        lambda f: a(f).artifacts.get("table", into=f / "artifact"),
        lambda f: (f / "artifact").is_file(),
    ),
    "add an artifact": Operation(
        lambda f: a(f).artifacts.add(b"new", name="new"), lambda f: "new" in _artifacts(f)
    ),
    "delete an artifact": Operation(
        lambda f: a(f).artifacts.delete("table"), lambda f: "table" not in _artifacts(f), UNKNOWN
    ),
    "save_environment": Operation(
        lambda f: a(f).save_environment(gymnasium.make("CartPole-v1"), name="again"),
        lambda f: "again" in _environments(f),
    ),
    "delete_environment": Operation(
        lambda f: a(f).delete_environment("pole"), lambda f: "pole" not in _environments(f), UNKNOWN
    ),
    "lake.rename": Operation(
        lambda f: el.lake(f / "lake").rename("b", "c"), lambda f: _opens(f / "lake/c", 3), NO_STORE
    ),
    "lake.delete": Operation(
        lambda f: el.lake(f / "lake").delete("b"), lambda f: not (f / "lake/b/store.json").exists(), NO_STORE
    ),
}


def _empty(path: Path) -> None:
    space = Box(-np.inf, np.inf, (), np.float64)
    el.create(path, observation_space=space, action_space=Box(-(2**63), 2**63 - 1, (), np.int64))


def _tags(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "lake/a/tags").glob("*.json")}


def _artifacts(folder: Path) -> set[str]:
    return set(a(folder).artifacts.list()["name"])


def _environments(folder: Path) -> set[str]:
    return set(a(folder).environments()["name"])


class Trials:
    """Trials of one operation in a folder, each in a copy of the template."""

    def __init__(self, folder: Path, shim: Shim) -> None:
        self._folder, self._shim = folder, shim
        make_template(folder / "template")

    def _laid_out(self, operation: Operation) -> Path:
        folder = self._folder / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / "template", folder)
        operation.before(folder)
        return folder

    def _run(self, operation: Operation, folder: Path, faults: list[Fault], counted: int) -> str | None:
        """Return the error of the call; None if it succeeded."""
        self._shim.arm(folder, self._folder / "log", faults, kinds=counted)
        try:
            result = operation.call(folder)
        except Exception as error:
            raw = "" if isinstance(error, el.EpisodelakeError) else f"{FOREIGN} "
            return f"{raw}{type(error).__name__}: {error}"
        finally:
            self._shim.disarm()
        operation.look(result)
        return None

    def count(self, operation: Operation, counted: int) -> int:
        """Return how many calls of some kinds it makes."""
        wrong = self._run(operation, self._laid_out(operation), [], counted)
        assert wrong is None, wrong
        return self._shim.points // 2

    def wrong(self, name: str, operation: Operation, error: str, call: int) -> str | None:
        """Let one call fail; return what is wrong with what came of it, None if nothing is."""
        number, kinds, counted = ERRORS[error]
        folder = self._laid_out(operation)
        fault = Fault(2 * call, 2 * call, FAIL, number, kinds)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            raised = self._run(operation, folder, [fault], counted)
        if not self._shim.acted:
            return None
        line = (self._folder / "log").read_text().splitlines()[-1].split("\t")
        where = f"{name}: {error} at call {call} ({line[2]} {line[4]}): raised {raised!s:.300}"
        done = operation.done
        if raised is not None and raised.startswith(FOREIGN):
            return where
        if raised is None and not done(folder):
            return f"{where}; it shows nothing; warned {[str(each.message) for each in warned]}"
        if raised is not None and name not in GRADUAL and self._shows(operation, folder):
            return f"{where}; it shows"
        again = self._run(operation, folder, [], counted)
        expected = None if raised is not None or operation.again is None else operation.again.__name__
        # After a warning that something is left to be deleted, the same call deletes it.
        kinds = {expected, None} if warned else {expected}
        if (again and again.partition(":")[0]) not in kinds:
            return f"{where}; again: {again}"
        return None if done(folder) else f"{where}; shows nothing after the second call"

    @staticmethod
    def _shows(operation: Operation, folder: Path) -> bool:
        try:
            return operation.done(folder)
        except el.EpisodelakeError:
            return False


#: Before the name of an error that is not of our tree.
FOREIGN = "foreign"
#: Operations that change a thing after the other, and whose change shows when the last one is left, or that
#: write in place.
GRADUAL = ("vacuum", "recover", "draw a chart")


def main(folder: Path, names: list[str], most: int) -> list[str]:
    """Strike each operation at its last calls and at some before; return what is wrong."""
    trials, wrong = Trials(folder, Shim()), []
    for name in names:
        operation, counts = OPERATIONS[name], {}
        operation.call(trials._laid_out(operation))  # so that libraries have opened what they keep
        for error, (_, _, counted) in ERRORS.items():
            if counted not in counts:
                counts[counted] = trials.count(operation, counted)
            count = counts[counted]
            calls = {*range(max(0, count - most // 2 - 1), count + 1)}
            calls |= {*np.linspace(0, count, min(most, count) + 1).astype(int).tolist()}
            for call in sorted(calls):
                try:
                    found = trials.wrong(name, operation, error, call)
                except Exception as problem:
                    found = f"{name}: {error} at call {call}: {type(problem).__name__} {problem}"
                if found is not None:
                    wrong.append(found)
                    print(found, file=sys.stderr, flush=True)
    return wrong


if __name__ == "__main__":
    chosen = sys.argv[3:] or list(OPERATIONS)
    print(json.dumps(main(Path(sys.argv[1]).resolve(), chosen, int(sys.argv[2])), indent=1))

"""Mutation fuzzing: a changed file of a store gives the right data or an error, never anything else.

A small store with every kind of column, and the journal of a writer that died, is made once. Each mutation
changes one file of a linked copy: bytes flipped, the end cut off, one field of a Delta log replaced, another
file put in its place. A child process with bounded memory and time then reads everything there is, through
episodes, Polars, DuckDB and recovery; what it found is compared with what the whole store gives.

Children are forked from a process that has imported everything and used none of it, so that no thread and no
lock of an engine is copied into them. The mutations are drawn from fixed seeds.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pickle
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from waiting import PATIENCE, wait_for_journal

MEMORY = 4 << 30
RESIDENT = 400 << 20
WORKERS = 2
OBSERVATION = spaces.Dict(
    {
        "frame": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "position": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "trail": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64)),
        "word": spaces.Text(12),
    }
)
ACTION = spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float64)])


# The store


def observation(number: int, t: int) -> dict[str, Any]:
    """Observation t of an episode, by a rule."""
    return {
        "frame": ((np.arange(48).reshape(4, 4, 3) * (number + 1) + t) % 256).astype(np.uint8),
        "position": np.array([number, t, np.nan if t == 1 else -t / 3], np.float32),
        "trail": tuple(np.array([index / 7, -t / 9]) for index in range((number + t) % 3)),
        "word": "abcdefgh"[: (number + t) % 8],
    }


def info(number: int, t: int) -> dict[str, Any]:
    """Info t of an episode, with a column of every kind and something that no column takes."""
    found: dict[str, Any] = {"speed": t / 3, "count": t * number, "good": t % 2 == 0, "name": f"n{t}"}
    found |= {"list": [t, 2], "mask": np.arange(t % 3, dtype=np.int8), "grid": np.full((2, 2), t / 2)}
    return found | ({"odd": {"deep": [t, "x", None]}} if t % 2 else {})


def write(writer: el.EpisodeWriter, number: int, steps: int) -> el.types.OpenEpisode:
    """Begin an episode and write its first steps."""
    settings: dict[str, Any] = {"seed": number if number % 2 else 2**63 + number, "options": {"low": number}}
    episode = writer.begin(
        observation(number, 0), info(number, 0), metadata={"level": number, "tag": ["a", "b"]}, **settings
    )
    for t in range(steps):
        episode.append(
            ((number + t) % 4, np.array([t / 7, -number / 9])),
            number + t / 4,
            observation(number, t + 1),
            terminated=t == 7,
            info=info(number, t + 1),
            policy={"log_prob": -t / 5, "logits": np.array([t, 1.5], np.float32)},
            extra={"height": t / 6},
        )
    return episode


def make_store(path: Path) -> None:
    """Make the store: two runs that closed, and one that died with a sealed segment and two journal parts."""
    store = el.create(path, observation_space=OBSERVATION, action_space=ACTION, card={"about": "größe"})
    with store.writer(run="first", metadata={"algorithm": "rule"}) as writer:
        write(writer, 0, 8).end()
        write(writer, 1, 3).end()
        writer.seal()
        write(writer, 2, 5).end({"score": 1.5})
    with store.writer(run="second") as writer:
        write(writer, 3, 8).end()
        writer.begin(observation(4, 0), {"late": 1}).append((0, np.zeros(2)), 1.0, observation(4, 1))
    ids = store.refresh().episodes.select("episode_id", label=pl.col("number") * 2).collect()
    store.annotate(ids, on="episode_id")
    steps = store.transitions.select("episode_id", "t", advantage=pl.col("reward") / 2).collect()
    store.annotate(steps, on=("episode_id", "t"))
    store.tag("kept")
    writer = store.writer(run="dead", flush_seconds=0.01, seal_seconds=1e6)
    write(writer, 0, 8).end()
    unfinished = write(writer, 1, 4)
    writer.seal()
    write(writer, 2, 8).end()
    journal = path / "journal" / writer.run_id
    for t in range(4, 6):
        wait_for_journal(journal, t + 8, ended=1, first=1)
        unfinished.append((t % 4, np.zeros(2)), 1 + t / 4, observation(1, t + 1), info=info(1, t + 1))
    wait_for_journal(journal, 6 + 8, ended=1, first=1)


# Reading everything


def plain(value: Any) -> Any:
    """Nested tuples of texts and bytes that are equal only for equal values, dtypes and shapes."""
    match value:
        case np.generic():
            return plain(value.item())
        case int():
            return (type(value).__name__, hex(value))
        case np.ndarray():
            return (value.dtype.str, value.shape, value.tobytes())
        case dict():
            return tuple((key, plain(one)) for key, one in value.items())
        case list() | tuple():
            return (type(value).__name__, *map(plain, value))
    return (type(value).__name__, repr(value))


def digest(value: Any) -> str:
    """A short text for `plain` of a value."""
    return hashlib.sha256(pickle.dumps(plain(value))).hexdigest()[:16]


def row(batch: Any, index: int) -> Any:
    """One value of a batch of an episode."""
    if isinstance(batch, dict):
        return {key: row(part, index) for key, part in batch.items()}
    return tuple(row(part, index) for part in batch) if isinstance(batch, tuple) else batch[index]


def rows_of(episode: el.Episode) -> list[str]:
    """A digest of each transition with the observations around it."""
    seen, done, infos = episode.observations, episode.actions, episode.infos
    steps = range(episode.length)
    parts = [episode.rewards, episode.terminations, episode.truncations]
    named = {**episode.policy, **episode.extra, **episode.step_annotations}
    return [
        digest(
            [
                [row(seen, t), row(seen, t + 1), row(done, t), infos[t], infos[t + 1]],
                [part[t] for part in parts],
                {key: row(values, t) for key, values in named.items() if row(values, t) is not None},
            ]
        )
        for t in steps
    ]


def head_of(episode: el.Episode) -> tuple[str, str]:
    """A digest of what an episode says of itself as a whole, and its end reason.

    When a recovered episode ended is a guess from the journal's files, so it does not count there.
    """
    names = ("run_id", "number", "env_index", "started_at", "length", "episode_return")
    names += ("terminated", "truncated", "end_reason", "seed", "options", "metadata", "annotations")
    head = {name: getattr(episode, name) for name in names}
    ended = None if episode.end_reason == "interrupted" else episode.ended_at
    return digest([head, ended]), episode.end_reason


def read_episodes(path: Path) -> dict[str, Any]:
    """Every episode by its id."""
    store = el.open(path)
    spaces_read = digest([repr(store.observation_space), repr(store.action_space), store.reward_shape])
    found = {episode.id: (*head_of(episode), rows_of(episode)) for episode in store}
    one = store[len(store) - 1]
    agreed = found[one.id] == (*head_of(one), rows_of(one))
    return {"spaces": spaces_read, "episodes": (len(store), agreed), **found}


TABLES = ("episodes", "steps", "transitions", "runs")
CONDITION = "episode_return > 10 and length = 8 and episode_id > 'e' and \"metadata.level\" < 3"
COUNTS = (
    "select count(*) from {}",
    "select count(*) from {} where run_id < 'n'",
    "select min(run_id), max(run_id) from {}",
)
SUMS = (
    "select count(*), min(t), max(t), sum(reward) from steps",
    'select count(*) from steps where t = 4 and "info.count" >= 4',
    "select count(*) from steps join episodes using (episode_id) where length > 4",
    "select max(episode_return), min(length), max(number) from episodes where seed is not null",
)


def read_polars(path: Path) -> dict[str, Any]:
    """Every table as a Polars frame, and a few filters that statistics can answer."""
    store = el.open(path, check_pages=True)
    found: dict[str, Any] = {name: digest(getattr(store, name).collect().to_dicts()) for name in TABLES}
    found["filter"] = store.episodes.filter(pl.col("episode_return") > 10).select("episode_id").collect()
    found["steps"] += str(store.steps.filter(pl.col("t") == 4).select(pl.len()).collect().item())
    found["filter"] = found["filter"].rows()
    return found


def read_duckdb(path: Path) -> dict[str, Any]:
    """Every table through SQL, and counts that statistics can answer."""
    store = el.open(path, check_pages=True)
    found: dict[str, Any] = {}
    for name in TABLES:
        found[name] = digest(sorted(map(repr, store.sql(f"from {name}").fetchall())))
    for number, text in enumerate(
        (*(text.format(name) for text in COUNTS for name in ("episodes", "runs")), *SUMS)
    ):
        found[str(number)] = store.sql(text).fetchall()
    return found


def read_confined(path: Path) -> dict[str, Any]:
    """Every table through a connection that can read nothing else."""
    with el.open(path).connect(read_only=True) as connection:
        return {name: digest(sorted(map(repr, connection.sql(f"from {name}").fetchall()))) for name in TABLES}


def read_filters(path: Path) -> dict[str, Any]:
    """Conditions on episodes, as SQL and as an expression."""
    store = el.open(path, check_pages=True)
    found = {CONDITION: [episode.id for episode in store.filter(CONDITION)]}
    found["pl"] = [episode.id for episode in store.filter(pl.col("length") < 5)]
    return found


def read_card(path: Path) -> Any:
    """The dataset card."""
    return el.open(path).card


def read_tags(path: Path) -> Any:
    """The tags, and what one of them shows."""
    store = el.open(path)
    return {**store.tags, "kept episodes": [episode.id for episode in el.open(path, version="kept")]}


def read_history(path: Path) -> Any:
    """The commits."""
    return digest(el.open(path).history().to_dicts())


def recover(path: Path) -> dict[str, Any]:
    """Recover the dead run, and read all its episodes; say whether damage was told."""
    try:
        told = any(run.torn_bytes for run in el.recover(path))
    except el.errors.CorruptStoreError:
        told = True
    told |= any(path.glob("journal/*.damaged"))
    return {"told": told, "episodes": read_episodes(path)}


READERS: dict[str, Callable[[Path], Any]] = {
    "episodes": read_episodes,
    "filters": read_filters,
    "card": read_card,
    "tags": read_tags,
    "history": read_history,
    "polars": read_polars,
    "duckdb": read_duckdb,
    "confined": read_confined,
    "recover": recover,
}
LAZY = {
    "polars": (pl.exceptions.PolarsError, pl.exceptions.PanicException, FileNotFoundError),
    "duckdb": (duckdb.Error,),
    "confined": (duckdb.Error,),
}


def examine(path: Path, readers: list[str]) -> dict[str, tuple[str, Any]]:
    """What each reader found: ("value", it), ("error", text) or ("stray", text) for an error of no tree."""
    found: dict[str, tuple[str, Any]] = {}
    for name in readers:
        try:
            found[name] = ("value", READERS[name](path))
        except (el.EpisodelakeError, *LAZY.get(name, ())) as error:
            found[name] = ("error", f"{type(error).__name__}: {error}"[:300])
        except BaseException as error:
            found[name] = ("stray", f"{type(error).__module__}.{type(error).__name__}: {error}"[:300])
    return found


# Mutations


@dataclass(frozen=True)
class Mutation:
    """One change of one file of the store: `file` gets `content`, or goes if that is None."""

    file: str
    part: str
    how: str
    content: bytes | None


def flip(data: bytes, at: int, mask: int) -> bytes:
    """The data with some bits of one byte changed."""
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def part_of(file: str, data: bytes, at: int) -> str:
    """Which part of a file a byte belongs to, for the report."""
    kind = kind_of(file)
    if not file.endswith(".parquet"):
        return kind
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    return f"{kind} {'footer' if at >= footer else 'pages'}"


def kind_of(file: str) -> str:
    """The class of a file, for the report."""
    top, _, rest = file.partition("/")
    if rest.startswith("_delta_log"):
        return f"{top} log"
    alone = {name: name for name in ("store.json", "card.json", "journal", "tags")}
    return alone.get(top, f"{top} Parquet")


def byte_mutations(files: dict[str, bytes], random: Random, each: int) -> Iterator[Mutation]:
    """Flip, overwrite, cut out and put in bytes at random places of each file; in footers as often again."""
    for file, data in files.items():
        regions = [(0, len(data))]
        if file.endswith(".parquet"):
            regions.append((len(data) - 8 - struct.unpack("<I", data[-8:-4])[0], len(data)))
        for start, stop in regions:
            for _ in range(each if stop > start else 0):
                at = random.randrange(start, stop)
                part = part_of(file, data, at)
                size = random.choice((1, 2, 4, 8))
                match random.randrange(6):
                    case 0 | 1:
                        yield Mutation(file, part, f"bit at {at}", flip(data, at, 1 << random.randrange(8)))
                    case 2:
                        yield Mutation(file, part, f"byte at {at}", flip(data, at, random.randrange(1, 256)))
                    case 3:
                        content = data[:at] + random.randbytes(size) + data[at + size :]
                        yield Mutation(file, part, f"{size} bytes at {at} overwritten", content)
                    case 4:
                        yield Mutation(
                            file, part, f"{size} bytes at {at} cut out", data[:at] + data[at + size :]
                        )
                    case _:
                        content = data[:at] + data[at : at + size] + data[at:]
                        yield Mutation(file, part, f"{size} bytes at {at} repeated", content)


def whole_mutations(files: dict[str, bytes], random: Random) -> Iterator[Mutation]:
    """Cut off, empty, delete, extend, double each file, and put another of its kind in its place."""
    for file, data in files.items():
        kind = kind_of(file)
        yield Mutation(file, kind, "deleted", None)
        yield Mutation(file, kind, "emptied", b"")
        yield Mutation(file, kind, "doubled", data * 2)
        yield Mutation(file, kind, "zeroed", bytes(len(data)))
        yield Mutation(file, kind, "extended", data + random.randbytes(16))
        for size in (1, len(data) // 2, len(data) - 8, len(data) - 1):
            if 0 < size < len(data):
                yield Mutation(file, kind, f"cut to {size}", data[:size])
        for other, content in files.items():
            if kind_of(other) == kind and content != data:
                yield Mutation(file, kind, f"replaced by {other}", content)


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of nested JSON with one place changed; `...` removes it."""
    if not place:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    if new is ... and len(place) == 1:
        del copied[place[0]]
    else:
        copied[place[0]] = changed(copied[place[0]], place[1:], new)
    return copied


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The path and the value of everything in nested JSON."""
    if above:
        yield above, value
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*above, key))


def other_values(value: Any) -> list[Any]:
    """What to put in place of a JSON value: others of its type, and some of another."""
    match value:
        case bool():
            return [not value, None, "x"]
        case int():
            return [value + 1, value - 1, 0, -1, 2**62, str(value)]
        case str():
            return [value + "x", value[:-1], "", 5, value.swapcase()]
    return [{}, [], None, 0]


def field_mutations(files: dict[str, bytes]) -> Iterator[Mutation]:
    """Change and remove every field of every Delta log entry, and of the texts of JSON inside of them."""
    for file, data in files.items():
        if not (kind_of(file).endswith(" log") and file.endswith(".json")):
            continue
        lines = [json.loads(line) for line in data.splitlines()]
        for number, line in enumerate(lines):
            for place, value in places(line):
                for new in (..., *other_values(value)):
                    content = [*lines[:number], changed(line, place, new), *lines[number + 1 :]]
                    yield _log_mutation(file, place, new, content)
                if isinstance(value, str) and value.startswith("{"):
                    yield from _inner_mutations(file, lines, number, place, json.loads(value))
        for number in range(len(lines)):
            yield _log_mutation(
                file, (next(iter(lines[number])),), "gone", lines[:number] + lines[number + 1 :]
            )


def _inner_mutations(
    file: str, lines: list[Any], number: int, place: tuple[Any, ...], inner: Any
) -> Iterator[Mutation]:
    for deeper, value in places(inner):
        for new in (..., *other_values(value)):
            text = json.dumps(changed(inner, deeper, new))
            content = [*lines[:number], changed(lines[number], place, text), *lines[number + 1 :]]
            yield _log_mutation(file, (*place, *deeper), new, content)


def _log_mutation(file: str, place: tuple[Any, ...], new: Any, lines: list[Any]) -> Mutation:
    field = ".".join("*" if isinstance(key, int) else str(key) for key in place)
    how = f"{'.'.join(map(str, place))} = {'removed' if new is ... else repr(new)[:40]}"
    content = "\n".join(map(json.dumps, lines)).encode()
    return Mutation(file, f"{kind_of(file)} field {field}", how, content)


# Children


def copy_linked(template: Path, path: Path) -> None:
    """Copy a store by linking its files; locks are copied, since a lock belongs to the file."""

    def take(source: str, target: str) -> None:
        if source.endswith(".lock"):
            shutil.copyfile(source, target)
        else:
            os.link(source, target)

    shutil.copytree(template, path, copy_function=take)


def in_child(work: Callable[[], Any]) -> dict[str, Any]:
    """Run something in a fork of this process: how it ended, its memory, and its result or traceback."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(receive)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Polars prints each panic of its threads
            try:
                result, code = work(), 0
            except BaseException:
                result = traceback.format_exc()
            with open(send, "wb") as pipe:
                pickle.dump(result, pipe)
        finally:
            os._exit(code)
    os.close(send)
    chunks: list[bytes] = []
    stop = time.monotonic() + PATIENCE
    with open(receive, "rb", buffering=0) as pipe:
        while time.monotonic() < stop and select.select([pipe], [], [], stop - time.monotonic())[0]:
            chunk = pipe.read(1 << 20)
            if not chunk:
                break
            chunks.append(chunk)
        else:
            os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    whole = b"".join(chunks)
    ended = os.waitstatus_to_exitcode(status)
    return {
        "ended": ended,
        "resident": usage.ru_maxrss << 10,
        "found": pickle.loads(whole) if ended in (0, 1) else None,
    }


def examine_mutated(template: Path, file: str | None, content: bytes | None, readers: list[str]) -> Any:
    """Examine a linked copy of a store in which one file has another content, or is gone."""
    with tempfile.TemporaryDirectory(dir=template.parent) as folder:
        path = Path(folder) / "store"
        copy_linked(template, path)
        if file is not None:
            (path / file).unlink()
            if content is not None:
                (path / file).write_bytes(content)
        return examine(path, readers)


def serve() -> None:
    """Answer jobs from the standard input, each in a fork: a module, a function in it, and arguments."""
    while True:
        try:
            module, function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        work = getattr(importlib.import_module(module), function)
        answer = in_child(lambda work=work, arguments=arguments: work(*arguments))
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


class Workers:
    """Processes that fork a child for each job."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "2"}
        # The limit counts addresses, of which glibc reserves 64 MB for each thread that allocates.
        environment["MALLOC_ARENA_MAX"] = "2"
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._all = [
            subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            for _ in range(WORKERS)
        ]
        for process in self._all:
            self._free.put(process)

    def run(self, work: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Call a function of a test module in a child: how it ended, its memory, and what it returned."""
        process = self._free.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump((Path(work.__code__.co_filename).stem, work.__name__, arguments), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes."""
        for process in self._all:
            process.kill()
            process.communicate(timeout=PATIENCE)


# Judging

ENGINES = ["episodes", "filters", "history", "polars", "duckdb"]


def readers_for(mutation: Mutation) -> list[str]:
    """The readers that a file can lead astray."""
    kind = kind_of(mutation.file)
    alone = {"journal": ["recover"], "card.json": ["card"], "store.json": ["episodes"], "tags": ["tags"]}
    return alone.get(kind, ENGINES)


def faults(answer: dict[str, Any], truth: dict[str, tuple[str, Any]]) -> dict[str, str]:
    """What is wrong with an answer, by reader: a crash, much memory, an error of no tree, wrong data."""
    if answer["ended"]:
        return {"process": f"ended with {answer['ended']}"}
    found = {"process": f"{answer['resident'] >> 20} MB"} if answer["resident"] > RESIDENT else {}
    for name, (outcome, what) in answer["found"].items():
        if outcome == "stray":
            found[name] = what
        elif outcome == "value" and name == "recover":
            text = wrong_recovery(what, truth[name][1])
            found |= {name: text} if text else {}
        elif outcome == "value" and what != truth[name][1]:
            found[name] = f"wrong data: {difference(what, truth[name][1])}"
    return found


def difference(found: Any, right: Any) -> str:
    """Where two results differ, in a few words."""
    if not isinstance(found, dict):
        return "other"
    missing = sorted(set(right) - set(found))
    return (
        f"without {missing}" if missing else str([key for key in found if found[key] != right.get(key)])[:200]
    )


def wrong_recovery(found: dict[str, Any], right: dict[str, Any]) -> str | None:
    """What is wrong with recovered episodes: each is whole, or the beginning of the right one and told."""
    lost = False
    for name in found["episodes"].keys() - {"spaces", "episodes"}:
        head, reason, rows = found["episodes"][name]
        if name not in right["episodes"]:
            return f"invented {name}"
        right_head, _, right_rows = right["episodes"][name]
        if rows != right_rows[: len(rows)]:
            return f"wrong rows in {name}"
        if len(rows) < len(right_rows):
            lost = True
            if reason != "interrupted":
                return f"{name} is cut and says {reason}"
        elif head != right_head and reason != "interrupted":
            return f"wrong head of {name}"
        elif head != right_head:
            lost = True
    if (lost or set(found["episodes"]) != set(right["episodes"])) and not found["told"]:
        return "lost rows and did not tell"
    return None


# The tests


def store_files(path: Path) -> dict[str, bytes]:
    """Every file of a store that has content, by its path in the store."""
    found = sorted(entry for entry in path.rglob("*") if entry.is_file() and entry.suffix != ".lock")
    return {str(entry.relative_to(path)): entry.read_bytes() for entry in found}


def is_lawful(mutation: Mutation, files: dict[str, bytes]) -> bool:
    """Whether a change leaves what an owner, a crash or an earlier copy of the store may leave.

    That is: no card, or another JSON object in it; an empty last journal part; a journal without a part,
    which is gone once it is sealed; a log without its last commit; no values of an annotation for a segment.
    """
    if mutation.file == "card.json":
        return mutation.content is None or is_object(mutation.content)
    if mutation.how not in ("deleted", "emptied"):
        return False
    folder = mutation.file.rpartition("/")[0]
    last = mutation.file == max(file for file in files if file.rpartition("/")[0] == folder)
    if folder.endswith("_delta_log"):
        return last and mutation.how == "deleted"
    if folder.startswith("annotations/") and mutation.file.endswith(".parquet"):
        return mutation.how == "deleted"
    parts = [file for file in files if file.endswith(".frames")]
    return mutation.file in parts and (mutation.how == "deleted" or mutation.file == max(parts))


def is_object(text: bytes) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def draw(source: str, files: dict[str, bytes], random: Random) -> list[Mutation]:
    """All mutations of one source, in an order drawn with `random`."""
    tables = {file: data for file, data in files.items() if kind_of(file) != "journal"}
    journal = {file: data for file, data in files.items() if file.endswith(".frames")}
    parquet = {file: data for file, data in tables.items() if file.endswith(".parquet")}
    texts = {file: data for file, data in tables.items() if file.endswith(".json")}
    found = {
        "bytes of Parquet files": lambda: byte_mutations(parquet, random, 100),
        "bytes of JSON files": lambda: byte_mutations(texts, random, 100),
        "bytes of journals": lambda: byte_mutations(journal, random, 400),
        "fields of logs": lambda: field_mutations(files),
        "whole files": lambda: whole_mutations(files, random),
    }[source]()
    drawn = [mutation for mutation in found if not is_lawful(mutation, files)]
    random.shuffle(drawn)
    return drawn


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Processes that fork the children."""
    found = Workers()
    yield found
    found.close()


@pytest.fixture(scope="module")
def template(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that is changed."""
    path = tmp_path_factory.mktemp("fuzzing") / "template"
    answer = workers.run(make_store, path)
    assert answer["ended"] == 0, answer["found"]
    return path


@pytest.fixture(scope="module")
def truth(workers: Workers, template: Path) -> dict[str, tuple[str, Any]]:
    """What every reader finds in the store as it is."""
    answer = workers.run(examine_mutated, template, None, None, list(READERS))
    assert {outcome for outcome, _ in answer["found"].values()} == {"value"}, answer
    return answer["found"]


def unnoticed(
    workers: Workers, template: Path, truth: dict[str, tuple[str, Any]], mutations: list[Mutation]
) -> list[str]:
    """Examine mutated stores, print how many there were of each class, and say what went wrong."""

    def one(mutation: Mutation) -> dict[str, str]:
        answer = workers.run(
            examine_mutated, template, mutation.file, mutation.content, readers_for(mutation)
        )
        return faults(answer, truth)

    with ThreadPoolExecutor(WORKERS) as pool:
        answers = list(zip(mutations, pool.map(one, mutations), strict=True))
    wrong = Counter(mutation.part for mutation, found in answers if found)
    for part, count in sorted(Counter(mutation.part for mutation in mutations).items()):
        print(f"{part}: {count} mutations, {wrong[part]} with faults")
    return [
        f"{mutation.file}, {mutation.how}: {reader}: {what}"
        for mutation, found in answers
        for reader, what in found.items()
    ]


SOURCES = (
    "bytes of journals",
    "bytes of Parquet files",
    "bytes of JSON files",
    "fields of logs",
    "whole files",
)


def test_the_store_reads_alike_twice(
    workers: Workers, template: Path, truth: dict[str, tuple[str, Any]]
) -> None:
    """Without a mutation there is no fault; with another store's data there is one for each reader."""
    answer = workers.run(examine_mutated, template, None, None, list(READERS))
    assert faults(answer, truth) == {}
    other = {
        "ended": 0,
        "resident": 0,
        "found": {name: ("value", "else") for name in READERS if name != "recover"},
    }
    assert set(faults(other, truth)) == set(READERS) - {"recover"}
    lost = {"told": False, "episodes": dict(list(truth["recover"][1]["episodes"].items())[:-1])}
    assert wrong_recovery(lost, truth["recover"][1]) == "lost rows and did not tell"


@pytest.mark.parametrize("source", SOURCES)
def test_a_mutated_store_gives_right_data_or_an_error(
    workers: Workers, template: Path, truth: dict[str, tuple[str, Any]], source: str
) -> None:
    """However a file is changed, every reader gives the right data or an error of the tree."""
    mutations = draw(source, store_files(template), Random(0))[:2]
    found = unnoticed(workers, template, truth, mutations)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_many_mutations_give_right_data_or_an_error(
    workers: Workers, template: Path, truth: dict[str, tuple[str, Any]], source: str
) -> None:
    """The same with many more mutations; EPISODELAKE_MUTATIONS says how many of each source, 0 for all."""
    most = int(os.environ.get("EPISODELAKE_MUTATIONS", "1000")) or None
    mutations = draw(source, store_files(template), Random(1))[:most]
    found = unnoticed(workers, template, truth, mutations)
    assert not found, "\n".join(found)


if __name__ == "__main__":
    serve()

"""Annotations computed by a function of an episode, in this process and in others, also interrupted ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.readers.tasks import Address
from episodelake.store.common.engines import Engine
from episodelake.testing.adapters import case
from test_ray_reading import LENGTHS, SPACES, recorded
from waiting import PATIENCE, closed_while_a_thread_begins, wait_until

STEP = ("episode_id", "t")


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """Eight episodes of vectors, in several groups."""
    return recorded(tmp_path / "s", *SPACES["vectors"])[0]


def undiscounted(episode: Any) -> np.ndarray:
    """The rewards to go, of each transition."""
    return np.cumsum(episode.rewards[::-1])[::-1]


def by_observation(episode: Any) -> dict[str, Any]:
    """Values of T + 1 rows: a vector, a text, a flag, a number with NaN, a list with NULLs."""
    means = episode.observations.mean(2)
    return {
        "place": means,
        "word": [f"w{t}" for t in range(len(means))],
        "high": means[:, 0] > 0,
        "depth": np.where(means[:, 0] > 0, np.nan, means[:, 0]).astype(np.float32),
        "count": [None if t % 2 else t for t in range(len(means))],
    }


def of_episode(episode: Any) -> dict[str, Any]:
    """A number, an embedding, a text, a flag, and one that is NULL for some."""
    long = len(episode) > 5
    return {
        "best": episode.rewards.max(),
        "vector": episode.observations.mean((0, 1)).astype(np.float32),
        "kind": "long" if long else "short",
        "good": long,
        "size": len(episode) if long else None,
    }


def rows(frame: pl.LazyFrame, *names: str) -> list[Any]:
    """The values of columns, with NaN in a form that is equal to itself."""
    return [repr(row) for row in frame.select(names).collect().rows()]


def expected_rows(store: el.EpisodeStore, function: Callable[[Any], Any], names: list[str]) -> list[Any]:
    """What `rows` gives for T + 1 rows of each episode, by a plain loop."""
    lines = []
    for episode in store:
        values = {name: list(np.asarray(each, object)) for name, each in function(episode).items()}
        for t in range(len(episode) + 1):
            line = [plain(values[name][t]) if t < len(values[name]) else None for name in names]
            lines.append(repr((episode.id, t, *line)))
    return lines


def plain(value: Any) -> Any:
    """A value in types of Python, as frames give it."""
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def check_values(store: el.EpisodeStore, **where: Any) -> None:
    """Annotations of steps and episodes are those of a plain loop, each call one version."""
    version = store.version
    report = store.map_episodes(undiscounted, "to_go", of="step", **where)
    assert (report.episodes, report.resumed, report.present) == (len(LENGTHS), 0, False)
    function, names = by_observation, list(by_observation(store[0]))
    store.map_episodes(function, names, of="step", **where)
    expected = expected_rows(store, lambda episode: {"to_go": undiscounted(episode)}, ["to_go"])
    assert rows(store.steps, *STEP, "to_go") == expected
    found = store.steps.select(*STEP, *names).collect()
    wanted = expected_rows(store, function, names)
    assert [repr((*row[:2], *plain(list(row[2:])))) for row in found.rows()] == wanted
    names = list(of_episode(store[0]))
    store.map_episodes(of_episode, names, of="episode", **where)
    found = store.episodes.select(names).collect().rows(named=True)
    assert found == [{name: plain(value) for name, value in of_episode(each).items()} for each in store]
    assert store.version == version + 3 and not store.verify().faults
    assert not list(store.path.glob(".writing/*"))


@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.further)])
def test_values_are_those_of_a_loop(store: el.EpisodeStore, workers: int | None) -> None:
    """Numbers, vectors, texts, flags, NaN and NULL of steps and episodes, in this process and in others."""
    check_values(store, workers=workers)


def test_types_that_differ(store: el.EpisodeStore) -> None:
    """Integers become doubles where they are exact; other mixtures name an episode of each type."""
    store.map_episodes(lambda one: len(one) if len(one) > 5 else 0.5, "mixed", of="episode")
    mixed = [float(length) if length > 5 else 0.5 for length in LENGTHS]
    assert store.episodes.collect()["mixed"].to_list() == mixed
    store.map_episodes(lambda one: one.rewards if len(one) > 5 else np.ones(len(one), int), "x", of="step")
    assert store.steps.collect()["x"].dtype == pl.Float64
    version = store.version
    for function in (
        lambda one: len(one) if len(one) > 5 else "short",
        lambda one: [1.0] if len(one) > 5 else 1.0,
        lambda one: 2**60 + 1 if len(one) > 5 else 0.5,
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match="Nothing was committed"):
            store.map_episodes(function, "bad", of="episode")
    assert store.refresh().version == version and len(store.annotations) == 2


def test_types_that_differ_are_reported_with_the_second_one(store: el.EpisodeStore) -> None:
    """A job ends when an episode has another type than one before, in this call or in that it resumes."""
    calls: list[str] = []

    def second_differs(one: Any) -> Any:
        calls.append(one.id)
        return "x" if len(calls) == 2 else 0.5

    with pytest.raises(el.errors.InvalidArgumentError, match=r"double in the episode .*, and string in"):
        store.map_episodes(second_differs, "bad", of="episode", job_id="a")
    assert len(calls) < len(LENGTHS)
    calls.clear()
    with pytest.raises(el.errors.InvalidArgumentError, match=r"double in the episode .*, and string in"):
        store.map_episodes(lambda one: calls.append(one.id) or "x", "bad", of="episode", job_id="a")
    assert len(calls) < len(LENGTHS)
    store.map_episodes(lambda one: 0.5, "bad", of="episode", job_id="a")
    assert store.refresh().episodes.collect()["bad"].to_list() == [0.5] * len(LENGTHS)


def test_lists_without_values_and_masked_values(store: el.EpisodeStore) -> None:
    """Empty lists take the type of the others; what a mask hides is NULL; scalars may be arrays."""
    values = {
        "events": [[] if length > 5 else [length] for length in LENGTHS],
        "gaps": [[None] if length > 5 else ["x"] for length in LENGTHS],
        "size": list(map(float, LENGTHS)),
    }
    by_length = {length: place for place, length in enumerate(LENGTHS)}

    def of_values(one: Any) -> dict[str, Any]:
        row = {name: each[by_length[len(one)]] for name, each in values.items()}
        return row | {"size": np.array(row["size"])}

    store.map_episodes(of_values, list(values), of="episode")
    assert store.episodes.select(list(values)).collect().to_dict(as_series=False) == values
    store.map_episodes(lambda one: np.ma.masked_less(one.rewards, 0), "seen", of="step")
    steps = store.transitions.select("reward", "seen").collect()
    shown = [reward if reward >= 0 else None for reward in steps["reward"]]
    assert steps["seen"].to_list() == shown and 0 < steps["seen"].null_count() < len(shown)
    with pytest.raises(el.errors.InvalidArgumentError, match="None or an empty list in every episode"):
        store.map_episodes(lambda one: [] if len(one) > 5 else None, "none", of="episode")
    with pytest.raises(el.errors.InvalidArgumentError, match="have the type"):
        store.map_episodes(lambda one: [] if len(one) > 5 else 1.0, "mixed", of="episode")


@pytest.mark.parametrize(
    ("of", "function", "message"),
    [
        ("step", lambda one: one.rewards[:-2], r"'a' has 38 values; expected 40 .* or 41"),
        ("step", lambda one: one.observations, r"shape \(41, 3, 2\)"),
        ("step", lambda one: 3.0, r"shape \(\)"),
        ("step", lambda one: one.rewards * 1j, "numpy type"),
        ("episode", lambda one: one.lenght, "lenght"),
        ("episode", lambda one: b"x", "binary"),
        ("episode", lambda one: object(), "object"),
    ],
)
def test_a_function_that_fails(store: el.EpisodeStore, of: Any, function: Any, message: str) -> None:
    """The error names the episode; nothing is committed. `on_error="skip"` reports it and leaves it out."""
    whole, version = store, store.version
    with pytest.raises(el.errors.ComputationError, match=message) as raised:
        whole.map_episodes(lambda one: function(one), "a", of=of, where="length = 40")
    assert whole[2].id in str(raised.value) and raised.value.__cause__ is not None
    assert whole.refresh().version == version

    def sometimes(one: Any) -> Any:
        good = one.rewards if of == "step" else 1.5
        return function(one) if len(one) == 40 else good

    report = whole.map_episodes(sometimes, "a", of=of, on_error="skip")
    assert report.episodes == 7
    assert [key for key, _ in report.skipped] == [whole[2].id]
    table = whole.steps if of == "step" else whole.episodes
    valued = table.filter(pl.col("a").is_not_null()).select(pl.col("episode_id").n_unique()).collect()
    assert valued.item() == 7


def test_an_annotation_of_another_type(store: el.EpisodeStore) -> None:
    """The error comes with the first episodes, and the job goes on with values of the right type."""
    store.map_episodes(lambda one: 1.5, "n", of="episode")
    calls: list[str] = []

    def texts(one: Any) -> str:
        calls.append(one.id)
        return "x"

    with pytest.raises(el.errors.InvalidArgumentError, match=r"type double; .*string.*drop_annotation"):
        store.map_episodes(texts, "n", of="episode", job_id="a")
    assert 0 < len(calls) < len(LENGTHS)
    store.map_episodes(len, "n", of="episode", job_id="a")
    assert store.episodes.collect()["n"].to_list() == list(map(float, LENGTHS))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_episode_that_cannot_be_read_for_now(store: el.EpisodeStore, on_error: Any) -> None:
    """The error of the store comes as it is, and no episode is skipped for it."""

    def fails(one: Any) -> int:
        if len(one) == 12:
            raise el.errors.StoreAccessError("Could not read s/steps/a.parquet: Input/output error.")
        return len(one)

    version = store.version
    with pytest.raises(el.errors.StoreAccessError, match="Input/output"):
        store.map_episodes(fails, "n", of="episode", on_error=on_error)
    assert store.refresh().version == version


def test_several_names_and_none(store: el.EpisodeStore) -> None:
    """A dict has exactly the names that were announced; None in every episode is a forgotten return."""
    with pytest.raises(el.errors.ComputationError, match="expected a dict of a, b"):
        store.map_episodes(lambda one: {"a": 1}, ["a", "b"], of="episode")
    with pytest.raises(el.errors.ComputationError, match=r"returned int"):
        store.map_episodes(lambda one: 1, ["a"], of="episode")
    with pytest.raises(el.errors.InvalidArgumentError, match="lack a return"):
        store.map_episodes(lambda one: None, "a", of="episode")


def test_some_episodes_and_no_episode(store: el.EpisodeStore, tmp_path: Path) -> None:
    """`where` leaves the others as they are; a store without episodes gets nothing, and no version."""
    store.map_episodes(len, "n", of="episode")
    report = store.map_episodes(lambda one: -len(one), "n", of="episode", where=pl.col("length") > 5)
    assert report.episodes == 5
    signed = [-length if length > 5 else length for length in LENGTHS]
    assert store.episodes.collect()["n"].to_list() == signed
    version = store.version
    assert store.map_episodes(len, "n", of="episode", where="length > 99").episodes == 0
    empty = el.create(
        tmp_path / "e", observation_space=store.observation_space, action_space=spaces.Discrete(2)
    )
    for workers in (None, 2):
        assert empty.map_episodes(len, "n", of="step", workers=workers).episodes == 0
    assert (store.version, empty.version) == (version, 0) and not len(empty.annotations)
    with pytest.raises(el.errors.QueryError):
        store.map_episodes(len, "n", of="episode", where="nothing > 1")


def agent_length(episode: Any) -> np.ndarray:
    """The length of what the function gets, for each row."""
    return np.full(len(episode) + 1, len(episode))


def test_several_agents(tmp_path: Path) -> None:
    """Steps get the values of each agent's episode, episodes those of the whole."""
    space = spaces.Box(-1, 1, (2,))
    store = el.create(tmp_path / "team", agents=dict.fromkeys(("red", "blue"), (space, spaces.Discrete(2))))
    with store.team_writer() as writer:
        for number in range(3):
            episode = writer.begin({"red": space.sample(), "blue": space.sample()})
            for t in range(4 + number):
                acting = ("red", "blue") if t < 2 else ("red",)
                ends = {name: t == 3 + number or (name == "blue" and t == 1) for name in acting}
                seen = {name: space.sample() for name in acting}
                rewards = dict.fromkeys(acting, 1.0)
                episode.append(dict.fromkeys(acting, 1), rewards, seen, terminations=ends)
    store.refresh()
    store.map_episodes(agent_length, "own", of="step")
    store.map_episodes(lambda one: len(one.agents), "agents_seen", of="episode")
    assert store.episodes.collect()["agents_seen"].to_list() == [2, 2, 2]
    for episode in store:
        for name in episode.agents:
            member = episode.agent(name)
            assert list(member.step_annotations["own"]) == [len(member)] * (len(member) + 1)


SCRIPT = """
import os, signal, sys
from pathlib import Path
import episodelake as el
from episodelake.annotations import mapping

path, log, point, engine, address = sys.argv[1:]
if engine == "ray":
    import ray
    ray.init(address=address, log_to_driver=False)
annotate = mapping.annotate_episodes

def dying(*arguments):
    if point == "after":
        annotate(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

mapping.annotate_episodes = dying

def length(episode):
    if point == "during" and episode.length == 12:
        os.kill(driver, signal.SIGKILL)
    with open(log, "a") as file:
        file.write(episode.id + chr(10))
    return len(episode)

driver, workers = os.getpid(), 1 if engine == "ray" else None
el.open(path).map_episodes(length, "n", of="episode", job_id="nightly", engine=engine, workers=workers)
"""


def check_resumed(store: el.EpisodeStore, point: str, engine: str, address: str) -> None:
    """A call whose process is killed at this point is completed by the same call; nothing is done twice."""
    before, log = store.version, store.path.parent / "log"
    arguments = [str(store.path), str(log), point, engine, address]
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=PATIENCE
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert store.refresh().version == (before + 1 if point == "after" else before)
    assert len(list(store.path.glob(".writing/map.*/version"))) == 1
    with store.writer() as writer:  # what comes meanwhile has no part in the job
        writer.begin(store.observation_space.sample()).append(
            store.action_space.sample(), 1.0, store.observation_space.sample(), terminated=True
        )
    calls: list[str] = []
    resumed = store.map_episodes(counting(calls), "n", of="episode", job_id="nightly")
    if point == "after":
        assert resumed.present and not calls
    else:
        done = log.read_text("utf-8").split()
        assert resumed.episodes == len(LENGTHS) and resumed.resumed == len(LENGTHS) - len(calls)
        assert resumed.resumed >= (len(LENGTHS) if point == "before" else 3)
        assert set(done) | set(calls) == set(store.episodes.collect()["episode_id"][: len(LENGTHS)])
    assert store.episodes.collect()["n"].to_list() == [*LENGTHS, None]
    version = store.version
    assert store.map_episodes(counting(calls), "n", of="episode", job_id="nightly").present
    assert store.version == version == before + 2
    assert not list(store.path.glob(".writing/*")) and not store.verify().faults


def counting(calls: list[str]) -> Callable[[Any], int]:
    """A function of an episode that notes its calls."""
    return lambda episode: calls.append(episode.id) or len(episode)


@pytest.mark.further
@pytest.mark.parametrize("point", ["during", "before", "after"])
def test_a_killed_process(store: el.EpisodeStore, point: str) -> None:
    """Killed while it computes, before the commit or after it: the same call makes it whole."""
    check_resumed(store, point, "local", "")


def test_a_run_of_processes_is_closed_while_a_thread_begins() -> None:
    """The collector may close an abandoned run inside the lock with which threads begin and end."""
    pieces = Engine(workers=1).run(abs, range(-100, 0))
    number, value = next(pieces)
    assert value == 100 - number
    closed_while_a_thread_begins(pieces)


def test_a_job_whose_store_changed(store: el.EpisodeStore) -> None:
    """Deleted episodes and compaction leave the rest of a job; of a version that is gone it begins anew."""

    def fails(one: Any) -> int:
        if len(one) == 9:
            raise OSError("later")
        return len(one)

    for vacuumed in (False, True):
        name = f"n{int(vacuumed)}"
        with pytest.raises(el.errors.ComputationError, match="later") as raised:
            store.map_episodes(fails, name, of="episode", job_id="a")
        assert "goes on from there" in "".join(raised.value.__notes__)
        store.delete(pl.col("length") == (7 if vacuumed else 40))
        store.compact(order_by="length")
        if vacuumed:
            store.vacuum(timedelta(0))
        report = store.map_episodes(len, name, of="episode", job_id="a")
        assert report.resumed == 0 if vacuumed else report.resumed > 3
        frame = store.episodes.collect()
        assert frame[name].to_list() == frame["length"].to_list() and report.episodes == len(frame)

    def again(one: Any) -> int:
        store.map_episodes(len, "m", of="episode", job_id="b")
        return 0

    with pytest.raises(el.errors.ComputationError, match="Another process runs"):
        store.map_episodes(again, "m", of="episode", job_id="b")
    assert store.map_episodes(len, "m", of="episode", job_id="b").episodes == len(store)


def dies(episode: Any) -> int:
    """End the process that computes."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_job_for_other_episodes(store: el.EpisodeStore) -> None:
    """Two conditions make two jobs, also where the text of an expression leaves values out."""
    ids = [one.id for one in store]
    for part in ids[:4], ids[4:]:
        listed = pl.col("episode_id").is_in([*map(str, range(40)), *part, *map(str, range(40, 80))])
        assert store.map_episodes(len, "n", of="episode", where=listed, job_id="a").episodes == 4
        assert store.map_episodes(len, "n", of="episode", where=listed, job_id="a").present
    assert store.episodes.collect()["n"].to_list() == list(LENGTHS)


def test_a_store_in_the_place_of_another(store: el.EpisodeStore) -> None:
    """After a store was deleted and recorded again at its path, its own episodes are read."""
    store.map_episodes(len, "before", of="episode")
    shutil.rmtree(store.path)
    again, _ = recorded(store.path, *SPACES["discrete"])
    for name in ("a", "b"):
        assert again.map_episodes(len, name, of="episode").episodes == len(LENGTHS)
    with pytest.raises(el.errors.StoreNotFoundError, match="another store"):
        Address.of(store.handle.layout, 0).open()


@pytest.mark.further
def test_a_process_that_dies(store: el.EpisodeStore) -> None:
    """It is an error, and nothing is committed."""
    with pytest.raises(el.errors.ComputationError, match="process that computes died"):
        store.map_episodes(dies, "a", of="episode", workers=2)
    assert not len(store.refresh().annotations)


def waits_or_fails(episode: Any) -> int:
    """Take for ever in all episodes but one."""
    if len(episode) == LENGTHS[1]:
        raise ValueError("short")
    time.sleep(10 * PATIENCE)
    return 0


@pytest.mark.further
def test_an_error_ends_other_processes(store: el.EpisodeStore) -> None:
    """No one waits for the episodes that other processes compute."""
    with pytest.raises(el.errors.ComputationError, match="ValueError: short"):
        store.map_episodes(waits_or_fails, "a", of="episode", workers=2)


WAITING = """
import os, sys, time
import episodelake as el

def wait(episode):
    with open(sys.argv[2], "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(600)

if __name__ == "__main__":
    el.open(sys.argv[1]).map_episodes(wait, "n", of="episode", workers=2)
"""


@pytest.mark.further
def test_processes_end_with_their_parent(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A parent that is killed leaves no process behind."""
    script, log = tmp_path / "waiting_script.py", tmp_path / "log"
    script.write_text(WAITING)
    with subprocess.Popen([sys.executable, script, store.path, log]) as parent:
        wait_until(lambda: log.exists() and len(log.read_text().split()) == 2, "both processes")
        parent.kill()
    for process in map(int, log.read_text().split()):
        wait_until(lambda process=process: not lives(process), "the end of a process")


def lives(process: int) -> bool:
    """Whether a process runs; one that ended and that no one has asked for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_bad_arguments(store: el.EpisodeStore) -> None:
    """They are refused before anything is computed."""
    cases: list[Any] = [
        ({"into": []}, r"into=\[\].*several different"),
        ({"into": ("a", "a")}, "several different"),
        ({"into": 3}, "into=3: expected the name"),
        ({"into": "observation"}, "observation"),
        ({"into": "a b"}, "cannot be the name"),
        ({"function": 3}, "expected a function"),
        ({"of": "run"}, "'step', 'episode'|step.*episode"),
        ({"engine": "spark"}, "spark.*local.*ray"),
        ({"workers": 0}, "workers"),
        ({"job_id": ""}, "job_id"),
        ({"on_error": "ignore"}, "ignore"),
        ({"workers": 2, "function": lambda one: 1}, "cannot be sent to another process"),
    ]
    for arguments, message in cases:
        with case((arguments, message)):
            given = {"function": dies, "into": "a", "of": "step"} | arguments
            with pytest.raises(el.errors.InvalidArgumentError, match=message):
                store.map_episodes(**given)


def test_stores_in_memory() -> None:
    """A store in memory is a folder like others, for jobs too."""
    both = {"observation_space": spaces.Discrete(2), "action_space": spaces.Discrete(2)}
    store = el.create("memory://computed", **both)
    with store.writer() as writer:
        writer.begin(0).append(1, 1.0, 1, terminated=True)
    assert store.map_episodes(len, "n", of="episode", job_id="a").episodes == 1
    assert store.map_episodes(len, "n", of="episode", job_id="a").present


def test_without_ray(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ray is missing, the error names the extra, before anything is computed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(el.errors.MissingPackageError, match=r"episodelake\[ray\]"):
        store.map_episodes(dies, "n", of="episode", engine="ray")

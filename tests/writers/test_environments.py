"""The environment bundle: what runs keep of environments, and making these again from it."""

import contextlib
import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium import wrappers
from gymnasium.envs import mujoco
from gymnasium.envs.classic_control import CartPoleEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import episodelake as el
from effort import examples, some, with_folders
from episodelake.readers.replaying.environment import remake_env
from episodelake.readers.replaying.run_envs import RunEnv
from episodelake.store.environments.artifacts import keep_artifact
from episodelake.terminal.app import app
from episodelake.testing.adapters import case
from episodelake.writers.session.environment import LARGEST_UNASKED, keep_env
from kept_environments import (
    Argumentless,
    Forgetful,
    Halving,
    Reader,
    Scaled,
    Scripted,
    all_files,
    claiming_store,
    record,
    run_row,
)
from object_server import new_url, shared_server
from waiting import PATIENCE

TESTS = str(Path(__file__).parents[1])
CHEETAH = Path(mujoco.__file__).parent / "assets" / "half_cheetah.xml"
READER = "kept_environments:Reader"
VIDEO = "gymnasium.wrappers.rendering:RecordVideo"


@pytest.fixture
def registered() -> Any:
    """Register environments for one test."""
    before = dict(gymnasium.registry)
    yield gymnasium.register
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.fixture
def cheetah(tmp_path: Path) -> Path:
    """A model of the half cheetah with a lighter gravity, in a folder of its own."""
    path = tmp_path / "models" / "light.xml"
    path.parent.mkdir()
    text = CHEETAH.read_text()
    assert 'gravity="0 0 -9.81"' in text
    path.write_text(text.replace('gravity="0 0 -9.81"', 'gravity="0 0 -5"'))
    return path


def spec_of(**changes: Any) -> dict[str, Any]:
    """CartPole's spec as JSON, with other values."""
    return {**json.loads(gymnasium.spec("CartPole-v1").to_json()), **changes}


def in_new_process(program: str, *words: object) -> str:
    """Run a program by itself; gives what it prints."""
    path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# What is kept


def test_wrappers_that_take_the_environment_alone_are_made_again(tmp_path: Path) -> None:
    """A wrapper that is not derived from RecordConstructorArgs needs no arguments if it takes none."""
    env = Halving(Argumentless(gymnasium.make("CartPole-v1")))
    store = record(tmp_path / "store", env)
    assert store[0].rewards.tolist() == [-0.5] * store[0].length
    with pytest.raises(el.errors.UntrustedEnvError, match="Halving"):
        store.make_env()
    again = store.make_env(trust=True)
    assert type(again) is Halving and store[0].replay(again).same

    class Renamed(gymnasium.Wrapper):
        def __init__(self, environment: gymnasium.Env) -> None:
            super().__init__(environment)

    for wrapper in (Forgetful, Renamed):
        store = record(tmp_path / wrapper.__name__, wrapper(gymnasium.make("CartPole-v1")))
        with pytest.raises(el.errors.EnvUnavailableError, match="does not keep its arguments"):
            store.make_env(trust=True)


def test_versions_of_what_an_environment_imports(tmp_path: Path) -> None:
    """Physics engines and emulators are among the versions, by the names of their distributions."""
    from importlib.metadata import version

    kept = json.loads(keep_env(None, gymnasium.make("HalfCheetah-v5")).versions)
    assert kept["mujoco"] == version("mujoco")
    assert kept["numpy"] == np.__version__
    pong = json.loads(keep_env(None, atari()).versions)
    assert pong["ale-py"] == version("ale-py")
    assert "mujoco" not in pong
    more = json.loads(keep_env(None, CartPoleEnv(), packages=["_pytest", "PIL"]).versions)
    assert (more["pytest"], more["pillow"]) == (pytest.__version__, version("pillow"))
    with pytest.raises(el.errors.InvalidArgumentError, match="no-such-package"):
        keep_env(None, CartPoleEnv(), packages=["no-such-package"])


def atari() -> gymnasium.Env:
    """Pong, which importing ale_py registers."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", obs_type="ram")


def test_a_file_is_kept_once(tmp_path: Path, cheetah: Path) -> None:
    """Runs with the same file share one artifact, named by the SHA-256 of its content."""
    for _ in range(2):
        store = record(tmp_path / "store", gymnasium.make("HalfCheetah-v5", xml_file=str(cheetah)))
    content = cheetah.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert {file.name: file.read_bytes() for file in (store.path / "artifacts").iterdir()} == {
        digest: content
    }
    rows = store.runs.collect()
    assert rows["env_bundle"].n_unique() == 1
    kept = run_row(store)
    assert kept["env_bundle"]["files"] == [{"name": "light.xml", "sha256": digest, "size": len(content)}]
    assert kept["env_spec"]["kwargs"] == {"xml_file": {"$file": ["light.xml", "str"]}}
    assert str(tmp_path) not in rows.write_json()


def test_writers_of_one_moment_keep_one_file(tmp_path: Path, cheetah: Path) -> None:
    """Many that keep the same content at once all succeed, and leave it once and whole."""
    layout = el.create(tmp_path / "store", CartPoleEnv()).handle.layout
    content = cheetah.read_bytes()
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda _: keep_artifact(layout, lambda: [content])[0], range(40)))
    (path,) = (tmp_path / "store" / "artifacts").iterdir()
    assert {path.name} == names and path.read_bytes() == content


class Stubborn(CartPoleEnv):
    """Will not say what it is."""

    @property
    def spec(self) -> Any:
        """Fails."""
        raise RuntimeError("no spec today")

    @spec.setter
    def spec(self, value: Any) -> None:
        """Takes none."""


class Foreign:
    """Some other library's environment, with a specification of its own."""

    spec: ClassVar = {"id": "Pong-v5"}
    unwrapped = Scripted()


class Unspoken:
    """Fails to print."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_nothing_about_an_environment_stops_a_recording(tmp_path: Path, registered: Callable) -> None:
    """Specs that fail, are of other libraries, or hold objects that cannot be printed are no obstacle."""
    store = record(tmp_path / "a", Stubborn())
    with pytest.raises(el.errors.EnvUnavailableError, match="no spec today"):
        store.make_env(trust=True)
    foreign = keep_env(None, Foreign())
    assert foreign.env_spec is None
    assert json.loads(foreign.env_bundle or "")["made_by"] == "kept_environments:Scripted"
    registered("Quiet-v0", lambda **arguments: CartPoleEnv(), kwargs={"x": Unspoken(), "y": "a" * 2**21})
    store = record(tmp_path / "b", gymnasium.make("Quiet-v0"))
    assert len(run_row(store)["env_spec"]["kwargs"]["y"]["$object"][1]) < 2000
    with pytest.raises(el.errors.EnvUnavailableError, match="repr failed: RuntimeError"):
        store.make_env(trust=True)


def test_only_plain_files_are_kept_unasked(tmp_path: Path, registered: Callable, monkeypatch: Any) -> None:
    """A file that only might be one, such as a secret, stays where it is; so does one found by chance."""
    registered("Reader-v0", READER)
    monkeypatch.chdir(tmp_path)
    for name in ("secret.txt", "half_cheetah.xml", "level.dat"):
        Path(name).write_text("secret")
    token, level = str(tmp_path / "secret.txt"), "level.dat"
    store = record("a", gymnasium.make("Reader-v0", token_file=token, level=level))
    assert not (store.path / "artifacts").exists()
    assert run_row(store)["env_spec"]["kwargs"] == {"token_file": token, "level": level}
    # This one is found among Gymnasium's own files.
    store = record("b", gymnasium.make("HalfCheetah-v5", xml_file="half_cheetah.xml"))
    assert not (store.path / "artifacts").exists()


def test_files_that_are_named(tmp_path: Path, registered: Callable, monkeypatch: Any) -> None:
    """A named file is kept, and an argument with its path refers to it, as a text or a Path as it was."""
    registered("Reader-v0", READER)
    monkeypatch.chdir(tmp_path)
    Path("level.dat").write_bytes(b"12345")
    store = record("a", gymnasium.make("Reader-v0", level="level.dat"), files={"levels/1": "level.dat"})
    path = tmp_path / "level.dat"
    record(store.path, gymnasium.make("Reader-v0", file=path), run="path", files={"levels/1": path})
    path.unlink()
    assert len(list((store.path / "artifacts").iterdir())) == 1
    for run, kind in (("run", str), ("path", Path)):
        env = store.refresh().make_env(run, trust=True)
        assert env.unwrapped.size == 5
        value = env.spec.kwargs["level" if run == "run" else "file"]
        assert isinstance(value, kind) and str(value).endswith("/levels/1")


def test_files_that_cannot_be_kept(tmp_path: Path) -> None:
    """A name that is none, or a path that cannot be read, is refused before anything is recorded."""
    cases: list[Any] = [
        {"../up": "f"},
        {"/absolute": "f"},
        {"a/../b": "f"},
        {"a\\b": "f"},
        {"": "f"},
        {"a\0": "f"},
        {"dir": "."},
        {"gone": "no such file"},
        {"a": "f", "A": "f"},
        {"a": "f", "a/b": "f"},
        {"a": 7},
        ["f"],
    ]
    for folder, files in with_folders(cases, tmp_path):
        with case(files), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.chdir(folder)
            Path("f").write_text("f")
            store = el.create("store", CartPoleEnv())
            with pytest.raises(el.errors.InvalidArgumentError):
                store.record(CartPoleEnv(), files=files)
            assert store.refresh().runs.collect().is_empty()
            assert list((store.path / "journal").iterdir()) == []


def test_large_files_are_kept_if_they_are_named(tmp_path: Path, cheetah: Path) -> None:
    """A large file is streamed into the store if it is named, and left out with a warning if it is not."""
    with open(cheetah, "a") as file:
        file.write("<!--" + " " * LARGEST_UNASKED + "-->")
    env = gymnasium.make("HalfCheetah-v5", xml_file=str(cheetah))
    with pytest.warns(RuntimeWarning, match="Name it to keep it"):
        store = record(tmp_path / "store", env)
    assert not (store.path / "artifacts").exists()
    tracemalloc.start()
    try:
        store.record(env, files={"model.xml": cheetah}).close()
        assert tracemalloc.get_traced_memory()[1] < LARGEST_UNASKED / 2
    finally:
        tracemalloc.stop()
    assert artifact_of(store).read_bytes() == cheetah.read_bytes()


@pytest.mark.further
def test_a_killed_writers_run_keeps_its_files(tmp_path: Path, cheetah: Path) -> None:
    """Recovery of a dead writer's journal brings the bundle with it."""
    program = """
import os, sys, gymnasium, episodelake as el
env = gymnasium.make("HalfCheetah-v5", xml_file=sys.argv[2])
recorder = el.create(sys.argv[1], env).record(env)
recorder.reset(seed=1)
for _ in range(5):
    recorder.step(recorder.action_space.sample())
recorder.session.flush()
os.kill(os.getpid(), 9)
"""
    words = [sys.executable, "-c", program, str(tmp_path / "store"), str(cheetah)]
    assert subprocess.run(words, timeout=PATIENCE).returncode == -signal.SIGKILL
    cheetah.unlink()
    (run,) = el.recover(tmp_path / "store")
    store = el.open(tmp_path / "store")
    assert (run.interrupted, len(store)) == (1, 1)
    assert store[0].replay(store.make_env(trust=True)).same


def test_stores_of_earlier_writers_have_no_bundle(tmp_path: Path) -> None:
    """A store whose table of runs lacks the column is read, and gets the column with the next run."""
    shutil.copytree(Path(TESTS, "data", "format-1", "store"), tmp_path / "store")
    store = el.open(tmp_path / "store")
    assert "env_bundle" not in store.runs.collect_schema()
    with pytest.raises(el.errors.EnvUnavailableError, match="the run has none"):
        store.make_env(store[0].run_id)
    again = Scripted(store.observation_space)
    again.action_space = store.action_space
    with store.record(again) as env:
        env.reset(seed=0)
        env.step(store.action_space.sample())
    bundles = store.refresh().runs.collect()["env_bundle"].to_list()
    assert bundles[-1] is not None and set(bundles[:-1]) == {None}
    assert store.verify().ok


# Making it again


def same_play(one: gymnasium.Env, other: gymnasium.Env, steps: int = 60) -> None:
    """Two environments give the same for the same seeds and actions."""
    one.action_space.seed(5)
    pairs = [(one.reset(seed=9), other.reset(seed=9))]
    for _ in range(steps):
        action = one.action_space.sample()
        pairs.append((one.step(action), other.step(action)))
        if any(pairs[-1][0][2:4]):
            pairs.append((one.reset(seed=10), other.reset(seed=10)))
    for expected, got in pairs:
        np.testing.assert_equal(got[:-1], expected[:-1])


def layers_of(env: gymnasium.Env) -> list[str]:
    """The names of the wrappers, but for a TimeLimit around another one."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        twice = type(env) is type(env.env) is wrappers.TimeLimit
        found.append("a second limit" if twice else type(env).__name__)
        env = env.env
    return [*found, type(env).__name__]


STACKS: dict[str, Callable[[], gymnasium.Env]] = {
    "bare": lambda: gymnasium.make("CartPole-v1"),
    "arguments": lambda: gymnasium.make("CartPole-v1", sutton_barto_reward=True, max_episode_steps=9),
    "no checks": lambda: gymnasium.make("CartPole-v1", disable_env_checker=True, max_episode_steps=-1),
    "shorter limit": lambda: wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 6),
    "longer limit": lambda: wrappers.TimeLimit(gymnasium.make("CartPole-v1", max_episode_steps=6), 900),
    "rescaled": lambda: wrappers.RescaleAction(gymnasium.make("MountainCarContinuous-v0"), -3, np.float32(3)),
    "arrays": lambda: wrappers.RescaleAction(
        gymnasium.make("MountainCarContinuous-v0"), np.array([-3], np.float32), np.array([3], np.float32)
    ),
    "frames": lambda: wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 3, padding_type="zero"),
    "dtype": lambda: wrappers.DtypeObservation(gymnasium.make("CartPole-v1"), np.float64),
    "time": lambda: wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1"), flatten=False),
    "many": lambda: wrappers.NormalizeReward(
        wrappers.ReshapeObservation(wrappers.StickyAction(gymnasium.make("CartPole-v1"), 0.3), (2, 2))
    ),
    "filmed": lambda: wrappers.RecordEpisodeStatistics(
        wrappers.RenderCollection(gymnasium.make("CliffWalking-v1", render_mode="ansi"))
    ),
    "map": lambda: gymnasium.make("FrozenLake-v1", desc=["SFF", "FHF", "FFG"], is_slippery=True),
    "map as an array": lambda: gymnasium.make(
        "FrozenLake-v1", desc=np.array([list("SF"), list("FG")], "S1"), is_slippery=False
    ),
}


@pytest.mark.parametrize("cases", some(STACKS.values(), 5))
def test_environments_of_gymnasium_come_back_without_trust(tmp_path: Path, cases: Any) -> None:
    """What is made again has the same layers, plays like a fresh one, and replays what was recorded."""
    for folder, make in with_folders(cases, tmp_path):
        with case(make):
            store = record(folder / "store", make(), 40)
            again = store.make_env()
            # A spec has room for one limit.
            assert layers_of(again) == [layer for layer in layers_of(make()) if layer != "a second limit"]
            same_play(make(), again)
            assert all(report.same for report in store.replay())
            again.close()


def test_a_model_of_ones_own(tmp_path: Path, cheetah: Path) -> None:
    """A MuJoCo model comes back after its file is gone, into a folder that goes with the environment."""

    def make(model: str) -> gymnasium.Env:
        low = np.full(6, -2, np.float32)
        return wrappers.RescaleAction(gymnasium.make("HalfCheetah-v5", xml_file=model), low, -low)

    store = record(tmp_path / "store", make(str(cheetah)), 30)
    expected = make(str(cheetah))
    shutil.rmtree(cheetah.parent)
    with pytest.raises(el.errors.UntrustedEnvError, match="files that the store brings"):
        store.make_env()
    again = store.make_env(trust=True)
    assert store[0].replay(again).same
    assert not store[0].replay(make("half_cheetah.xml")).same
    same_play(expected, again)
    unpacked = Path(again.unwrapped.fullpath)
    assert unpacked.is_file() and unpacked.parent.name.startswith("episodelake-env-")
    again.close()
    del again
    gc.collect()
    assert not unpacked.parent.exists()


@pytest.mark.further
def test_an_environment_of_another_package(tmp_path: Path) -> None:
    """In a process that never imported it, an Atari game asks for trust, and with it comes back."""
    record(tmp_path / "store", atari(), 20)
    program = """
import sys, episodelake as el
store = el.open(sys.argv[1])
try:
    store.make_env()
except el.errors.UntrustedEnvError as error:
    assert "ale_py" in str(error) and "ale_py" not in sys.modules
    print("asked")
env = store.make_env(trust=True)
print(store[0].replay(env).same, type(env.unwrapped).__module__)
"""
    assert in_new_process(program, tmp_path / "store").split()[-3:] == ["asked", "True", "ale_py.env"]


def test_wrappers_of_another_module(tmp_path: Path) -> None:
    """A wrapper of one's own that keeps its arguments comes back with trust."""
    store = record(tmp_path / "store", Scaled(gymnasium.make("CartPole-v1"), 2.5))
    with pytest.raises(el.errors.UntrustedEnvError, match="kept_environments:Scaled"):
        store.make_env()
    again = store.make_env(trust=True)
    assert again.factor == 2.5
    assert store[0].replay(again).same


@pytest.mark.parametrize(
    ("wrap", "told"),
    [
        (lambda env: wrappers.TransformObservation(env, lambda value: value, None), "'func' was <function"),
        (lambda env: wrappers.TransformReward(env, np.sign), "'func' was <ufunc"),
        (Forgetful, "'Forgetful' does not keep its arguments"),
    ],
    ids=["lambda", "function", "forgetful"],
)
def test_wrappers_that_cannot_be_kept(tmp_path: Path, wrap: Callable, told: str) -> None:
    """Recording goes on all the same; whoever wants the environment back is told what is missing."""
    store = record(tmp_path / "store", wrap(gymnasium.make("CartPole-v1")))
    with pytest.raises(el.errors.EnvUnavailableError, match=told) as caught:
        store.make_env(trust=True)
    assert "episode.replay(env)" in str(caught.value)
    assert store[0].replay(wrap(gymnasium.make("CartPole-v1"))).same


def test_wrappers_that_only_show_are_left_out(tmp_path: Path) -> None:
    """An environment that was filmed is made without the camera, which would write to a recorded folder."""
    arguments = {"video_folder": str(tmp_path / "films"), "episode_trigger": {"$object": ["function", "f"]}}
    camera = {"name": "RecordVideo", "entry_point": VIDEO, "kwargs": arguments}
    window = {
        "name": "HumanRendering",
        "entry_point": VIDEO.replace("RecordVideo", "HumanRendering"),
        "kwargs": {},
    }
    store = claiming_store(tmp_path / "store", spec_of(additional_wrappers=[camera, window]))
    assert layers_of(store.make_env()) == layers_of(gymnasium.make("CartPole-v1"))
    assert not (tmp_path / "films").exists()


def test_render_modes(tmp_path: Path) -> None:
    """A recorded window does not open again; another mode is given on demand."""
    store = claiming_store(tmp_path / "store", spec_of(kwargs={"render_mode": "human"}))
    assert store.make_env().render_mode is None
    env = store.make_env(render_mode="rgb_array")
    env.reset()
    assert env.render().ndim == 3
    env.close()


def test_other_arguments(tmp_path: Path) -> None:
    """Arguments may be changed, also one that could not be kept, and the limit of steps."""
    store = record(tmp_path / "store", gymnasium.make("CartPole-v1", sutton_barto_reward=True))
    env = store.make_env(sutton_barto_reward=False, max_episode_steps=3)
    assert (env.spec.kwargs["sutton_barto_reward"], env.spec.max_episode_steps) == (False, 3)
    with pytest.raises(el.errors.EnvUnavailableError, match="colour"):
        store.make_env(colour="red")


def test_an_environment_made_by_calling_its_class(tmp_path: Path) -> None:
    """It has no spec: the run keeps what made it, and says how to go on."""
    store = record(tmp_path / "store", CartPoleEnv())
    assert run_row(store)["env_spec"] is None
    with pytest.raises(
        el.errors.EnvUnavailableError, match=r"made by calling .*cartpole:CartPoleEnv"
    ) as caught:
        store[0].replay()
    assert "episode.replay(env)" in str(caught.value)
    assert store[0].replay(CartPoleEnv()).same


def test_entry_points_that_are_objects(tmp_path: Path, registered: Callable) -> None:
    """A class is kept by its module and name; a function without a name needs its id to be registered."""
    registered("Class-v0", Reader)
    registered("Function-v0", lambda: Reader())
    assert (
        run_row(record(tmp_path / "class", gymnasium.make("Class-v0")))["env_spec"]["entry_point"] == READER
    )
    store = record(tmp_path / "function", gymnasium.make("Function-v0"))
    with pytest.raises(el.errors.UntrustedEnvError, match="registered ids"):
        store.make_env()
    assert isinstance(store.make_env(trust=True).unwrapped, Reader)
    del gymnasium.registry["Function-v0"]
    with pytest.raises(el.errors.EnvUnavailableError, match="Register 'Function-v0'"):
        store.make_env(trust=True)


def test_vector_environments_keep_the_spec_of_one(tmp_path: Path) -> None:
    """A vector's run keeps how to make one of its environments, without what made them many."""
    wanted = gymnasium.make("FrozenLake-v1", is_slippery=False).spec.kwargs
    made = gymnasium.make_vec("FrozenLake-v1", 3, vectorization_mode="sync", is_slippery=False)
    built = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("FrozenLake-v1", is_slippery=False)] * 2)
    native = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    for env in (made, built):
        spec = json.loads(keep_env(None, env).env_spec or "")
        store = claiming_store(tmp_path / str(env.num_envs), spec)
        assert store.make_env().spec.kwargs == wanted
    spec = json.loads(keep_env(None, native).env_spec or "")
    assert (spec["kwargs"], spec["max_episode_steps"]) == ({}, 500)
    counted = gymnasium.wrappers.vector.NormalizeObservation(native)
    assert "NormalizeObservation" in (keep_env(None, counted).env_bundle or "")


def test_choosing_a_run(tmp_path: Path) -> None:
    """Runs are named by id or name; without one all must have the same environment."""
    path = tmp_path / "store"
    record(path, gymnasium.make("CartPole-v1"), run="a")
    store = record(path, gymnasium.make("CartPole-v1"), run="b")
    assert store.make_env().spec.max_episode_steps == 500
    store = record(path, gymnasium.make("CartPole-v1", max_episode_steps=9), run="c")
    with pytest.raises(el.errors.InvalidArgumentError, match="not all the same"):
        store.make_env()
    assert store.make_env("c").spec.max_episode_steps == 9
    assert store.make_env(store[0].run_id).spec.max_episode_steps == 500
    assert store.filter("run_id like 'c-%'").make_env().spec.max_episode_steps == 9
    with pytest.raises(el.errors.InvalidArgumentError, match="no run 'd'"):
        store.make_env("d")


# Versions


def test_other_versions_are_a_warning(tmp_path: Path) -> None:
    """A package of another version is told, and is an error on demand; Python's own is not compared."""
    versions = {"gymnasium": "0.0.1", "numpy": np.__version__, "python": "2.7"}
    store = claiming_store(tmp_path / "store", spec_of(), versions)
    with pytest.warns(RuntimeWarning, match=r"gymnasium 0\.0\.1 \(here") as told:
        store.make_env()
    assert told[0].filename == __file__ and "numpy" not in str(told[0].message)
    with pytest.warns(RuntimeWarning, match=r"gymnasium 0\.0\.1") as told:
        store[0].replay()
    assert told[0].filename == __file__
    with pytest.raises(el.errors.EnvUnavailableError, match=r"gymnasium 0\.0\.1"):
        store.make_env(strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claiming_store(tmp_path / "same", spec_of(), {"numpy": np.__version__}).make_env(strict=True)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Packages, modules and names in them that are not here are told by name."""
    store = claiming_store(tmp_path / "a", spec_of(), {"left-behind": "1.2", "gone": "3"})
    with pytest.raises(el.errors.EnvUnavailableError, match=r"gone==3, left-behind==1\.2"):
        store.make_env()
    store = claiming_store(tmp_path / "b", spec_of(entry_point="no_such_module.envs:Env"))
    with pytest.raises(el.errors.EnvUnavailableError, match="no_such_module"):
        store.make_env(trust=True)
    store = claiming_store(tmp_path / "c", spec_of(entry_point="kept_environments:Gone"))
    with pytest.raises(el.errors.EnvUnavailableError, match="Gone"):
        store.make_env(trust=True)
    store = claiming_store(tmp_path / "d", {"id": "CartPole-v1"})
    with pytest.raises(el.errors.EnvUnavailableError, match="only the id 'CartPole-v1'"):
        store.make_env(trust=True)


# Stores that are not to be trusted

EVIL = {
    "entry point": spec_of(entry_point="evil:Env"),
    "submodule": spec_of(entry_point="evil.envs:Env"),
    "loader of Gymnasium": spec_of(
        entry_point="gymnasium.envs.registration:load_env_creator", kwargs={"name": "evil:Env"}
    ),
    "make of Gymnasium": spec_of(
        entry_point="gymnasium.envs.registration:make", kwargs={"id": "evil:Env-v0"}
    ),
    "module of Gymnasium that is none": spec_of(entry_point="gymnasium.envs.evil:Env"),
    "wrapper": spec_of(additional_wrappers=[{"name": "TimeLimit", "entry_point": "evil:Env", "kwargs": {}}]),
    "function as wrapper": spec_of(
        additional_wrappers=[
            {
                "name": "TimeLimit",
                "entry_point": "gymnasium.wrappers.vector.common:importlib",
                "kwargs": {"name": "evil"},
            }
        ]
    ),
    "wrapper that writes": spec_of(
        additional_wrappers=[
            {
                "name": "Video",
                "entry_point": "gymnasium.wrappers:RecordVideos",
                "kwargs": {"video_folder": "out"},
            }
        ]
    ),
    "module in the id": spec_of(id="evil:Env-v0", entry_point={"$object": ["function", "evil"]}),
    "module in the id alone": {"id": "evil:Env-v0"},
    "path": spec_of(kwargs={"file": "/etc/passwd"}),
    "path from home": spec_of(kwargs={"file": "~"}),
    "path from here": spec_of(kwargs={"file": ".."}),
    "path in a list": spec_of(kwargs={"files": [{"deep": ("a", "b/c")}]}),
    "path in bytes": spec_of(kwargs={"file": {"$bytes": "L2V0Yy9wYXNzd2Q="}}),
    "path in an array": spec_of(kwargs={"file": {"$array": ["<U2", [1], "LwAAAGEAAAA="]}}),
    "path behind a file": spec_of(kwargs={"file": {"$file": "/etc/passwd"}}),
    "path beside a file": spec_of(kwargs={"file": {"$file": ["f", "str"], "more": "/etc/passwd"}}),
}


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a mark when it is imported; gives the mark."""
    folder = tmp_path / "modules"
    (folder / "evil").mkdir(parents=True)
    mark = tmp_path / "mark"
    (folder / "evil" / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(folder)
    yield mark
    sys.modules.pop("evil", None)


@pytest.mark.sample(6)
@pytest.mark.parametrize("spec", EVIL.values(), ids=EVIL.keys())
def test_nothing_is_run_or_chosen_without_trust(
    spec: Any, tmp_path: Path, evil: Path, monkeypatch: Any
) -> None:
    """A spec that names code or paths is refused before anything of it is imported, made or written."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    store = claiming_store(tmp_path / "store", spec)
    before = all_files(tmp_path)
    modules = set(sys.modules)
    for attempt in (store.make_env, store[0].replay, store.replay):
        with pytest.raises(el.errors.EnvUnavailableError):
            attempt()
    assert not evil.exists()
    assert set(sys.modules) == modules
    assert all_files(tmp_path) == before


def test_trust_is_what_it_takes(tmp_path: Path, evil: Path) -> None:
    """The same spec that is refused without trust runs its module with it."""
    store = claiming_store(tmp_path / "store", EVIL["entry point"])
    with pytest.raises(el.errors.UntrustedEnvError, match="imports 'evil'"):
        store.make_env()
    with pytest.raises(el.errors.EnvUnavailableError):
        store.make_env(trust=True)
    assert evil.exists()


DAMAGED = {
    "no JSON": "{",
    "list": [],
    "no id": {"entry_point": "a:b"},
    "id": spec_of(id="spaces in it"),
    "long id": spec_of(id="a" * 10_000),
    "entry point": spec_of(entry_point="os.system"),
    "call": spec_of(entry_point="os:system('x')"),
    "steps": spec_of(max_episode_steps="many"),
    "arguments": spec_of(kwargs=[1]),
    "wrappers": spec_of(additional_wrappers={"name": "a"}),
    "wrapper": spec_of(additional_wrappers=[{"name": "a"}]),
    "wrapper's entry point": spec_of(additional_wrappers=[{"name": "a", "entry_point": None, "kwargs": {}}]),
    "unknown file": spec_of(kwargs={"xml_file": {"$file": ["not-kept.xml", "str"]}}),
    "dtype": spec_of(kwargs={"dtype": {"$dtype": "O"}}),
    "dtype that runs": spec_of(kwargs={"dtype": {"$dtype": "(1000,1000,1000)f8"}}),
    "space": spec_of(kwargs={"space": {"$space": {"type": "Box"}}}),
    "array": spec_of(kwargs={"x": {"$array": ["O", [1], ""]}}),
    "deep": json.dumps(spec_of(kwargs={"x": 0})).replace('"x": 0', '"x": ' + "[" * 3000 + "]" * 3000),
}


@pytest.mark.parametrize("cases", some(DAMAGED.values(), 6))
def test_damaged_specs(tmp_path: Path, cases: Any) -> None:
    """What is no spec is told as damage of the store, with trust or without."""
    for folder, spec in with_folders(cases, tmp_path):
        with case(spec):
            store = claiming_store(folder / "store", spec)
            for trust in (False, True):
                with pytest.raises(el.errors.CorruptStoreError, match=store[0].run_id):
                    store.make_env(trust=trust)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "entry_point",
                    "kwargs",
                    "$file",
                    "$dtype",
                    "$space",
                    "$array",
                    "$object",
                    "$tuple",
                    "x",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(key=st.sampled_from(sorted(spec_of())), value=json_values, files=st.none() | st.just([]) | json_values)
def test_any_spec_is_made_or_refused(key: str, value: Any, files: Any, tmp_path: Path) -> None:
    """Whatever stands in a spec or a bundle, it becomes an environment or an error of ours."""
    path = tmp_path / "store"
    store = el.open(path) if path.exists() else el.create(path, CartPoleEnv())
    bundle = json.dumps({"made_by": "", "files": files, "problems": []})
    run = RunEnv("run", "run", json.dumps(spec_of(**{key: value})), "{}", None if files is None else bundle)
    with contextlib.suppress(
        el.errors.EnvUnavailableError, el.errors.CorruptStoreError, el.errors.UnsupportedSpaceError
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of other spaces
            env = remake_env(store.selection().snapshot, run, stacklevel=1)
        assert type(env.unwrapped) is CartPoleEnv
        env.close()


NAMES = ["../up", "/etc/x", "a/../../x", "a//b", ".", "..", "a/.", "C:\\x", "a\nb", "", "x" * 300, 5, None]
WRONG_FILES: list[list[dict[str, Any]]] = [
    *([{"name": name, "sha256": "0" * 64, "size": 1}] for name in NAMES),
    [{"name": "a", "sha256": "../" + "0" * 61, "size": 1}],
    [{"name": "a", "sha256": "0" * 63, "size": 1}],
    [{"name": "a", "sha256": "0" * 64, "size": -1}],
    [{"name": "a", "sha256": "0" * 64, "size": 2**63}],
    [{"name": "a", "sha256": "0" * 64, "size": True}],
    [{"name": "a", "sha256": "0" * 64, "size": 1}, {"name": "A", "sha256": "0" * 64, "size": 1}],
    [{"name": f"{number}", "sha256": "0" * 64, "size": 1} for number in range(1001)],
    [{"name": "a"}],
]


@pytest.mark.parametrize("cases", some(WRONG_FILES, 7))
def test_files_cannot_choose_their_place(tmp_path: Path, cases: Any) -> None:
    """Names that lead out of the folder, and hashes that are none, are refused before anything is written."""
    for folder, files in with_folders(cases, tmp_path):
        with case(files), pytest.MonkeyPatch.context() as monkeypatch:
            temporary = folder / "temporary"
            temporary.mkdir()
            monkeypatch.setattr("tempfile.tempdir", str(temporary))
            store = claiming_store(
                folder / "store", spec_of(kwargs={"x": {"$file": ["a", "str"]}}), files=files
            )
            before = all_files(folder)
            with pytest.raises(el.errors.CorruptStoreError, match="damaged environment bundle"):
                store.make_env(trust=True)
            with pytest.raises(el.errors.CorruptStoreError, match="damaged environment bundle"):
                el.merge([store], folder / "target")
            assert not (folder / "target").exists()
            assert all_files(folder) == before
            assert [fault.kind for fault in store.verify().faults] == ["runs"]


def test_versions_that_are_none(tmp_path: Path) -> None:
    """Names of packages that are none are damage, not something to install."""
    for number, versions in enumerate([{"a; rm -rf": "1"}, {"a": "1\x1b[31m"}, {"a": 1}, {"": "1"}]):
        store = claiming_store(tmp_path / str(number), spec_of(), versions)
        with pytest.raises(el.errors.CorruptStoreError, match="damaged versions"):
            store.make_env(trust=True)


def test_a_damaged_run_spoils_no_other(tmp_path: Path) -> None:
    """Beside a run with a damaged bundle, another one's environment is made, and info tells of both."""
    claiming_store(tmp_path / "store", spec_of(), files=[{"name": "../up"}])
    store = record(tmp_path / "store", gymnasium.make("CartPole-v1"), run="good")
    store.make_env("good").close()
    told = CliRunner().invoke(app, ["info", str(store.path)]).stdout
    assert "environment\tCartPole-v1\n" in told
    assert "environment\tCartPole-v1, with a damaged bundle\n" in told


# The files in a store's life


@pytest.fixture
def modelled(tmp_path: Path, cheetah: Path) -> el.EpisodeStore:
    """A store with two runs, the first of which has a model of its own."""
    record(tmp_path / "store", gymnasium.make("HalfCheetah-v5", xml_file=str(cheetah)), run="model")
    return record(tmp_path / "store", gymnasium.make("HalfCheetah-v5"), run="plain")


def artifact_of(store: el.EpisodeStore) -> Path:
    """The only artifact."""
    (path,) = (store.path / "artifacts").iterdir()
    return path


@pytest.mark.parametrize("damage", ["changed", "longer", "gone", "link"])
def test_damaged_artifacts(modelled: el.EpisodeStore, damage: str, cheetah: Path) -> None:
    """A file that is not what was kept is not handed to an environment, and verify tells of it."""
    assert modelled.verify().ok
    path = artifact_of(modelled)
    content = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(content.replace(b"-5", b"-6"))
    elif damage == "longer":
        path.write_bytes(content + b" ")
    elif damage == "link":
        path.symlink_to(cheetah)
    with pytest.raises(el.errors.CorruptStoreError, match=path.name):
        modelled.make_env("model", trust=True)
    kinds = {(fault.kind, fault.file) for fault in modelled.verify().faults}
    assert kinds == {("artifact", f"artifacts/{path.name}")}
    assert modelled.make_env("plain") is not None
    # The next run with this file mends it.
    if damage in ("changed", "longer", "gone"):
        record(modelled.path, gymnasium.make("HalfCheetah-v5", xml_file=str(cheetah)))
        assert modelled.refresh().verify().ok


def test_maintenance_keeps_artifacts(modelled: el.EpisodeStore) -> None:
    """Compaction, deletion of all episodes and vacuum leave the files of runs where they are."""
    modelled.compact()
    modelled.delete("run_id like 'model-%'")
    modelled.vacuum(timedelta(0))
    assert artifact_of(modelled).is_file()
    assert modelled.verify().ok
    modelled.make_env("model", trust=True).close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("link", [False, True])
def test_copies_and_merges_carry_artifacts(modelled: el.EpisodeStore, tmp_path: Path, link: bool) -> None:
    """A copy and a merge bring the files of the runs that they bring, and of no others."""
    copy = modelled.copy(tmp_path / "copy", "run_id like 'model-%'", link=link)
    assert artifact_of(copy).name == artifact_of(modelled).name
    assert copy[0].replay(copy.make_env(trust=True)).same
    other = modelled.copy(tmp_path / "other", "run_id like 'plain-%'", link=link)
    assert not (other.path / "artifacts").exists()
    el.merge([modelled], other, link=link)
    merged = other.refresh()
    assert merged["model" and modelled[0].id].replay(merged.make_env("model", trust=True)).same
    assert merged.verify().ok


def test_a_merge_refuses_damaged_artifacts(modelled: el.EpisodeStore, tmp_path: Path) -> None:
    """A file whose content is not its name's does not get into another store, and no run that needs it."""
    other = modelled.copy(tmp_path / "other", "run_id like 'plain-%'")
    artifact_of(modelled).write_bytes(b"damaged")
    with pytest.raises(el.errors.CorruptStoreError, match="artifact"):
        el.merge([modelled], other)
    assert len(other.refresh()) == 1
    assert other.runs.collect().height == 1
    assert other.verify().ok


@pytest.mark.further
def test_object_stores_keep_artifacts(cheetah: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """On an object store files are kept, shared, checked and carried as in a folder."""
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    server = shared_server()
    url, storage = new_url(), server.storage_options()
    for _ in range(2):
        env = gymnasium.make("HalfCheetah-v5", xml_file=str(cheetah))
        store = record(url, env, storage_options=storage)
    prefix = url.partition("://")[2].partition("/")[2]
    (name,) = server.keys(f"{prefix}/artifacts")
    assert name.strip("/") == hashlib.sha256(cheetah.read_bytes()).hexdigest()
    cheetah.unlink()
    assert store[0].replay(store.make_env(trust=True)).same
    copy = store.copy(tmp_path / "copy")
    assert copy[0].replay(copy.make_env(trust=True)).same
    server.write(f"{prefix}/artifacts/{name.strip('/')}", b"other")
    with pytest.raises(el.errors.CorruptStoreError, match=name.strip("/")):
        store.make_env(trust=True)
    assert [fault.kind for fault in store.verify().faults] == ["artifact"] * 2


def test_a_wide_filter_reads_bundles_as_texts(modelled: el.EpisodeStore) -> None:
    """Other engines see the bundle as a text column of runs."""
    frame = pl.scan_delta(str(modelled.path / "runs")).collect()
    assert frame.schema["env_bundle"] == pl.String
    found = modelled.sql("select count(*) from runs where env_bundle like '%light.xml%'").fetchall()
    assert found == [(1,)]


def test_the_environment_for_evaluation_is_made(tmp_path: Path) -> None:
    """`make_env(eval_env=True)` makes what the card names, by id or by spec, with the usual trust."""
    store = el.create(tmp_path / "store", "CartPole-v1")
    with pytest.raises(el.errors.EnvUnavailableError, match="eval_env_spec"):
        store.make_env(eval_env=True)
    spec = gymnasium.make("CartPole-v1", max_episode_steps=7).spec
    assert spec is not None
    for text, steps in {"CartPole-v1": 500, spec.to_json(): 7}.items():
        store.card = {"eval_env_spec": text}
        made = el.open(store.path).make_env(eval_env=True, render_mode="rgb_array")
        assert made.spec is not None and made.render_mode == "rgb_array"
        assert (made.spec.id, made.spec.max_episode_steps) == ("CartPole-v1", steps)
    store.card = {"eval_env_spec": "Missing-v3"}
    with pytest.raises(el.errors.EnvUnavailableError, match="Missing-v3"):
        store.make_env(eval_env=True)
    store.card = {
        "eval_env_spec": spec.to_json().replace("gymnasium.envs.classic_control.cartpole", "elsewhere")
    }
    with pytest.raises(el.errors.UntrustedEnvError, match="elsewhere"):
        store.make_env(eval_env=True)
    with pytest.raises(el.errors.InvalidArgumentError, match="two environments"):
        store.make_env("run", eval_env=True)

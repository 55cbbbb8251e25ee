"""`info`, `ls`, `head`, `show`, `stats` and `plot`: what they tell is what lies in the raw files."""

import json
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import episodelake as el
from effort import looped
from episodelake.terminal.output.json_text import json_of
from episodelake.terminal.reports.open_store import split_version
from terminal_stores import RawStore, make_stores
from test_cli import ESCAPE, call, no_terminal, printed, refused

__all__ = ["no_terminal"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RawStore]:
    """A store of every kind."""
    return make_stores(tmp_path_factory.mktemp("looking"))


@pytest.fixture
def cartpole(stores: dict[str, RawStore]) -> RawStore:
    """Twelve episodes of CartPole from two runs."""
    return stores["cartpole"]


def said(*words: object) -> Any:
    """What a command prints with --json."""
    return json.loads(printed(*words, "--json"))


def raw(store: RawStore, table: str) -> str:
    """A table's files, for DuckDB."""
    return f"read_parquet('{store.path}/{table}/*.parquet', union_by_name=true)"


# info


@looped("kind", ["cartpole", "awkward", "agents", "images"])
def test_info_measures_columns_on_disk(stores: dict[str, RawStore], kind: str) -> None:
    """The sizes of the columns are the compressed sizes that the files' footers name, leaf by leaf."""
    told = said("info", stores[kind].path)
    for name in ("steps", "episodes"):
        columns = {each["column"]: each["bytes"] for each in told["columns"] if each["table"] == name}
        total = 0
        for file in (stores[kind].path / name).glob("*.parquet"):
            footer = pq.read_metadata(file)
            groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
            total += sum(
                group.column(index).total_compressed_size
                for group in groups
                for index in range(group.num_columns)
            )
        assert sum(columns.values()) == total
        assert columns["episode_id"] > 0
    assert told["sizes_are_exact"]


def test_info_of_many_files_measures_some(cartpole: RawStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of files the sizes of some stand for all, and the report says so."""
    exact = said("info", cartpole.path)
    monkeypatch.setattr("episodelake.readers.measures.table_size.MEASURED_FILES", 1)
    about = said("info", cartpole.path)
    assert not about["sizes_are_exact"]
    sizes = [
        next(each["bytes"] for each in told["columns"] if each["column"] == "observation")
        for told in (exact, about)
    ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.5)
    assert "about" in printed("info", cartpole.path)


# show


def test_show_of_an_unknown_id_names_the_nearest(cartpole: RawStore) -> None:
    """A mistyped run and an id without its slash lead to the id that was meant."""
    wanted = said("ls", cartpole.path)[2]["episode_id"]
    run, _, number = wanted.partition("/")
    other = run[:-1] + ("y" if run.endswith("x") else "x")
    for mistyped in (f"{other}/{number}", f"{other}/{int(number)}", f"{run}{number}"):
        assert wanted in refused(1, "show", cartpole.path, mistyped)


@pytest.mark.parametrize("short", ["left/3", "left/000003", "lef/3", "RUN/3", "CUT/000003"])
def test_show_takes_a_short_id(cartpole: RawStore, short: str) -> None:
    """The name of a run, and the beginning of its id, as `ls` cuts it too, lead to that episode."""
    (run,) = {row["run_id"] for row in cartpole.table("episodes") if row["run_id"].startswith("left")}
    forms = {"RUN": run, "CUT": f"{run[:6]}…"}
    start, _, number = short.partition("/")
    assert said("show", cartpole.path, f"{forms.get(start, start)}/{number}")["episode_id"] == f"{run}/000003"


def test_a_short_id_that_fits_several_names_them(tmp_path: Path) -> None:
    """What two runs or two episodes share is refused with the ids that it fits."""
    store = el.create(tmp_path / "store", gymnasium.make("CartPole-v1"))
    for _ in range(2):
        with store.record(gymnasium.make("CartPole-v1"), run="ppo") as env:
            for _ in range(2):
                env.reset(seed=0)
                while not any(env.step(0)[2:4]):
                    pass
    ids = [row["episode_id"] for row in RawStore(tmp_path / "store").table("episodes")]
    told = refused(1, "show", tmp_path / "store", "ppo/1")
    assert sorted(re.findall(r"'(ppo-\w+/\d+)'", told)) == sorted(each for each in ids if each[-1] == "1")
    assert "and others" in refused(1, "replay", tmp_path / "store", "ppo-")
    cut = refused(1, "show", tmp_path / "store", ids[1][:-1])
    assert re.findall(r"'(ppo-\w+/\d{6})'", cut) == [each for each in ids if each[:-1] == ids[1][:-1]]


def test_show_films_one_of_several_images(tmp_path: Path) -> None:
    """Where there are two cameras the error names the option that chooses, which then does."""
    image = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    store = el.create(
        tmp_path / "store",
        observation_space=gymnasium.spaces.Dict(left=image, right=image),
        action_space=gymnasium.spaces.Discrete(2),
    )
    frames = {name: np.full((3, 16, 16, 3), shade, np.uint8) for name, shade in (("left", 9), ("right", 200))}
    with store.writer() as writer:
        writer.write_episode(
            observations=frames, actions=[0, 1], rewards=[0.0, 0.0], terminations=True, truncations=False
        )
    words = ("show", tmp_path / "store", 0, "--frames", tmp_path / "film.png", "--steps", "0")
    told = refused(1, *words)
    assert "Choose one by its column: observation.left, observation.right." in told
    assert call(*words, "--column", "right").exit_code == 0
    assert np.unique(np.asarray(Image.open(tmp_path / "film.png"))).tolist() == [200]
    assert "--frames" in refused(2, *words[:3], "--column", "right")


@pytest.mark.parametrize(("suffix", "mark"), [(".png", b"\x89PNG"), (".gif", b"GIF8"), (".mp4", b"ftyp")])
def test_show_writes_frames(stores: dict[str, RawStore], tmp_path: Path, suffix: str, mark: bytes) -> None:
    """Frames of recorded images become a file of the kind that its name says."""
    file = tmp_path / f"film{suffix}"
    told = said("show", stores["images"].path, 1, "--frames", file)
    assert mark in file.read_bytes()[:12]
    assert told["bytes"] == file.stat().st_size


def test_frames_of_some_steps(stores: dict[str, RawStore], tmp_path: Path) -> None:
    """--steps takes a part of the frames, as a slice does."""
    from PIL import Image

    frames = {}
    for words in ([], ["--steps", "1:5:2"], ["--steps", "2"]):
        printed("show", stores["images"].path, 1, "--frames", tmp_path / "film.gif", *words)
        with Image.open(tmp_path / "film.gif") as film:
            frames[" ".join(words)] = getattr(film, "n_frames", 1)
    assert list(frames.values()) == [7, 2, 1]
    assert "names no steps" in refused(
        2, "show", stores["images"].path, 1, "--frames", "x.gif", "--steps", "a:b"
    )
    assert "--frames" in refused(2, "show", stores["images"].path, 1, "--steps", "1:2")


# plot


def test_plot_draws_huge_actions(tmp_path: Path) -> None:
    """Actions near the largest number have bins; what no axis holds is counted beside the chart."""
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    actions = np.random.default_rng(0).normal(size=(9, 2)) * [1, 1e200]
    actions[3:6, 0] = 1.7e308, -1.7e308, np.nan
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((10, 2)), actions=actions, rewards=np.ones(9), terminations=True,
            truncations=False,
        )  # fmt: skip
    rows = said("plot", store.path, "actions")
    assert [sum(row["count"] for row in rows if row["action"] == f"action[{k}]") for k in (0, 1)] == [6, 9]
    assert "action[0]: 3 values not drawn" in call("plot", store.path, "actions").stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize(("suffix", "mark"), [("svg", "<svg"), ("html", "<script"), ("png", "PNG")])
def test_plot_writes_files(cartpole: RawStore, tmp_path: Path, suffix: str, mark: str) -> None:
    """A chart is written in the format that its name says, and a page needs no network."""
    file = tmp_path / f"chart.{suffix}"
    told = said("plot", cartpole.path, "returns", "--output", file)
    assert told["bytes"] == file.stat().st_size
    content = file.read_bytes()
    assert mark.encode() in content
    assert b'src="http' not in content
    assert sorted(tmp_path.iterdir()) == [file]


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two runs with long names, a hundred episodes and returns of many digits each."""
    path = tmp_path_factory.mktemp("long") / "store"
    box = gymnasium.spaces.Box(-1, 1, (2,))
    store = el.create(path, observation_space=box, action_space=box)
    random = np.random.default_rng(0)
    for run in ("a-run-with-a-long-name", "another-run-with-a-long-name"):
        with store.writer(run=run) as writer:
            for _ in range(100):
                writer.write_episode(
                    observations=random.uniform(-1, 1, (3, 2)).astype(np.float32),
                    actions=random.uniform(-1, 1, (2, 2)).astype(np.float32),
                    rewards=random.normal(size=2) * 1e3,
                    terminations=True,
                    truncations=False,
                )
    return path


@pytest.mark.sample
@pytest.mark.parametrize(("kind", "title"), [("returns", "points"), ("actions", "counts")])
@pytest.mark.parametrize("width", [40, 60, 80])
def test_plots_fit_the_window(
    long_runs: Path, monkeypatch: pytest.MonkeyPatch, kind: str, title: str, width: int
) -> None:
    """On a narrow terminal a drawing is whole, and no line of its table is wider than the window."""
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    lines = ESCAPE.sub("", call("plot", long_runs, kind).stdout).splitlines()
    place = lines[0].index(title)
    drawn = [line[place:].split("  ")[0] for line in lines[2:4]]
    assert [set(each) - set("▁▂▃▄▅▆▇█") for each in drawn] == [set(), set()]
    assert min(map(len, drawn)) >= 12
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80])
def test_names_and_ids_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Names in any script are shown, ids keep their numbers, and a dead sensor is a finding of its own."""
    box = gymnasium.spaces.Box(-1, 1, (20,))
    store = el.create(tmp_path / "lake" / "store", observation_space=box, action_space=box)
    for run in ("базовый-прогон", "a-run-with-a-rather-long-name-of-its-own"):
        with store.writer(run=run) as writer:
            for number in range(3):
                values = np.random.default_rng(number).uniform(-1, 1, (13, 20)).astype(np.float32)
                values[:, 3] = 0.5
                writer.write_episode(
                    observations=values, actions=values[1:], rewards=np.arange(12.0), terminations=True,
                    truncations=False, infos={"cost": np.arange(13.0)},
                )  # fmt: skip
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)

    def shown(*words: object) -> str:
        return ESCAPE.sub("", call(words[0], store.path, *words[1:]).stdout)

    for words in (("info",), ("show", 0), ("plot", "returns"), ("stats", "--episodes-only")):
        assert "базовый-прогон" in shown(*words)
    assert "/000002" in shown("ls", "--descending") and "/000000" in shown("ls")
    assert "1 finding: 1 in all 6 episodes." in " ".join(shown("health", "--ignore", "duplicate").split())
    drawn = shown("show", 0)
    assert all(f"{name}[3]" in drawn for name in ("action", "observation")) and "info.cost" in drawn
    assert f"`episodelake lake {tmp_path / 'lake'}`" in refused(1, "info", tmp_path / "lake").replace(
        "\n", ""
    )


# Versions and JSON


@looped(
    ("path", "split"),
    [
        ("data/a", ("data/a", None)),
        ("data/a@3", ("data/a", "3")),
        ("s3://bucket/a@b/c", ("s3://bucket/a@b/c", None)),
        ("s3://bucket/a@v1", ("s3://bucket/a", "v1")),
        ("abfss://box@account.net", ("abfss://box@account.net", None)),
        ("abfss://box@account.net/a@v1", ("abfss://box@account.net/a", "v1")),
    ],
)
def test_versions_in_paths(path: str, split: tuple[str, str | None]) -> None:
    """What follows the last @ is a version only where it cannot be part of the place."""
    assert split_version(path) == split


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_json_takes_every_value(value: Any) -> None:
    """Any value becomes strict JSON without control characters, and numbers come back as they were."""
    text = json_of(value)
    assert not any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in text)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    back = json.loads(text, parse_constant=refuse)
    if isinstance(value, float) and not math.isfinite(value):
        assert back in ("NaN", "Infinity", "-Infinity")
    elif isinstance(value, float | int | str | bool | None):
        assert back == value


def test_frames_of_another_motion_are_an_error(tmp_path: Path) -> None:
    """A replay that differs from what was recorded writes its file, and says so with status 1."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorded:
        for options in ({"seed": 3}, {}):
            recorded.reset(**options)
            while not any(recorded.step(0)[2:4]):
                pass
    same, other = (call("show", store.path, k, "--frames", tmp_path / f"{k}.gif") for k in (0, 1))
    assert same.exit_code == 0 and "differs" not in same.stderr
    message = other.stderr.partition("Error: ")[2]
    assert other.exit_code == 1 and message.startswith("The replay differs from the recording: step 0")
    assert "no seed to start from" in message and "Warning" not in other.stderr
    assert (tmp_path / "1.gif").exists()

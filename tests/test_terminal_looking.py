"""`info`, `ls`, `head`, `show`, `stats` and `plot`: what they tell is what lies in the raw files."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import episodelake as el
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


def test_info_adds_up(cartpole: RawStore) -> None:
    """Amounts, ends, runs and lengths are those that DuckDB counts in the raw files."""
    told = said("info", cartpole.path)
    episodes = raw(cartpole, "episodes")
    counted = duckdb.sql(
        f"SELECT count(*), sum(length), min(length), max(length), avg(length) FROM {episodes}"
    )
    count, transitions, shortest, longest, mean = counted.fetchall()[0]
    assert (told["episodes"], told["transitions"]) == (count, transitions)
    assert told["lengths"] == {"lowest": shortest, "mean": pytest.approx(mean), "highest": longest}
    ends = duckdb.sql(f"SELECT end_reason, count(*) FROM {episodes} GROUP BY 1").fetchall()
    assert told["end_reasons"] == dict(ends)
    by_run = duckdb.sql(
        f"SELECT run_id, count(*), sum(length), avg(episode_return) FROM {episodes} GROUP BY 1"
    )
    names = ("run_id", "episodes", "transitions", "mean_return")
    assert sorted(tuple(run[name] for name in names) for run in told["runs"]) == sorted(by_run.fetchall())
    assert told["environments"] == ["CartPole-v1"]
    assert told["damaged"] == []


@pytest.mark.parametrize("kind", ["cartpole", "awkward", "agents", "images"])
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
    monkeypatch.setattr("episodelake.terminal.reports.store_figures.MEASURED_FILES", 1)
    about = said("info", cartpole.path)
    assert not about["sizes_are_exact"]
    sizes = [
        next(each["bytes"] for each in told["columns"] if each["column"] == "observation")
        for told in (exact, about)
    ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.5)
    assert "about" in printed("info", cartpole.path)


# ls


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("column", ["episode_return", "length", "episode_id", "started_at"])
def test_ls_sorts(cartpole: RawStore, column: str, descending: bool) -> None:
    """Sorted episodes stand as DuckDB sorts the raw rows."""
    words = ["--descending"] if descending else []
    rows = said("ls", cartpole.path, "--order-by", column, *words, "--columns", column)
    order = "DESC" if descending else "ASC"
    expected = duckdb.sql(
        f"SELECT {column}::VARCHAR FROM {raw(cartpole, 'episodes')} ORDER BY {column} {order}"
    )
    values = [(row[column] if isinstance(row[column], str) else str(row[column]),) for row in rows]
    if column == "started_at":
        assert values == sorted(values, reverse=descending)
    else:
        assert values == expected.fetchall()


@pytest.mark.further
def test_ls_filters_and_pages(cartpole: RawStore) -> None:
    """Pages of a filtered list together are the list, and positions are those that show takes."""
    condition = "length > 9"
    whole = said("ls", cartpole.path, "--filter", condition)
    expected = duckdb.sql(f"SELECT count(*) FROM {raw(cartpole, 'episodes')} WHERE {condition}").fetchall()
    assert len(whole) == expected[0][0] > 2
    pages = [
        said("ls", cartpole.path, "--filter", condition, "--limit", 2, "--offset", offset)
        for offset in range(0, len(whole), 2)
    ]
    assert [row for page in pages for row in page] == whole
    for row in whole:
        assert said("show", cartpole.path, row["position"])["episode_id"] == row["episode_id"]


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--columns", "lenght"),
        ("ls", "--order-by", "lenght"),
        ("ls", "--filter", "lenght > 3"),
        ("head", "episodes", "--columns", "lenght"),
    ],
)
def test_a_misspelt_column_gets_the_nearest(cartpole: RawStore, words: tuple[str, ...]) -> None:
    """The message names the column that was probably meant."""
    told = refused(1, words[0], cartpole.path, *words[1:])
    assert "lenght" in told
    assert "length" in told


def test_ls_sorts_several_objectives_by_their_sum(stores: dict[str, RawStore]) -> None:
    """Where the return is a vector, episodes are sorted by the sum of its objectives."""
    rows = said("ls", stores["objectives"].path, "--order-by", "episode_return")
    totals = [sum(row["episode_return"]) for row in rows]
    assert totals == sorted(totals)


# head


@pytest.mark.parametrize("name", ["steps", "episodes"])
def test_head_shows_the_first_rows(cartpole: RawStore, name: str) -> None:
    """The first rows are those of the first file, value by value."""
    rows = said("head", cartpole.path, name, "--limit", 4)
    first = said("ls", cartpole.path)[0]["episode_id"].split("/")[0]
    expected = [
        row for row in cartpole.table(name) if row.get("run_id", row.get("episode_id")).startswith(first)
    ]
    plain = [json.loads(json_of(row)) for row in expected[:4]]
    assert [{key: row[key] for key in plain[0]} for row in rows[: len(plain)]] == plain


def test_head_of_transitions_has_no_last_rows(stores: dict[str, RawStore]) -> None:
    """Transitions leave out the row of an episode's end, which has no action."""
    rows = said("head", stores["images"].path, "transitions", "-n", 20, "--columns", "t,action")
    assert [(row["t"], row["action"]) for row in rows] == [
        (t, t % 3) for length in (4, 6) for t in range(length)
    ]


def test_head_refuses_an_unknown_table(cartpole: RawStore) -> None:
    """A misspelt table is wrong usage, and the message names all tables."""
    assert "'episodes'" in refused(2, "head", cartpole.path, "episode")


# show


def test_show_as_json_tells_the_episode(cartpole: RawStore) -> None:
    """Summary and figures of signals agree with the raw rows."""
    told = said("show", cartpole.path, 3)
    (row,) = [each for each in cartpole.table("episodes") if each["episode_id"] == told["episode_id"]]
    names = ("run_id", "length", "episode_return", "end_reason", "seed", "terminated", "truncated")
    assert {name: told[name] for name in names} == {name: row[name] for name in names}
    runs = [each for each in cartpole.table("runs") if each["run_id"] == told["run_id"]]
    assert runs[0]["metadata.policy"]
    assert all(told["run_metadata"] == {"policy": run["metadata.policy"]} for run in runs)
    steps = [each for each in cartpole.table("steps") if each["episode_id"] == told["episode_id"]]
    signal = next(each for each in told["signals"] if each["name"] == "observation[2]")
    angles = [each["observation"][2] for each in steps]
    assert signal["values"] == len(angles) == row["length"] + 1
    assert (signal["lowest"], signal["highest"]) == (min(angles), max(angles))
    assert (signal["first"], signal["last"]) == (angles[0], angles[-1])


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


def test_advice_fits_a_shell(stores: dict[str, RawStore], tmp_path: Path) -> None:
    """Errors speak of what a command line can do, not of calls in Python."""
    several = refused(1, "show", stores["agents"].path, 0, "--frames", tmp_path / "film.gif")
    assert several.strip().endswith("Choose one with --agent.") and "several agents: scout_0, " in several
    for words in (("info", tmp_path / "none"), ("info", tmp_path)):
        assert "episodelake.create" not in refused(1, *words)
    newer = refused(1, "sql", f"{stores['cartpole'].path}@1", "SELECT missing FROM steps")
    assert "Version 2 is newer: refresh the store, or open that version" in newer


def test_show_one_agent(stores: dict[str, RawStore]) -> None:
    """With --agent an episode of several shows that agent; an unknown one is refused with the names."""
    path = stores["agents"].path
    agents = [each["agent"] for each in said("show", path, 0)["agents"]]
    told = said("show", path, 0, "--agent", agents[0])
    rows = [row for row in stores["agents"].table("steps") if row["episode_id"] == told["episode_id"]]
    own = [row for row in rows if row["agent_id"] == agents[0]]
    assert told["length"] + 1 == len(own) < len(rows)
    assert agents[0] in refused(1, "show", path, 0, "--agent", "nobody")


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


def test_frames_where_there_are_none(stores: dict[str, RawStore], tmp_path: Path) -> None:
    """A store without images whose environment cannot be made again says so, and writes nothing."""
    assert refused(1, "show", stores["objectives"].path, 0, "--frames", tmp_path / "film.gif")
    assert list(tmp_path.iterdir()) == []


# stats


@pytest.mark.parametrize("kind", ["cartpole", "agents"])
def test_stats_are_exact(stores: dict[str, RawStore], kind: str) -> None:
    """Mean, deviation, extremes and quantiles are those of Polars on the raw files."""
    told = said("stats", stores[kind].path)
    frame = pl.scan_parquet(
        stores[kind].path / "steps" / "*.parquet", missing_columns="insert", extra_columns="ignore"
    )
    rewards = frame.select("reward").collect()["reward"].drop_nulls()
    (found,) = [each for each in told["columns"] if each["column"] == "reward"]
    assert found["count"] == len(rewards)
    assert found["mean"] == pytest.approx(rewards.mean())
    assert found["std"] == pytest.approx(rewards.std(ddof=0))
    assert (found["minimum"], found["maximum"]) == (rewards.min(), rewards.max())
    assert found["q0.25"] == pytest.approx(rewards.quantile(0.25, "linear"))


def test_stats_of_nested_columns_of_agents(stores: dict[str, RawStore]) -> None:
    """Of several agents each element of a vector is measured over the rows that have one."""
    told = said("stats", stores["agents"].path, "--columns", "scout.observation")
    values = [
        row["scout.observation"]
        for row in stores["agents"].table("steps")
        if row["scout.observation"] is not None
    ]
    assert [each["element"] for each in told["columns"]] == ["0", "1"]
    for index, found in enumerate(told["columns"]):
        numbers = np.array([value[index] for value in values])
        assert found["rows"] == len(numbers)
        assert found["mean"] == pytest.approx(numbers.mean())
        assert found["q0.75"] == pytest.approx(np.quantile(numbers, 0.75))


def test_stats_of_episodes_by_run(cartpole: RawStore) -> None:
    """Lengths and returns are measured over all episodes and over those of each run."""
    told = said("stats", cartpole.path, "--episodes-only")
    assert told["columns"] == []
    episodes = cartpole.table("episodes")
    for found in told["episodes"]:
        wanted = [row[found["column"]] for row in episodes if found["run_id"] in (None, row["run_id"])]
        assert found["count"] == len(wanted)
        assert found["mean"] == pytest.approx(np.mean(wanted))
        assert found["q0.95"] == pytest.approx(np.quantile(wanted, 0.95))
        assert (found["minimum"], found["maximum"]) == (min(wanted), max(wanted))
    runs = {row["run_id"] for row in episodes}
    assert [(each["run_id"] in runs or each["run_id"] is None) for each in told["episodes"]] == [True] * 6


def test_stats_of_a_filter(cartpole: RawStore) -> None:
    """With a condition only the episodes that fulfil it are measured."""
    told = said("stats", cartpole.path, "--filter", "length <= 9", "--columns", "reward")
    lengths = [row["length"] for row in cartpole.table("episodes") if row["length"] <= 9]
    assert told["columns"][0]["count"] == sum(lengths)


# plot


@pytest.mark.parametrize("kind", ["returns", "lengths"])
def test_plot_draws_means_over_time(cartpole: RawStore, kind: str) -> None:
    """The points of a run of few episodes are its values in the order of their numbers."""
    column = {"returns": "episode_return", "lengths": "length"}[kind]
    for line in said("plot", cartpole.path, kind):
        rows = [row for row in cartpole.table("episodes") if row["run_id"] == line["run"]]
        assert line["points"] == [row[column] for row in sorted(rows, key=lambda row: row["number"])]
        assert line["highest"] == max(line["points"])


def test_plot_counts(stores: dict[str, RawStore], cartpole: RawStore) -> None:
    """Counts of a histogram and of actions are those of the raw files."""
    drawn = said("plot", cartpole.path, "histogram")
    assert sum(sum(run["counts"]) for run in drawn) == 12
    actions = {row["from"]: row["count"] for row in said("plot", cartpole.path, "actions")}
    expected = duckdb.sql(
        f"SELECT action, count(*) FROM {raw(cartpole, 'steps')} WHERE action IS NOT NULL GROUP BY 1"
    )
    assert actions == dict(expected.fetchall())
    bins = said("plot", stores["objectives"].path, "actions")
    first = [row for row in bins if row["action"] == "action[0]"]
    values = [row["action"][0] for row in stores["objectives"].table("steps") if row["action"] is not None]
    assert sum(row["count"] for row in first) == len(values)
    assert (first[0]["from"], pytest.approx(first[-1]["to"])) == (min(values), max(values))


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


def test_plot_refuses_what_it_cannot_write(cartpole: RawStore, tmp_path: Path) -> None:
    """Another suffix, another kind, and visitation without a file are refused with what is possible."""
    assert ".svg" in refused(2, "plot", cartpole.path, "returns", "-o", tmp_path / "x.pdf")
    assert "'histogram'" in refused(2, "plot", cartpole.path, "histo")
    assert "'returns', 'lengths', 'histogram', 'learning', 'actions', 'visitation'" in refused(
        2, "plot", cartpole.path, "x"
    )
    assert "--output" in refused(1, "plot", cartpole.path, "visitation")


def test_stats_measure_one_element(cartpole: RawStore) -> None:
    """`observation[2]` is the row of that element; beside the whole column it adds none."""
    path = cartpole.path
    whole = said("stats", path, "--columns", "observation")["columns"]
    assert said("stats", path, "-c", "observation[2],observation[0]")["columns"] == [whole[0], whole[2]]
    assert said("stats", path, "-c", "observation[2],observation")["columns"] == whole
    told = refused(1, "stats", path, "-c", "observation[4]")
    assert "There is no element 'observation[4]'. observation has 0, 1, 2, 3." in told
    assert "There is no element 'reward[0]'. reward has none." in refused(1, "stats", path, "-c", "reward[0]")
    assert "There is no column 'reward[x'" in refused(1, "stats", path, "-c", "reward[x")


def test_lines_of_many_runs_have_one_scale(cartpole: RawStore) -> None:
    """A line says how its run compares with the others; a single one has nothing to compare it with."""
    result = call("plot", cartpole.path, "returns")
    assert "All lines have the same scale." in result.stderr
    rows = said("plot", cartpole.path, "returns")
    lowest = min(min(row["points"]) for row in rows)
    lines = {row[0]: row[-1] for row in map(lambda line: line.split("\t"), result.stdout.splitlines()[1:])}
    assert {"▁" in lines[row["run"]] for row in rows if min(row["points"]) == lowest} == {True}
    assert len({row["highest"] for row in rows}) > 1
    for row in rows:
        if min(row["points"]) > (lowest + max(max(each["points"]) for each in rows)) / 2:
            assert "▁" not in lines[row["run"]]
    one = call("plot", cartpole.path, "returns", "--filter", "run_id LIKE 'left%'")
    assert (one.exit_code, one.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["returns", "lengths", "histogram", "actions"])
def test_plot_of_no_episode_is_an_error(stores: dict[str, RawStore], tmp_path: Path, kind: str) -> None:
    """With characters as to a file; for programs an empty list is an answer."""
    empty = stores["empty"].path
    told = refused(1, "plot", empty, kind)
    assert told.startswith("Error: There is nothing to draw: there are no episodes. Record some")
    assert refused(1, "plot", empty, kind, "-o", tmp_path / "x.svg") == told
    assert said("plot", empty, kind) == []
    assert not list(tmp_path.iterdir())


def test_plot_knows_a_store_in_the_wrong_place(cartpole: RawStore) -> None:
    """Swapped words get the kinds of charts."""
    message = " ".join(refused(2, "plot", "returns", cartpole.path).split())
    assert "Invalid value for 'KIND'" in message and "'returns', 'lengths'" in message


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


# Versions and JSON


def test_older_versions_are_shown(cartpole: RawStore, tmp_path: Path) -> None:
    """PATH@VERSION and PATH@TAG show a store as it was."""
    path = tmp_path / "store"
    shutil.copytree(cartpole.path, path)
    store = el.open(path)
    store.tag("v1.0")
    store.delete("length > 9")
    kept = len(store)
    assert said("info", path)["episodes"] == kept < 12
    for older in ("v1.0", 2):
        assert said("info", f"{path}@{older}")["episodes"] == 12
    assert "v9" in refused(1, "info", f"{path}@v9")
    named = tmp_path / "store@v1.0"
    shutil.copytree(path, named)
    assert said("info", named)["episodes"] == kept


@pytest.mark.parametrize(
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


def test_delete_without_a_terminal_says_what_would_go(cartpole: RawStore) -> None:
    """It checks the condition first, and deletes nothing without --yes."""
    before = cartpole.table("episodes")
    many = sum(row["length"] <= 11 for row in before)
    told = " ".join(refused(2, "delete", cartpole.path, "length <= 11").split())
    assert f"Nothing was deleted: {many} episodes would go" in told
    assert "length" in refused(1, "delete", cartpole.path, "lenght <= 11")
    none = call("delete", cartpole.path, "length < 0")
    assert none.exit_code == 0 and "No episode fulfils the condition" in none.stderr
    assert cartpole.table("episodes") == before


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

"""Every command on stores of every kind: nested, of agents or objectives, with images, empty, remote."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import episodelake as el
from effort import looped
from object_server import new_url, shared_server
from terminal_stores import MAKERS, RawStore, make_stores
from test_cli import call, no_terminal, printed, refused, table

__all__ = ["no_terminal"]

READING: list[tuple[str, ...]] = [
    ("info",),
    ("ls", "--order-by", "episode_return", "--descending"),
    ("ls", "--filter", "length > 2", "--columns", "episode_id,agents"),
    ("head", "steps"),
    ("head", "episodes"),
    ("head", "runs"),
    ("head", "transitions"),
    ("show", "-1"),
    ("sql", "SELECT count(*) AS n, sum(len(episode_id)) FROM steps"),
    ("stats",),
    ("plot", "returns"),
    ("plot", "lengths"),
    ("plot", "histogram"),
    ("plot", "actions"),
    ("history",),
    ("tag",),
    ("annotations",),
]
KEEPING: list[tuple[str, ...]] = [
    ("vacuum", "--dry-run"),
    ("delete", "length < 0", "--yes"),
    ("recover",),
    ("compact",),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RawStore]:
    """A store of every kind."""
    return make_stores(tmp_path_factory.mktemp("kinds"))


def works(kind: str, words: tuple[str, ...]) -> bool:
    """Whether a command has something to work on: an empty store has no episode, one agent no agents."""
    return not (kind.startswith("empty") and words[0] in ("show", "plot")) and not (
        any("agents" in word for word in words) and "agents" not in kind
    )


@pytest.mark.slow
@looped("words", READING)
@pytest.mark.parametrize("kind", MAKERS)
def test_reading_commands(stores: dict[str, RawStore], kind: str, words: tuple[str, ...]) -> None:
    """Each command prints plain text and valid JSON of a store of each kind, or says what does not apply."""
    path = stores[kind].path
    if works(kind, words):
        printed(words[0], path, *words[1:])
        json.loads(printed(words[0], path, *words[1:], "--json"))
    else:
        assert refused(1, words[0], path, *words[1:]).startswith("Error: ")
    if kind.startswith("empty") and words[0] == "plot":
        assert json.loads(printed(words[0], path, *words[1:], "--json")) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_maintenance_commands_speak_json(stores: dict[str, RawStore], tmp_path: Path, kind: str) -> None:
    """The commands that look after a store report as JSON too, and the store stays the same."""
    path = tmp_path / "store"
    shutil.copytree(stores[kind].path, path)
    for words in KEEPING:
        json.loads(printed(words[0], path, *words[1:], "--json"))
    assert json.loads(call("diff", stores[kind].path, path, "--json").stdout)["same"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", MAKERS)
def test_lists_are_complete(stores: dict[str, RawStore], kind: str) -> None:
    """`ls` and `info` have exactly the episodes of the raw files."""
    path = stores[kind].path
    expected = sorted(row["episode_id"] for row in stores[kind].table("episodes"))
    assert sorted(row["episode_id"] for row in json.loads(printed("ls", path, "--json"))) == expected
    assert json.loads(printed("info", path, "--json"))["episodes"] == len(expected)


# An object store


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """A store on an S3 server, and the options that reach it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPISODELAKE_SPOOL", str(tmp_path_factory.mktemp("spool")))
        options = shared_server().storage_options()
        url = new_url()
        local = tmp_path_factory.mktemp("local") / "store"
        MAKERS["cartpole"](local)
        el.open(local).copy(url, storage_options=options)
        yield url, [f"--storage-option={key}={value}" for key, value in options.items()]


@pytest.mark.slow
@looped("words", READING)
def test_commands_on_an_object_store(remote: tuple[str, list[str]], words: tuple[str, ...]) -> None:
    """The commands work on a URL, at a version too."""
    url, options = remote
    if works("cartpole", words):
        json.loads(printed(words[0], url, *words[1:], "--json", *options))
        if words[0] == "info":
            told = json.loads(printed("info", f"{url}@1", "--json", *options))
            assert (told["path"], told["episodes"]) == (url, 12)


# Damage


def spoil_footer(file: Path) -> None:
    """Cut a file short."""
    file.write_bytes(file.read_bytes()[:-20])


def spoil_page(file: Path) -> None:
    """Turn some bits in the first page of a file; its footer stays."""
    content = bytearray(file.read_bytes())
    for place in range(40, 60):
        content[place] ^= 0xFF
    file.write_bytes(bytes(content))


def remove(file: Path) -> None:
    """Delete a file."""
    file.unlink()


DAMAGES = [spoil_footer, spoil_page, remove]


@pytest.fixture
def damaged(
    stores: dict[str, RawStore], tmp_path: Path
) -> Callable[[str, Callable[[Path], None]], tuple[Path, Path]]:
    """Copies the store with two runs and damages the first file of a table; gives the store and the file."""

    def make(name: str, spoil: Callable[[Path], None]) -> tuple[Path, Path]:
        path = tmp_path / "store"
        shutil.copytree(stores["cartpole"].path, path)
        file = min((path / name).glob("*.parquet"))
        spoil(file)
        return path, file

    return make


@pytest.mark.sample(1)
@pytest.mark.parametrize("spoil", DAMAGES)
def test_the_rest_stays_explorable(
    stores: dict[str, RawStore], damaged: Any, spoil: Callable[[Path], None]
) -> None:
    """With a damaged file of episodes the others are listed at their places, shown and measured, and the file
    is named.
    """
    kinds = stores["cartpole"].path
    path, file = damaged("episodes", spoil)
    whole = {row["position"]: row["episode_id"] for row in json.loads(printed("ls", kinds, "--json"))}
    listed = call("ls", path, "--json")
    assert listed.exit_code == 0
    rows = json.loads(listed.stdout)
    lost = file.name.rpartition("-")[0]
    assert len(rows) == 6
    assert {row["position"]: row["episode_id"] for row in rows} == {
        position: name for position, name in whole.items() if not name.startswith(lost)
    }
    for position in (rows[0]["position"], rows[-1]["position"], rows[-1]["position"] - 12):
        shown = json.loads(call("show", path, position, "--json").stdout)
        assert (shown["episode_id"], shown["position"]) == (whole[position % 12], position % 12)
    gone = next(position for position, name in whole.items() if name.startswith(lost))
    assert call("show", path, gone).exit_code == 1
    assert file.name in listed.stderr
    assert "Left out: 6 rows of episodes." in listed.stderr
    for words in (
        ("info",),
        ("show", rows[0]["episode_id"]),
        ("show", rows[0]["position"]),
        ("head", "steps"),
        ("plot", "returns"),
        ("stats",),
    ):
        result = call(words[0], path, *words[1:], "--json")
        assert result.exit_code == 0, result.output
        json.loads(result.stdout)
        if spoil is not spoil_page and words != ("show", rows[0]["position"]):
            # Of a page that nobody reads nothing is known; a position leads to the file of its episode alone.
            assert file.name in result.stderr
    # The spoilt page is one of ids, which info does not read.
    left = 12 if spoil is spoil_page else 6
    assert json.loads(call("info", path, "--json").stdout)["episodes"] == left
    assert file.name in refused(1, "show", path, f"{lost}/000000")


@pytest.mark.sample(1)
@pytest.mark.parametrize("spoil", DAMAGES)
def test_damaged_steps_concern_their_episodes_alone(damaged: Any, spoil: Callable[[Path], None]) -> None:
    """All episodes are listed; those of the intact file are shown, those of the damaged one name it."""
    path, file = damaged("steps", spoil)
    rows = json.loads(printed("ls", path, "--json"))
    lost = file.name.rpartition("-")[0]
    assert len(rows) == 12
    kept = next(row for row in rows if not row["episode_id"].startswith(lost))
    gone = next(row for row in rows if row["episode_id"].startswith(lost))
    told = json.loads(printed("show", path, kept["episode_id"], "--json"))
    assert told["length"] == kept["length"]
    assert printed("show", path, kept["episode_id"])
    lost_one = call("show", path, gone["episode_id"])
    assert (lost_one.exit_code, file.name in lost_one.stderr) == (1, True)
    assert f"length\t{gone['length']}" in lost_one.stdout
    result = call("info", path, "--json")
    assert (result.exit_code, json.loads(result.stdout)["episodes"]) == (0, 12)
    lengths = "SELECT sum(length) AS n FROM episodes"
    assert json.loads(printed("sql", path, lengths, "--json")) == [{"n": sum(row["length"] for row in rows)}]
    if spoil is not spoil_page:
        without = call("sql", path, "SELECT sum(reward)::BIGINT AS n FROM transitions", "--json")
        assert (without.exit_code, file.name in without.stderr) == (1, True)
        healthy = sum(row["length"] for row in rows if not row["episode_id"].startswith(lost))
        assert json.loads(without.stdout) == [{"n": healthy}]
        for words in (["head"], ["stats"], ["plot", "actions"]):
            rest = call(words[0], path, *words[1:], "--json")
            assert (rest.exit_code, file.name in rest.stderr) == (1, True), rest.output
            assert rest.stdout and json.loads(rest.stdout), rest.output
        assert file.name in call("diff", path, path, "--json").stderr
        assert file.name in result.stderr
        assert file.name in json.loads(result.stdout)["damaged"][0]


@pytest.mark.parametrize("spoil", DAMAGES)
def test_damaged_runs_and_cards_leave_episodes(damaged: Any, spoil: Callable[[Path], None]) -> None:
    """A damaged file of runs costs its rows only, and a damaged card the card."""
    path, file = damaged("runs", spoil)
    (path / "card.json").write_text("{")
    result = call("info", path, "--json")
    assert (result.exit_code, json.loads(result.stdout)["episodes"]) == (0, 12)
    assert file.name in result.stderr and "card.json" in result.stderr
    assert json.loads(result.stdout)["card"] is None
    assert len(json.loads(printed("ls", path, "--json"))) == 12


def test_leaving_out_damaged_files(damaged: Any) -> None:
    """In the library too a store shows what can be read, and says what it left out."""
    path, file = damaged("episodes", spoil_footer)
    store = el.open(path)
    with pytest.raises(el.errors.CorruptStoreError):
        store.sql("SELECT * FROM episodes")
    (told,) = store.leave_out_damaged()
    assert file.name in told
    assert len(store) == 6
    assert store.sql("SELECT count(*) FROM episodes").fetchall() == [(6,)]
    assert sum(episode.length for episode in store) == store.transitions.collect().height
    again = pickle.loads(pickle.dumps(store[:]))
    assert [episode.id for episode in again] == [episode.id for episode in store]
    spare = el.create(path.parent / "whole", gymnasium.make("CartPole-v1"))
    assert spare.leave_out_damaged() == []


@pytest.mark.further
def test_plain_tables_of_every_kind(stores: dict[str, RawStore]) -> None:
    """In a pipe every row of a table has as many cells as its header, whatever the values hold."""
    for store in stores.values():
        for name in ("steps", "episodes", "runs"):
            lines = table(printed("head", store.path, name))
            assert {len(line) for line in lines} == {len(lines[0])}

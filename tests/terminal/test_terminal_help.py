"""What the command line says of itself: help, completion by the shell, and what starting it loads."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import episodelake as el
from effort import looped
from episodelake.terminal.app import app
from episodelake.terminal.command import BEGIN, CHECK, EXCHANGE, KEEP, LOOK
from terminal_sessions import ESCAPE, RUN, terminal
from terminal_stores import MAKERS
from test_cli import call, no_terminal, printed
from waiting import PATIENCE

__all__ = ["no_terminal"]

GROUP = typer.main.get_command(app)
COMMANDS = sorted(set(GROUP.commands) - {"cache"})  # type: ignore[attr-defined]
WITHOUT_JSON = {"demo", "explore"}
HEAVY = (
    "altair",
    "marimo",
    "PIL",
    "av",
    "matplotlib",
    "torch",
    "jax",
    "pandas",
    "IPython",
    "prompt_toolkit",
    "rich",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose path is completed."""
    path = tmp_path_factory.mktemp("help") / "store"
    MAKERS["cartpole"](path)
    return path


def test_help_groups_the_commands() -> None:
    """The program's help has a heading for each group, each command once, and each in one line."""
    told = printed("--help")
    positions = [told.index(f"{panel}:") for panel in (LOOK, CHECK, KEEP, EXCHANGE, BEGIN)]
    assert positions == sorted(positions)
    for command in COMMANDS:
        (line,) = re.findall(rf"^  {command} .*$", told, re.MULTILINE)
        assert line.endswith(".")
        assert not line.endswith("...")
        assert len(line) <= 80


@looped("command", COMMANDS)
def test_every_command_has_examples(command: str) -> None:
    """The help describes every argument and option, --json of all but the demo and the page among them, and
    ends with examples that call the command.
    """
    told = printed(command, "--help")
    assert told.startswith(f"Usage: root {command} ")
    lines = told.split("\n  Examples:\n")[0].splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("  -"):
            assert len(line.strip().split("  ", 1)) == 2 or after.startswith(" " * 10), line
    examples = told.split("\n  Examples:\n")[1]
    assert f"    episodelake {command}" in examples
    assert max(map(len, told.splitlines())) <= 90
    assert ("--json" in told) == (command not in WITHOUT_JSON)


def test_help_is_plain_text() -> None:
    """The help is typer's own without colours, also on a terminal."""
    with terminal("--help") as session:
        assert session.end() == 0
    assert "\x1b" not in session.said


@pytest.mark.slow
def test_colour_on_a_terminal_and_none_on_request(path: Path) -> None:
    """Tables have colour on a terminal; NO_COLOR takes every colour away, and a pipe has no escape at all."""
    with terminal("ls", path, height=12) as session:
        assert session.end() == 0
    assert re.search(r"\x1b\[[0-9;]*9?[0-9]m", session.said)
    assert len(session.text.splitlines()) < 12
    with terminal("info", path, environment={"NO_COLOR": "1"}) as session:
        assert session.end() == 0
    assert not re.search(r"\x1b\[(?:[0-9]+;)*(?:3|9)[0-9]m", session.said)
    assert not ESCAPE.search(printed("info", path))


@pytest.mark.slow
def test_an_error_is_the_same_on_a_terminal(path: Path) -> None:
    """An error is one line, with the status of a pipe."""
    with terminal("show", path, "nothing/000000") as session:
        assert session.end() == 1
    assert session.text.startswith("Error: There is no episode")


@pytest.mark.slow
def test_all_episodes_go_through_the_pager(path: Path) -> None:
    """On a terminal a list that is longer than the window goes through the user's pager."""
    with terminal("ls", path, "--limit", 0, height=8, environment={"PAGER": "cat -n"}) as session:
        assert session.end() == 0
    assert re.search(r"^ +12\t", session.text, re.MULTILINE)


# Completion


def completed(*words: object) -> list[str]:
    """What the shell would offer for the last word."""
    environment = {
        "_EPISODELAKE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["episodelake", *map(str, words)]),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(app, [], prog_name="episodelake", env=environment)
    assert result.stderr == ""
    return result.stdout.split()


def test_completion(path: Path, tmp_path: Path) -> None:
    """Commands, ids, columns of the table in question, tables, formats and tags are completed; where there is
    no store, nothing is offered, and nothing is said.
    """
    ids = [row["episode_id"] for row in json.loads(printed("ls", path, "--json"))]
    left = sorted(each for each in ids if each.startswith("left"))
    el.open(path).tag("before")
    for words, wanted in (
        (("show", path, "lef"), left),
        # As `show` takes them: the numbers behind the name of a run.
        (("show", path, "left/"), [f"left/{each.partition('/')[2]}" for each in left]),
        (("show", path, "left/000003"), ["left/000003"]),
        (("show", path, "nobody/"), []),
        (("ls", path, "--order-by", "episode_r"), ["episode_return"]),
        (("ls", path, "--columns", "length,see"), ["length,seed"]),
        (("head", path, "tr"), ["transitions"]),
        (("head", path, "steps", "--columns", "obs"), ["observation"]),
        (("stats", path, "-c", "re"), ["reward"]),
        (("stats", path, "--columns", "reward,o"), ["reward,observation"]),
        (("stats", path, "-c", "episode_r"), []),
        (("show", tmp_path / "none", "x"), []),
        (("ls", tmp_path, "--order-by", "x"), []),
        (("export", path, "out", "--format", "le"), ["lerobot"]),
        (("import", "source", path, "--format", "web"), []),
        (("tag", path, "bef"), ["before"]),
        (("tag", path, ""), ["before"]),
    ):
        assert completed(*words) == wanted, words
    el.open(path).untag("before")
    assert set(completed("s")) >= {"show", "sql", "stats"}
    assert "webdataset" in completed("export", path, "out", "--format", "")


def test_paths_are_left_to_the_shell(path: Path) -> None:
    """Nothing is offered for a path, so each shell completes files, with its own quoting."""
    for shell, nothing in (("bash", ""), ("zsh", "_files")):
        assert offered_by(shell, f"info {path.parent}/").strip() == nothing


def shell_variables(shell: str, line: str) -> dict[str, str]:
    """How a shell asks what may follow a line."""
    words = ["episodelake", *line.split(" ")]
    return {
        "_EPISODELAKE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1],
    }


def offered_by(shell: str, line: str, word: str = "") -> str:
    """What the program offers a shell behind a line, in which WORD stands for a word with spaces."""
    variables = {name: text.replace("WORD", word) for name, text in shell_variables(shell, line).items()}
    result = CliRunner().invoke(app, [], prog_name="episodelake", env=variables)
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_completes_options(path: Path, shell: str) -> None:
    """Each shell gets the options that begin like this, in its own format."""
    offered = offered_by(shell, f"ls {path} --or")
    assert "--order-by" in offered and "--limit" not in offered


# What is loaded


LIBRARIES = {"polars", "duckdb", "pyarrow", "gymnasium", "numpy", "rich.console"}


@pytest.mark.parametrize("line", ["sta", "ls STORE --so", "info STORE", "plot STORE "])
def test_completing_names_loads_nothing_heavy(tmp_path: Path, line: str) -> None:
    """Commands, options, folders and fixed values are completed without the libraries under Episodelake."""
    variables = shell_variables("bash", line.replace("STORE", str(tmp_path)))
    *_, modules = printed_by([], variables).splitlines()
    assert "typer" in modules.split()
    assert LIBRARIES.isdisjoint(modules.split())


@pytest.mark.parametrize("words", [["--help"], ["sql", "--help"], ["cache", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    """So does help, of the program and of a command."""
    text, _, modules = printed_by(words, {}).rstrip("\n").rpartition("\n")
    assert "Usage: episodelake" in text
    assert LIBRARIES.isdisjoint(modules.split())


def printed_by(words: list[str], variables: dict[str, str]) -> str:
    """What the program prints, and then the names of all modules that it has loaded."""
    program = (
        "import atexit, sys\natexit.register(lambda: print(*sys.modules))\n"
        "from episodelake.terminal.start import main\nmain()"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return told.stdout


@pytest.mark.parametrize("package", ["polars", "typer"])
def test_ctrl_c_ends_a_program_that_is_loading(tmp_path: Path, package: str) -> None:
    """Interrupted while a package is loaded, the program says nothing and ends with status 130."""
    (tmp_path / f"{package}.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(30)\n"
        "except KeyboardInterrupt:\n    print('swallowed')\n"
    )
    found = subprocess.run(
        [sys.executable, *RUN, "ls", "nowhere"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


@pytest.mark.further
def test_ctrl_c_is_that_of_python_once_it_runs() -> None:
    """When everything is loaded, Ctrl-C raises KeyboardInterrupt as ever."""
    program = """
import os, signal, sys
from episodelake.terminal import start
from episodelake.terminal.reports import maintenance
def run(*words, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        print("raised")
        sys.exit()
maintenance.cached_columns = run
sys.argv[1:] = ["cache", "list"]
start.main()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (found.returncode, found.stdout, found.stderr) == (0, "raised\n", "")


def loaded(program: str) -> set[str]:
    """The modules that a program has loaded at its end."""
    told = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return set(told.stdout.split())


def test_using_the_class_loads_nothing_heavy() -> None:
    """`EpisodeStore` loads none of the packages that only some features need."""
    assert loaded("import episodelake; episodelake.EpisodeStore.plot").isdisjoint(HEAVY)


@pytest.mark.further
def test_the_first_batch_loads_nothing_heavy(path: Path) -> None:
    """Opening a store, its first batch and an episode of it leave pandas alone, which pyarrow looks for."""
    reading = "next(iter(store.loader(8, shuffle=True))); store[0].observations; store[0].started_at"
    assert loaded(f"import episodelake; store = episodelake.open({str(path)!r}); {reading}").isdisjoint(HEAVY)


@pytest.mark.further
@pytest.mark.parametrize("words", [["info"], ["ls"], ["show", "0"]], ids=" ".join)
def test_looking_at_a_store_loads_nothing_heavy(path: Path, words: list[str]) -> None:
    """Nor do the commands that look at a store, which have to be quick; they need rich."""
    program = f"""
import sys
from episodelake.terminal.app import app
try:
    app({[words[0], str(path), *words[1:], "--json"]!r})
except SystemExit as end:
    sys.stdout.write("\\n")
    assert end.code == 0
"""
    later = {"deltalake", "episodelake.readers.columns.selection"}
    if words[0] != "show":
        later |= {"duckdb", "pyarrow.compute", "episodelake.writers", "episodelake.rollouts.turns"}
    assert loaded(program).isdisjoint({*HEAVY, *later} - {"rich"})


def test_a_command_looks_for_no_garbage_at_its_end() -> None:
    """Python would go through every object of the libraries once more, which takes a fifth of the time."""
    program = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 10_000, gc.get_threshold()[0] > 10_000))
from episodelake.terminal.start import main
sys.argv[1:] = ["--version"]
main()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert found.stdout.splitlines()[1:] == ["True True"], found.stderr


@pytest.mark.slow
def test_the_completion_script_names_the_program() -> None:
    """The script that a shell sources asks the program itself."""
    result = subprocess.run(
        [sys.executable, *RUN, "--show-completion", "bash"],
        env={**os.environ, "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
    assert result.returncode == 0
    assert "_EPISODELAKE_COMPLETE=complete_bash" in result.stdout


@pytest.mark.further
def test_explore_says_at_once_what_it_opens(tmp_path: Path) -> None:
    """On a terminal, before the packages that take long to load; elsewhere nothing reads it."""
    missing = tmp_path / "nothing"
    with terminal("explore", missing, "--no-browser") as session:
        opening = session.wait_for("Opening ")
        session.wait_for("Error: ", opening)
        assert session.end() == 1
    assert "Opening" not in call("explore", missing, "--no-browser").stderr

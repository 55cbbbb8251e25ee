"""The page on the command line: its console examples are run, and print what stands there."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from terminal_sessions import ESCAPE
from test_cli import call

PAGE = Path(__file__).parents[2] / "docs" / "terminal.md"
#: What is another on every machine and every day.
CHANGING = (
    (r"\b[0-9a-f]{32}\b", "ID"),
    (r"-[0-9a-z]{5,15}(?=[/\s…\"]|$)", "-RUN"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:[\d.…]+(\+00:00)?", "MOMENT"),
    # A long one goes on in lines below.
    (r"^path .*(\n +\S.*)*$", "path PATH"),
    (r"/\S*/(cartpole|good)\b", r"/\1"),
    (r"\d+(\.\d+)? k?B\b", "SIZE"),
    (r"\d+\.\d%", "SHARE"),
    (r"─+", "─"),
    # Long messages wrap where the folder's name lets them.
    (r"\s+", " "),
)


def examples() -> list[tuple[str, str]]:
    """The commands of the page with what they print."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def settled(text: str) -> str:
    """A text without what changes from run to run."""
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text.strip()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Runs commands as on a terminal of 100 columns, in the folder that the page's first block fills."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {})

    # Lines may be broken anywhere in the name of the folder, which is long on some machines.
    folder = re.compile(r"\s*".join(map(re.escape, str(tmp_path))))

    def printed(command: str) -> str:
        words = shlex.split(command)
        assert words[0] == "episodelake"
        result = call(*words[1:])
        # A progress bar and what SDL says go to standard error, as errors do.
        return folder.sub("", ESCAPE.sub("", result.stdout or result.stderr))

    return printed


@pytest.mark.further
def test_examples_print_what_the_page_says(run: Callable[[str], str]) -> None:
    """Each example of the page, in its order, prints what stands below it."""
    found = examples()
    assert len(found) > 15
    for command, output in found:
        assert settled(run(command)) == settled(output), command

"""The examples in the README and the documentation run as they stand.

The ```python blocks of a page run in order, in one namespace, in an empty folder. A block that cannot run has
the line `<!-- skip: reason -->` before it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import robot_files
from checkout import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
# Pages whose examples take a second or more; `make test-cases` runs them.
LONG = {
    "collecting",
    "cookbook",
    "exchange",
    "from-your-logs",
    "maintenance",
    "plots",
    "quality",
    "recording",
    "tutorial",
}
SKIP = re.compile(r"<!-- skip:\s*\S.*-->")


@dataclass(frozen=True)
class Example:
    """One ```python block: its code, the page's line where the code begins, and whether it is to run."""

    code: str
    line: int
    runs: bool


def examples(text: str) -> list[Example]:
    """The ```python blocks of a page, in order. Blocks in other languages are passed over whole."""
    found: list[Example] = []
    fence, language, start, before = "", "", 0, ""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        opening = re.match(r"(`{3,})\s*(\w*)", line)
        if fence and line.rstrip() == fence:
            if language == "python":
                code = "\n".join(lines[start : number - 1]) + "\n"
                found.append(Example(code, start + 1, SKIP.fullmatch(before.strip()) is None))
            fence = ""
        elif not fence and opening:
            fence, language, start = opening[1], opening[2], number
            before = lines[number - 2] if number > 1 else ""
    assert not fence, f"the block that opens at line {start} is never closed"
    return found


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.further if page.stem in LONG else ()) for page in PAGES],
    ids=lambda page: page.relative_to(REPOSITORY).as_posix(),
)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of the page runs, in order, after those before it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    if page.stem == "from-your-logs":
        robot_files.write_all(tmp_path)
    namespace: dict[str, object] = {"__name__": "documentation"}
    for example in examples(page.read_text("utf-8")):
        if example.runs:
            padding = "\n" * (example.line - 1)
            exec(compile(padding + example.code, str(page), "exec"), namespace)


def test_readme_has_examples_that_run() -> None:
    """The README shows at least one example, and not all of them are skipped."""
    assert any(example.runs for example in examples(PAGES[0].read_text("utf-8")))


def test_blocks_are_found_in_order_with_their_lines() -> None:
    """Only python blocks count, each with the line of its first line of code, and a skip needs a reason."""
    page = (
        "# Title\n```bash\nmake demo\n```\n```python\na = 1\n```\n"
        "<!-- skip: needs a cluster -->\n```python\nb = 2\n```\n<!-- skip: -->\n```python\nc = 3\n```\n"
    )
    assert examples(page) == [
        Example("a = 1\n", 6, True),
        Example("b = 2\n", 10, False),
        Example("c = 3\n", 14, True),
    ]

"""Running a committed notebook, and reading what its cells show; shared by the tests of all notebooks."""

import base64
import difflib
import io
import json
import os
import re
from collections.abc import Collection
from itertools import groupby
from pathlib import Path

import nbformat
import vl_convert
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

from checkout import REPOSITORY

NOTEBOOKS = REPOSITORY / "notebooks"

# A path of somebody's machine: an absolute path of at least two parts, or a file address. The addresses of
# schemas (https://...) are none.
MACHINE_PATH = re.compile(r"file:/|(?<![\w:/.<>*-])/[\w.-]+/[\w.-]+")
MOMENT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d")
#: Seconds for one cell; some compute for a minute, and for several where other work goes on.
CELL_PATIENCE = 1200
CHART = "application/vnd.vegalite.v5+json"
#: What two executions need not share, by the word that takes its place.
VOLATILE = {
    "<address>": re.compile(r"\b0x[0-9a-fA-F]+\b"),
    "<id>": re.compile(r"\b0[0-9a-hjkmnp-tv-z]{14}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    "<moment>": re.compile(r"\b20\d\d-\d\d-\d\d[T\s]+\d\d:\d\d(?::\d\d(?:\.\d+)?)?"),
    "<duration>": re.compile(r"\b\d+(?:\.\d+)?\s*(?:ns|[µu]s|ms|s|min|h)\b"),
    "<size>": re.compile(r"\b\d+(?:\.\d+)?\s*(?:[kMGT]i?B|bytes?)\b"),
    "": re.compile(r"(?<![\w:/.<>*-])/(?:[\w.-]+/)+"),  # the folders of a path
}
NUMBER = re.compile(r"[-+]?\b\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?\b|\b(?:nan|null|true|false)\b")
RULE = re.compile(r"[─═┌┬┐└┴┘├┼┤╞╪╡]+")


def execute(path: Path, folder: Path) -> NotebookNode:
    """A notebook, executed now from top to bottom in a folder."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # environments draw without a screen
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=CELL_PATIENCE, kernel_name="python3", resources=resources).execute()
    return notebook


def outputs(notebook: NotebookNode) -> dict[str, str]:
    """The text of every cell that has output, by the cell's name."""
    found = {}
    for cell in notebook.cells:
        texts = [output.get("text") or output.data["text/plain"] for output in cell.get("outputs", [])]
        if texts:
            found[cell.id] = "".join(texts)
    return found


def streams(notebook: NotebookNode) -> set[str]:
    """Where its cells wrote to: stdout, stderr."""
    return {output.name for cell in notebook.cells for output in cell.get("outputs", []) if "name" in output}


def charts(notebook: NotebookNode) -> dict[str, dict]:
    """The specification of every chart, by the cell's name."""
    return {
        cell.id: output.data[CHART]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if CHART in output.get("data", {})
    }


def shown_lines(cell: NotebookNode, *, numbers: bool = True) -> list[str]:
    """The lines that a cell shows: streams, plain text, the words of its HTML, and its charts without rows.

    Args:
        numbers: whether they are kept; without them equal lines that follow each other are one.
    """
    texts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        texts += [output.get("text", ""), data.get("text/plain", "")]
        words = re.sub(r"<style>.*?</style>|<[^>]*>", "\n", data.get("text/html", ""), flags=re.DOTALL)
        texts.append(words)
        if CHART in data:
            chart = {key: value for key, value in data[CHART].items() if key != "datasets"}
            columns = [sorted(rows[0]) for rows in data[CHART].get("datasets", {}).values()]
            drawn = json.dumps([chart, sorted(columns)], indent=1, sort_keys=True)
            texts.append(re.sub(r'"(data-|view_)[0-9a-f]{8,}', r'"\1', drawn))
    text = "\n".join(texts)
    for word, pattern in VOLATILE.items():
        text = pattern.sub(word, text)
    if not numbers:
        text = NUMBER.sub("#", RULE.sub("─", text))
    lines = filter(None, (" ".join(line.split()) for line in text.splitlines()))
    return list(lines) if numbers else [line for line, _ in groupby(lines)]


def differences(
    committed: NotebookNode, executed: NotebookNode, approximate: Collection[str] = ()
) -> dict[str, str]:
    """How an execution differs from the committed outputs, as a diff by the cell's name.

    Args:
        approximate: cells whose numbers depend on how a processor rounds; only their words are compared.
    """
    now = {cell.id: cell for cell in executed.cells if cell.cell_type == "code"}
    before = {cell.id: cell for cell in committed.cells if cell.cell_type == "code"}
    assert before.keys() == now.keys() and now.keys() >= set(approximate)
    found = {}
    for name, cell in now.items():
        both = [shown_lines(one, numbers=name not in approximate) for one in (before[name], cell)]
        if both[0] != both[1]:
            found[name] = "\n".join(difflib.unified_diff(*both, "committed", "executed", lineterm="", n=1))
    return found


def check_pictures(committed: NotebookNode, executed: NotebookNode) -> None:
    """The committed picture of every chart has about the size of the chart as it is drawn now."""
    pictures = {
        cell.id: output.data["image/png"]
        for cell in committed.cells
        for output in cell.get("outputs", [])
        if CHART in output.get("data", {})
    }
    drawn = charts(executed)
    assert pictures.keys() == drawn.keys()
    for name, chart in drawn.items():
        size = Image.open(io.BytesIO(base64.b64decode(pictures[name]))).size
        now = Image.open(io.BytesIO(vl_convert.vegalite_to_png(chart, scale=1.5))).size
        assert all(abs(a - b) <= 0.1 * b for a, b in zip(size, now, strict=True)), (name, size, now)


def table(text: str) -> list[list[str]]:
    """The rows of a Polars frame as it is printed, header lines left out."""
    body = text.partition("╞")[2]
    return [
        [part.strip() for part in line.strip("│ ").split("┆")] for line in body.splitlines() if "│" in line
    ]


def check_committed(notebook: NotebookNode) -> None:
    """What holds for every committed notebook.

    Its code cells were run once, from the top, every chart has a picture as well, and nothing in it names a
    machine, a moment or an editor.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in notebook.cells:
        texts = [cell.source]
        for output in cell.get("outputs", []):
            data = {key: value for key, value in output.get("data", {}).items() if key != "image/png"}
            assert CHART not in data or "image/png" in output.data
            texts += [output.get("text", ""), *map(str, data.values())]
        for text in texts:
            shown = re.sub(r"<style>.*?</style>|https://\S+|</?\w+[^>]*>", " ", text, flags=re.DOTALL)
            assert not MACHINE_PATH.search(shown), MACHINE_PATH.findall(shown)
            # A card says when its episodes were recorded.
            assert cell.id.startswith("card-") or not MOMENT.search(shown)
        assert cell.metadata == {}
    assert notebook.metadata.kernelspec.name == "python3"

"""Running a committed notebook, and reading what its cells show; shared by the tests of all notebooks."""

import os
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from checkout import REPOSITORY

NOTEBOOKS = REPOSITORY / "notebooks"

# A path of somebody's machine: an absolute path of at least two parts, or a file address. The addresses of
# schemas (https://...) are none.
MACHINE_PATH = re.compile(r"file:/|(?<![\w:/.<>*-])/[\w.-]+/[\w.-]+")
MOMENT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d")
#: Seconds for one cell; some compute for a minute, and for several where other work goes on.
CELL_PATIENCE = 1200
CHART = "application/vnd.vegalite.v5+json"


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

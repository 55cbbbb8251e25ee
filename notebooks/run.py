"""Run notebooks from top to bottom and save their outputs for committing.

    python notebooks/run.py                  # all of them
    python notebooks/run.py sql dataframes   # only these

Each runs in an empty folder. Every chart's specification gets a picture beside it, for viewers that cannot
draw it. Metadata added by editors is removed.
"""

import base64
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import vl_convert
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent
CHART = "application/vnd.vegalite.v5+json"
# Where a machine keeps what is temporary: stores in memory, and the folders of the notebooks.
TEMPORARY = re.compile(r"/(?:dev/shm|tmp|var/folders)/(?:[\w.-]+/)+")


def run(path: Path) -> None:
    """Execute a notebook and write it back."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # environments draw without a screen
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for kind in {"text/plain", "text/html"} & data.keys():
                data[kind] = TEMPORARY.sub("", data[kind])
            if CHART in data:
                data["image/png"] = base64.b64encode(picture_of(data[CHART])).decode()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)


def picture_of(chart: dict) -> bytes:
    """A chart on white as PNG of few colours, which takes a quarter of the room."""
    opaque = {**chart, "background": "white", "config": {**chart.get("config", {}), "background": "white"}}
    drawn = Image.open(io.BytesIO(vl_convert.vegalite_to_png(opaque, scale=1.5))).convert("RGB")
    written = io.BytesIO()
    drawn.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        written, "png", optimize=True
    )
    return written.getvalue()


def main() -> None:
    """Run those that are named, or all."""
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        start = time.monotonic()
        run(FOLDER / f"{name}.ipynb")
        print(
            f"{name}: {time.monotonic() - start:.0f} s, {(FOLDER / f'{name}.ipynb').stat().st_size >> 10} kB"
        )


if __name__ == "__main__":
    main()

"""Committed notebooks as pages of the site: text, code and outputs.

Nothing is executed here. Images and HTML are embedded, so a chart is the picture saved beside its
specification. (myst-nb would add a database and a kernel for one walk over a JSON file.)
"""

import json
import re
from collections.abc import Iterator
from typing import Any

#: What is shown of an output that has several forms, the first that is there.
_PICTURES = ("image/png", "image/jpeg", "image/gif")


def as_markdown(text: str, source: str) -> str:
    """Return a notebook as MyST Markdown.

    Args:
        text: the file's content.
        source: its path from the root of the repository, for the line that says where it is.
    """
    cells = json.loads(text)["cells"]
    parts = [part for cell in cells for part in _cell(cell)]
    title, _, rest = parts[0].partition("\n")
    name = source.rpartition("/")[2]
    told = f"*This is the notebook [{source}]({name}), with what it showed when it was run.*"
    return "\n\n".join([title, told, rest, *parts[1:]]) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    text = _joined(cell["source"])
    if cell["cell_type"] == "markdown":
        yield text
        return
    yield _fenced("python", text)
    for output in cell.get("outputs", []):
        yield _output(output)


def _output(output: dict[str, Any]) -> str:
    if "text" in output:
        return _fenced("text", _joined(output["text"]).rstrip("\n"))
    data = output.get("data", {})
    for kind in _PICTURES:
        if kind in data:
            encoded = "".join(_joined(data[kind]).split())
            return _raw(f'<img alt="What the cell above drew" src="data:{kind};base64,{encoded}">')
    if "text/html" in data and 'class="dataframe"' not in _joined(data["text/html"]):
        return _raw(_joined(data["text/html"]))
    return _fenced("text", _joined(data.get("text/plain", "")).rstrip("\n"))


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _raw(html: str) -> str:
    """Return HTML in a fenced block, longer than any fence in it."""
    return _fenced("{raw} html", f'<div class="notebook-output">{html}</div>')


def _fenced(language: str, text: str) -> str:
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"

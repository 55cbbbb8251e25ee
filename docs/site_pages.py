"""Sphinx extension of the site: pages from outside `docs/`, notebooks, and docstring links.

A page of the site may include a file from elsewhere in the repository, such as CHANGELOG.md. On a Git host
that page is a pointer to the file; the build replaces it by the file's text and adjusts the links. `conf.py`
loads this module as an extension.
"""

import os
import posixpath
import re
import sys
import tempfile
from logging import getLogger
from pathlib import Path
from typing import Any

import notebook_pages
from docutils import nodes, utils
from pygments.lexers import BashLexer
from sphinx.application import Sphinx
from sphinx.domains.python import PyXRefRole
from sphinx.util import logging

import episodelake

_logger = logging.getLogger(__name__)
DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent

#: Pages of the site, and the files of the repository whose text they show.
MIRRORS = {
    "benchmarks": "benchmarks/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    **{
        f"notebooks/{page.stem}": f"notebooks/{page.stem}.ipynb"
        for page in (DOCS / "notebooks").glob("*.md")
        if page.stem != "index"
    },
}
#: Where a link to a file of the repository leads in the site.
_PAGE_OF = {file: page for page, file in MIRRORS.items()} | {"README.md": "index"}
#: The folder of the site that an example of `report(site=True)` is written into.
EXAMPLE = "example"
_EXAMPLE_LINK = f'<a href="{EXAMPLE}/index.html">An example: a robot with four cameras.</a>'
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\(\))?")


def page_text(page: str, text: str) -> str:
    """The text of a page as the site shows it.

    Args:
        page: its name below `docs/`, without suffix.
        text: what its file holds.
    """
    source = MIRRORS.get(page)
    if source is None:
        return relinked(text, f"docs/{page}.md", page)
    text = (REPOSITORY / source).read_text("utf-8")
    if source.endswith(".ipynb"):
        return relinked(notebook_pages.as_markdown(text, source), source, page)
    return relinked(text, source, page)


def relinked(text: str, source: str, page: str) -> str:
    """The text of a file of the repository with its links to other files as a page of the site needs them.

    Args:
        text: Markdown; what stands in fenced blocks is left alone.
        source: where it stands, as a path from the root of the repository.
        page: the page that shows it.
    """
    lines, fence = [], ""
    for line in text.split("\n"):
        opening = _FENCE.match(line.lstrip())
        if opening and not fence:
            fence = opening[1]
        elif fence and line.strip() == fence:
            fence = ""
        elif not fence:
            line = _LINK.sub(lambda link: _relinked(link, source, page), line)
        lines.append(line)
    return "\n".join(lines)


def _relinked(link: re.Match[str], source: str, page: str) -> str:
    before, target, anchor, after = link.groups(default="")
    if re.match(r"[a-z][a-z+.-]*:", target):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in _PAGE_OF:
        path = f"docs/{_PAGE_OF[path]}.md"
    elif not (REPOSITORY / path).is_file():
        _logger.warning("%s links to %s, which is no file of the repository", source, target, location=page)
        return link[0]
    return before + posixpath.relpath(path, posixpath.dirname(f"docs/{page}")) + anchor + after


def _read_source(app: Sphinx, page: str, content: list[str]) -> None:
    if app.env.doc2path(page).suffix == ".md":
        # On a Git host the mark is invisible.
        content[0] = page_text(page, content[0]).replace("<!-- example -->", _EXAMPLE_LINK)
        if page in MIRRORS:
            app.env.note_dependency(os.fspath(REPOSITORY / MIRRORS[page]))


def _write_example(app: Sphinx, error: Exception | None) -> None:
    """Record a robot with four cameras, and write its site beside the pages."""
    folder = Path(app.outdir) / EXAMPLE
    if error is None and app.builder.format == "html" and not folder.exists():
        sys.path.insert(0, str(REPOSITORY / "examples"))
        from stores_to_look_at import record_robot

        # Sphinx prints what all loggers say.
        getLogger("episodelake").setLevel("WARNING")
        with tempfile.TemporaryDirectory() as scratch:
            record_robot(Path(scratch) / "robot", episodes=3).report(folder, site=True)


def name_role(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = None
) -> Any:
    """Code in a docstring, such as `EpisodeStore.refresh`; a link where the reference has that name.

    Only what can be a name is looked up: of `<run id>/<number>` the usual role would make a title and a
    target.
    """
    if _NAME.fullmatch(text):
        first = text.partition(".")[0].removesuffix("()")
        for room in (episodelake, episodelake.types, episodelake.errors):
            if first in room.__all__:
                text = f"{text} <{room.__name__}.{text.removesuffix('()')}>"
                break
        return PyXRefRole()("py:obj", rawtext, text, lineno, inliner, options or {}, content or [])
    return [nodes.literal(rawtext, utils.unescape(text))], []


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx as the extension is loaded."""
    app.connect("source-read", _read_source)
    app.connect("build-finished", _write_example)
    # Blocks of commands have no prompts, without which the usual lexer takes them for what commands print.
    app.add_lexer("console", BashLexer)
    app.add_role("name", name_role)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The site of the documentation builds without a warning, is whole, and needs nothing from elsewhere."""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

import episodelake as el
from checkout import REPOSITORY, project_files
from episodelake.testing.adapters import case
from waiting import PATIENCE

DOCS = REPOSITORY / "docs"
PAGES = sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))
MARKDOWN = [name for name in project_files() if name.endswith(".md") and not name.startswith("tests/")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Whose public methods the reference must have.
CLASSES = [
    el.EpisodeStore,
    el.EpisodeView,
    el.Episode,
    el.MultiAgentEpisode,
    el.EpisodeWriter,
    el.types.OpenEpisode,
    el.types.Recorder,
    el.types.VectorRecorder,
    el.Loader,
]
# What `collect` asks of recorders; nobody else is to rely on it.
INWARD = {
    *("at_start", "collection", "discard", "ended", "episode", "recording", "records_all"),
    *("resetting", "running", "session", "summary", "usable"),
}


@dataclass
class Page(HTMLParser):
    """What a page of the site has: places to link to, links, and what it fetches."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("link", "script", "img", "iframe", "source", "video"):
            self.fetched += [found[name] for name in ("href", "src") if found.get(name)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "trees")]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder / "html"


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[str, Page]:
    """Every page of the site by its path."""
    found = {}
    for path in built.rglob("*.html"):
        page = Page()
        page.feed(path.read_text("utf-8"))
        found[path.relative_to(built).as_posix()] = page
    return found


@pytest.mark.further
def test_every_page_is_there_and_can_be_reached(pages: dict[str, Page]) -> None:
    """Each file of docs/ is a page, and the contents on the first page lead to all of them.

    Decisions are for developers: their list, which contributors start from, leads to each.
    """
    assert {f"{page}.html" for page in PAGES} <= pages.keys()
    linked = {unquote(urlsplit(link).path) for link in pages["index.html"].links}
    listed = {unquote(urlsplit(link).path) for link in pages["decisions/README.html"].links}
    assert any(link.startswith("decisions/README") for link in pages["contributing.html"].links)
    of_developers = {page for page in PAGES if page.startswith("decisions/")}
    assert {f"{page}.html" for page in PAGES if page not in of_developers | {"index"}} <= linked
    assert {f"{page.removeprefix('decisions/')}.html" for page in of_developers} - {"README.html"} <= listed


@pytest.mark.further
def test_links_within_the_site_arrive(built: Path, pages: dict[str, Page]) -> None:
    """Every relative link of every page leads to a file of the site, and its anchor is there."""
    lost = []
    for name, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(target.path)))
            path = path if target.path else name
            known = pages[path].anchors if path in pages else set()
            if not (built / path).is_file() or (target.fragment and unquote(target.fragment) not in known):
                lost.append(f"{name}: {link}")
    assert lost == []


@pytest.mark.further
def test_nothing_is_fetched_from_elsewhere(built: Path, pages: dict[str, Page]) -> None:
    """Scripts, styles, fonts and pictures are the site's own."""
    addresses = [address for page in pages.values() for address in page.fetched]
    assert addresses
    assert [address for address in addresses if urlsplit(address).scheme not in ("", "data")] == []
    styles = "".join(path.read_text("utf-8") for path in built.rglob("*.css"))
    assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", styles)


@pytest.mark.further
def test_the_reference_has_every_public_name(built: Path) -> None:
    """All of `__all__`, and the public methods of the classes that users hold, are in the index."""
    with open(built / "objects.inv", "rb") as file:
        inventory = InventoryFile.load(file, "", posixpath.join)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    wanted = {f"{room.__name__}.{name}" for room in (el, el.types) for name in room.__all__}
    wanted |= {f"episodelake.errors.{name}" for name in {*el.errors.__all__} - {*el.__all__}}
    assert wanted - known == set()
    for owner in CLASSES:
        own = {name for name in public_names(owner) if not documented(owner, name, known)}
        assert own <= (INWARD if "Recorder" in owner.__name__ else set()), owner


def public_names(owner: type) -> Iterator[str]:
    """The public methods and properties that a class or a base of ours defines."""
    for base in owner.__mro__:
        if base.__module__.startswith("episodelake"):
            for name, value in vars(base).items():
                if not name.startswith("_") and (callable(value) or isinstance(value, property)):
                    yield name


def documented(owner: type, name: str, known: set[str]) -> bool:
    """Whether the reference has a name under a class or one of its public bases."""
    return any(
        f"{room}.{base.__name__}.{name}" in known
        for base in owner.__mro__
        for room in ("episodelake", "episodelake.types")
    )


@pytest.mark.further
def test_docstrings_keep_no_markup(built: Path) -> None:
    """No backtick is left of a docstring in the reference."""
    for path in (built / "api").glob("*.html"):
        text = re.sub(r"<script.*?</script>|<pre.*?</pre>", "", path.read_text("utf-8"), flags=re.DOTALL)
        assert "`" not in text, path.name


def test_links_between_files_arrive() -> None:
    """On a Git host too: every relative link of a Markdown file leads to a file, and its anchor is there."""
    for name in MARKDOWN:
        with case(name):
            lost = []
            for link in links_of((REPOSITORY / name).read_text("utf-8")):
                target = urlsplit(link)
                if target.scheme:
                    continue
                path = (REPOSITORY / name).parent / unquote(target.path) if target.path else REPOSITORY / name
                if not path.exists() or (target.fragment and target.fragment not in headings(path)):
                    lost.append(link)
            assert lost == []


def links_of(text: str) -> list[str]:
    """The targets of the links in a Markdown text, code left out."""
    text = re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    return LINK.findall(re.sub(r"`[^`\n]*`", "", text))


def headings(path: Path) -> set[str]:
    """The anchors that a Git host gives the headings of a page."""
    text = re.sub(r"^(`{3,}).*?^\1", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in found}


def test_links_and_headings_are_found() -> None:
    """The search finds links outside code only, and anchors as Git hosts make them."""
    text = "# A b, c\n```\n[x](code)\n```\nsee [y](page.md#a) and `[z](code)`\n"
    assert links_of(text) == ["page.md#a"]
    assert "the-environment-of-a-run" in headings(DOCS / "format.md")

"""What the checkout holds, for the tests that look at the project itself rather than run it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from waiting import PATIENCE

REPOSITORY = Path(__file__).resolve().parent.parent

# The folders of the library and the names under which their modules are imported.
PACKAGES = {
    "episodelake": "episodelake",
    "readers": "episodelake.readers",
    "store": "episodelake.store",
    "writers": "episodelake.writers",
}


def project_files() -> list[str]:
    """The files of the project: those that git tracks and those that it would, as paths from the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=PATIENCE
    ).stdout
    names = sorted(set(listing.split("\0")) - {""})
    return [name for name in names if (REPOSITORY / name).exists() or (REPOSITORY / name).is_symlink()]


def installed_path(name: str) -> str | None:
    """Where a file of the project stands in the wheel, or None for a file outside the library."""
    top, _, rest = name.partition("/")
    if top not in PACKAGES or not rest or (REPOSITORY / name).is_symlink():
        return None
    return f"{PACKAGES[top].replace('.', '/')}/{rest}"


def library_modules() -> Iterator[tuple[str, Path]]:
    """The dotted name and the path of every module of the library; a package goes by its own name."""
    for name in project_files():
        installed = installed_path(name)
        if installed is None or not installed.endswith(".py"):
            continue
        parts = installed.removesuffix(".py").split("/")
        if parts[-1] == "__init__":
            parts.pop()
        yield ".".join(parts), REPOSITORY / name

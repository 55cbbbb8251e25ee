"""The explorer of an open store or lake, served by a process of its own."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from . import errors
from .errors import ComputationError, InvalidArgumentError
from .plugin import whole_number

_TALLEST = 10_000


class Explorer:
    """A running explorer; a notebook shows its page. It ends with `stop`, or with this process.

    Attributes:
        url: the address of the page on this machine, with its token, which is all that opens it.
    """

    def __init__(self, process: subprocess.Popen[str], url: str, height: int) -> None:
        self.url = url
        self._process = process
        self._height = height

    @staticmethod
    def start(
        url: str,
        version: int | None,
        *,
        browser: bool,
        height: int,
        write: bool,
        storage_options: Mapping[str, str] | None,
    ) -> Explorer:
        """Start an explorer and return it once its port is taken; the page answers about two seconds later.

        Args:
            url: of a store or a lake.
            version: the version to show; None for the newest, which it follows.
            browser: open the page in the browser.
            height: of the frame in a notebook, in pixels.
            write: the page may label episodes.
            storage_options: how to reach an object store.

        Raises:
            InvalidArgumentError: the height is not a whole number from 1, or an older version cannot be
                labelled.
            MissingPackageError: a package of the extra `explore` is not installed.
            StoreNotFoundError, StoreAccessError, CorruptStoreError: the process cannot read it.
            ComputationError: the process ended before its port was taken.
        """
        height = whole_number("height", height, 1, _TALLEST)
        if write and version is not None:
            raise InvalidArgumentError(
                "write=True: labels are written to the newest version, and this object shows version "
                f"{version}. Call refresh() first."
            )
        request = {"url": url, "version": version, "browser": browser, "write": write}
        request |= {"exports": str(Path.cwd()), "storage_options": dict(storage_options or {})}
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.explorer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C in the notebook or terminal is not meant for it.
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        explorer = Explorer(process, "", height)
        try:
            # Secrets pass through the pipe: arguments are visible to other users of the machine.
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or "{}")
        except (OSError, ValueError):
            answer = {}
        except BaseException:
            explorer.stop()
            raise
        if "url" in answer:
            explorer.url = answer["url"]
            return explorer
        explorer.stop()
        if "error" in answer:
            raise getattr(errors, answer["kind"])(answer["error"])
        raise ComputationError(
            f"The explorer of {url} ended with status {process.returncode} before its page could answer. "
            "Standard error has its messages."
        )

    def stop(self) -> None:
        """End the explorer; again does nothing."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _repr_html_(self) -> str:
        """Return the page in a frame, and a link to it."""
        if self._process.poll() is not None:
            return "<p>The explorer has ended.</p>"
        url = html.escape(self.url)
        return (
            f'<p><a href="{url}" target="_blank" rel="noreferrer">Open the explorer in a tab</a></p>'
            f'<iframe src="{url}" title="Episodelake explorer" width="100%" height="{self._height}" '
            'style="border: 1px solid rgba(128,128,128,.35); border-radius: 8px"></iframe>'
        )

    def __repr__(self) -> str:
        """Return the address, or that it has ended."""
        return f"Explorer({self.url!r})" if self._process.poll() is None else "Explorer(ended)"

"""Minari in a virtual environment and a process of its own, spoken to in lines of JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

MINARI = "minari[hdf5,arrow,create]==0.5.4"
SAME_VERSIONS = {"gymnasium": "gymnasium[mujoco]", "numpy": "numpy", "pyarrow": "pyarrow", "mujoco": "mujoco"}
SCRIPT = Path(__file__).resolve().parent / "peers" / "minari_peer.py"


class PeerError(RuntimeError):
    """The peer's process ended, or its environment could not be made. Carries what it said last."""


class Peer:
    """A running peer process.

    It starts at the first command and stays alive until `close`, so interleaved commands pay no start-up. Its
    datasets live under `folder`.
    """

    def __init__(self, environments: Path, folder: Path) -> None:
        self._environments = environments
        self._folder = folder
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the process)
        self._process: subprocess.Popen[str] | None = None

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its answer. Raises PeerError if the process ends instead."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps({"do": do, **arguments}), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            process.wait()
            self._errors.seek(0)
            raise PeerError(f"the peer stopped at {do!r}:\n{self._errors.read()[-3000:]}")
        return json.loads(answer)

    def versions(self) -> dict[str, str]:
        """Return the versions of the peer's packages, or nothing if no benchmark needed the peer."""
        return self.ask("versions") if self._process is not None else {}

    def close(self) -> None:
        """End the process, if it was started."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        self._errors.close()

    def _start(self) -> subprocess.Popen[str]:
        datasets = self._folder / "minari"
        datasets.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [str(make_environment(self._environments)), str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=self._folder,
            env={
                **os.environ,
                "MINARI_DATASETS_PATH": str(datasets),
                "PYTHONPATH": str(Path(__file__).resolve().parent),
            },
        )
        return self._process


def make_environment(folder: Path) -> Path:
    """Make the virtual environment with Minari in `folder`, unless it is there, and return its Python.

    The packages that both sides use have the versions of the running environment, so that a difference is
    Minari's. A changed list of packages, or an interrupted installation, makes the environment anew.
    """
    requirements = [MINARI, *(f"{text}=={version(name)}" for name, text in SAME_VERSIONS.items())]
    place = folder / "minari"
    python, finished = place / "bin" / "python", place / "installed.txt"
    if finished.exists() and finished.read_text().split() == requirements:
        return python
    print(f"making Minari's environment: {' '.join(requirements)}", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(place)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    finished.write_text("\n".join(requirements))
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"{command[1:4]} failed:\n{done.stderr[-3000:]}")

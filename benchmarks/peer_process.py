"""A peer in its own virtual environment and process, controlled by lines of JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True)
class EnvRecipe:
    """EnvRecipe of a peer's environment.

    Attributes:
        name: of its folder, and of its script, `peers/<name>_peer.py`.
        requirements: what is installed.
        same_versions: what both sides use, by distribution; it is installed in the version of the running
            environment, so that a difference is the peer's.
    """

    name: str
    requirements: tuple[str, ...]
    same_versions: Mapping[str, str]

    @property
    def script(self) -> Path:
        """What the process runs."""
        return PEERS / f"{self.name}_peer.py"


MINARI = EnvRecipe(
    "minari",
    ("minari[hdf5,arrow,create]==0.5.4",),
    {"gymnasium": "gymnasium[mujoco]", "numpy": "numpy", "pyarrow": "pyarrow", "mujoco": "mujoco"},
)
# This release of torch is the one for processors; others bring gigabytes for graphics cards.
TIANSHOU = EnvRecipe(
    "tianshou", ("tianshou==2.0.1", "torch==2.13.0"), {"gymnasium": "gymnasium", "numpy": "numpy"}
)
# The peers of sampling. What each of them pins itself, such as Gymnasium, is left to it.
TORCHRL = EnvRecipe("torchrl", ("torchrl==0.14.0", "torch==2.13.0"), {"numpy": "numpy"})
D3RLPY = EnvRecipe("d3rlpy", ("d3rlpy==2.8.1", "torch==2.13.0"), {"numpy": "numpy"})
MINARI_TORCH = EnvRecipe(
    "minari_torch",
    ("minari[hdf5,create]==0.5.4", "pillow", "torch==2.13.0"),
    {"gymnasium": "gymnasium", "numpy": "numpy"},
)
# The newest LeRobot for Python 3.11 that takes this torch. It converts arrays of one number in a way that
# newer releases of numpy refuse.
LEROBOT = EnvRecipe("lerobot", ("lerobot==0.3.2", "numpy==2.2.6", "torch==2.13.0"), {})
# The peers of object stores.
LANCE = EnvRecipe("lance", ("pylance==14.0.2", "torch==2.13.0"), {"numpy": "numpy", "pyarrow": "pyarrow"})
MOSAIC = EnvRecipe("mosaic", ("mosaicml-streaming==0.13.0", "torch==2.13.0"), {})


class PeerError(RuntimeError):
    """The peer's process ended, or its environment could not be made. The message has its last output."""


class Peer:
    """A running peer process.

    It starts at the first command and stays alive until `close`, so interleaved commands pay no start-up. Its
    datasets live under `folder`.
    """

    def __init__(self, environments: Path, folder: Path, recipe: EnvRecipe = MINARI) -> None:
        self._recipe = recipe
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
            [str(make_environment(self._environments, self._recipe)), str(self._recipe.script)],
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


def make_environment(folder: Path, recipe: EnvRecipe) -> Path:
    """Make the peer's virtual environment in `folder`, unless it is there, and return its Python.

    A changed list of packages, or an interrupted installation, makes the environment anew.
    """
    shared = (f"{text}=={version(name)}" for name, text in recipe.same_versions.items())
    requirements = [*recipe.requirements, *shared]
    place = folder / recipe.name
    python, finished = place / "bin" / "python", place / "installed.txt"
    if finished.exists() and finished.read_text().split() == requirements:
        return python
    print(f"making the environment of {recipe.name}: {' '.join(requirements)}", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(place)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    finished.write_text("\n".join(requirements))
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"{command[1:4]} failed:\n{done.stderr[-3000:]}")

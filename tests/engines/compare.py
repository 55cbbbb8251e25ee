"""Run the query of each engine in docs/engines.md in its own environment, and compare the answers.

    python tests/engines/compare.py polars=PATH/python duckdb=PATH/python ...

Each name is that of a section, whose block runs in a folder with the store `data/cartpole` and, for
delta-sharing, the profile of a server.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import gymnasium
import polars as pl
from deltalake import DeltaTable

import episodelake as el

DOCS = Path(__file__).parents[2] / "docs" / "engines.md"
QUERY = """
    select count(*), avg(observation[1]) from transitions join episodes using (episode_id)
    where episode_return > 20
"""
SHOW = "\nprint('ANSWER', *(float(number) for number in answer))\n"
LIMIT_SECONDS = 600


def recorded(path: Path) -> el.EpisodeStore:
    """A store of two runs, with a deletion, an annotation, and a column of steps in one run only."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(path, env)
    for run in ("first", "second"):
        with store.record(env, run=run) as recorder:
            env.action_space.seed(len(run))
            for seed in range(20):
                recorder.reset(seed=seed)
                while not any(recorder.step(env.action_space.sample())[2:4]):
                    if run == "second":  # files then differ in their columns
                        recorder.log(confidence=0.5)
    store.refresh().delete("length < 12")
    store.refresh().annotate(store.episodes.select("episode_id", good=pl.col("length") > 20))
    return store.refresh()


class SharingServer(BaseHTTPRequestHandler):
    """The parts of the delta-sharing protocol that its client needs to read a table."""

    def __init__(self, *arguments: Any, folder: Path) -> None:
        self.folder = folder
        super().__init__(*arguments)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Give a file, its size, or the metadata of a table."""
        if self.path.startswith("/files/"):
            self.answer((self.folder / self.path.removeprefix("/files/")).read_bytes())
        else:
            self.answer_table(files=False)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Give the list of a table's files."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer_table(files=True)

    def answer_table(self, *, files: bool) -> None:
        """Give protocol and metadata of a table, and its files."""
        name = self.path.split("/")[6]
        table = DeltaTable(self.folder / name)
        schema = table.schema().to_json()
        metadata = {"id": str(table.metadata().id), "format": {"provider": "parquet"}, "partitionColumns": []}
        lines: list[dict[str, Any]] = [
            {"protocol": {"minReaderVersion": 1}},
            {"metaData": {**metadata, "schemaString": schema}},
        ]
        for uri in table.file_uris() if files else ():
            file = Path(uri.removeprefix("file://"))
            url = f"http://{self.headers['Host']}/files/{name}/{file.name}"
            size = file.stat().st_size
            lines.append({"file": {"url": url, "id": file.name, "partitionValues": {}, "size": size}})
        self.answer("\n".join(map(json.dumps, lines)).encode(), table.version())

    def answer(self, data: bytes, version: int | None = None) -> None:
        """Send bytes, with the version of the table that they are of."""
        self.send_response(200)
        if version is not None:
            self.send_header("Delta-Table-Version", str(version))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def block_of(engine: str) -> str:
    """The block of a section of the page."""
    match = re.search(rf"^## {engine}\n.*?```python\n(.*?)```", DOCS.read_text(), re.M | re.S | re.I)
    assert match is not None, f"docs/engines.md has no section {engine}"
    return match[1]


def answer_of(engine: str, python: str, folder: Path) -> list[float]:
    """The numbers that an engine gives."""
    command = [python, "-c", block_of(engine) + SHOW]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    answers = re.findall(r"ANSWER (.*)", done.stdout)
    assert len(answers) == 1, f"{engine} ended with {done.returncode}: {done.stderr[-3000:]}"
    return [float(number) for number in answers[0].split()]


def main(arguments: list[str]) -> int:
    """Compare all engines; return how many differ."""
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = recorded(folder / "data" / "cartpole")
        expected = [float(number) for number in store.sql(QUERY).fetchall()[0]]
        handler = partial(SharingServer, folder=folder / "data" / "cartpole")
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        Thread(target=server.serve_forever, daemon=True).start()
        profile = {"shareCredentialsVersion": 1, "bearerToken": "any"}
        profile["endpoint"] = f"http://127.0.0.1:{server.server_port}"
        (folder / "cartpole.share").write_text(json.dumps(profile))
        for argument in arguments:
            engine, _, python = argument.partition("=")
            got = answer_of(engine, str(Path(python).absolute()), folder)
            same = got[0] == expected[0] and math.isclose(got[1], expected[1], rel_tol=1e-5)
            wrong += not same
            print(f"{engine}: {'as expected' if same else f'{got}; expected {expected}'}", flush=True)
        server.shutdown()
    print(f"{len(arguments) - wrong} passed, {wrong} failed")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Stores for the tests of charts, frames and cards, and what those tests read from a chart or a file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import av
import duckdb
import gymnasium
import numpy as np
import vl_convert
from gymnasium.spaces import Box, Discrete
from PIL import Image

import episodelake as el

#: Texts that would be code, markup or a query if anything let them.
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "'; DROP TABLE episodes; --",
    "<!--<script>",
    "&lt;b&gt; \x1b[31m\u202e",
)


def scores(path: Path, returns: dict[str, list[float]], **metadata: Any) -> el.EpisodeStore:
    """A store with a run for each name, whose episodes have these returns; episode k has k % 3 + 1 steps."""
    store = el.create(path, observation_space=Box(-9, 9, (2,), np.float32), action_space=Discrete(4, start=1))
    for run, values in returns.items():
        with store.writer(run=run, metadata={"algo": metadata.get(run, "none")}) as writer:
            for number, value in enumerate(values):
                length = number % 3 + 1
                rewards = np.zeros(length)
                rewards[0] = value
                writer.write_episode(
                    observations=np.arange(2 * length + 2, dtype=np.float32).reshape(-1, 2) / 2 - number % 4,
                    actions=(np.arange(length) + number) % 4 + 1,
                    rewards=rewards,
                    terminations=number % 2 == 0,
                    truncations=number % 2 == 1,
                    seed=number,
                )
    return store.refresh()


def raw(store: el.EpisodeStore, query: str) -> list[tuple[Any, ...]]:
    """A query over the Parquet files themselves, by a DuckDB that knows nothing of the store."""
    with duckdb.connect() as connection:
        for table in ("episodes", "steps", "runs"):
            files = f"read_parquet('{store.path}/{table}/*.parquet', union_by_name=true)"
            # A run that has ended stands in a second file, beside the one that said that it began.
            once = "DISTINCT ON (run_id)" if table == "runs" else ""
            connection.execute(f"CREATE VIEW {table} AS SELECT {once} * FROM {files}")
        return connection.execute(query).fetchall()


def cartpole(path: Path, seeds: range = range(3), **arguments: Any) -> el.EpisodeStore:
    """Episodes of CartPole under random actions."""
    env = gymnasium.make("CartPole-v1", **arguments)
    store = el.create(path, env)
    with store.record(env, run="random") as recorder:
        for seed in seeds:
            play(recorder, seed)
    return store.refresh()


def play(env: gymnasium.Env, seed: int, most: int = 1000) -> list[np.ndarray]:
    """Play an episode of random actions; what the environment rendered, if it does."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    frames = [env.render()] if env.render_mode == "rgb_array" else []
    for _ in range(most):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if env.render_mode == "rgb_array":
            frames.append(env.render())
        if terminated or truncated:
            break
    return frames  # type: ignore[return-value]


def pictures(path: Path, frames: np.ndarray, space: Box | None = None) -> el.EpisodeStore:
    """A store of one episode whose observations are these arrays."""
    shape = frames.shape[1:]
    store = el.create(path, observation_space=space or Box(0, 255, shape, np.uint8), action_space=Discrete(2))
    with store.writer(run="frames") as writer:
        writer.write_episode(
            observations=frames,
            actions=np.zeros(len(frames) - 1, np.int64),
            rewards=np.zeros(len(frames) - 1),
            terminations=True,
            truncations=False,
        )
    return store.refresh()


def layers(chart: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The kind of each mark of a chart, validated by Vega-Lite's schema, with the rows that it draws."""
    specification = chart.to_dict(validate=True)
    yield from _layers(specification, specification["datasets"], None)


def _layers(
    part: dict[str, Any], data: dict[str, Any], name: str | None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    name = part.get("data", {}).get("name", name)
    for inner in (*part.get("layer", ()), *part.get("vconcat", ())):
        yield from _layers(inner, data, name)
    if "mark" in part and name is not None:
        yield part["mark"]["type"], data[name]


def rows_of(chart: Any, mark: str) -> list[dict[str, Any]]:
    """The rows of all marks of one kind."""
    return [row for kind, rows in layers(chart) if kind == mark for row in rows]


def told(chart: Any) -> str:
    """Title and subtitle of a chart."""
    title = chart.to_dict()["title"]
    return "\n".join([title["text"], *title["subtitle"]])


def drawn(chart: Any) -> np.ndarray:
    """What vl-convert draws of a chart, RGB."""
    return np.array(
        Image.open(io.BytesIO(vl_convert.vegalite_to_png(chart.to_dict(), scale=1))).convert("RGBA")
    )


def decoded(path: Path) -> np.ndarray:
    """All frames of a video file, RGB, as PyAV decodes them."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


class Page(HTMLParser):
    """A page taken apart: its elements, their attributes, and its text; fails where tags do not pair up."""

    _EMPTY = frozenset({"img", "path", "rect", "circle", "polygon", "br", "meta", "link"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self._EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element without content."""
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """It has to be that of the innermost element."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text, but no styles."""
        if not self._open or self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader without styles sees."""
        return " ".join(" ".join(self.words).split())


def is_harmless(page: Page) -> bool:
    """Whether nothing in a page runs."""
    active = {"script", "iframe", "object", "embed", "form"} & set(page.tags)
    return not active and not any(name.startswith("on") for name, _ in page.attributes)


def as_json(chart: Any) -> str:
    """A chart as JSON, the way that a page gets it."""
    return json.dumps(chart.to_dict())

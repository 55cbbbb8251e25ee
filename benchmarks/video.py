"""Camera columns as video: size, import, windows and epochs beside LeRobot's layout read with PyAV."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
from gymnasium.spaces import Box, Dict
from torch.utils.data import DataLoader, Dataset

import episodelake as el
from measure import Row, Samples, interleave, scaled
from setting import Setting, folder_bytes

CAMERAS = ("front", "left", "right", "wrist")
HEIGHT, WIDTH, FPS = 480, 640, 30
ACTIONS = 50


def scene(frames: int, seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A camera's view: a static room, two things that move, and the noise of a sensor."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    room = np.stack([120 + 50 * np.sin(x / (31 + 7 * c)) * np.cos(y / (23 + 5 * c)) for c in range(3)], -1)
    room += rng.normal(0, 12, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1)
    views = np.empty((frames, height, width, 3), np.uint8)
    for t in range(frames):
        view = room.copy()
        for k, color in enumerate(((220, 40, 40), (30, 90, 200))):
            row = int(height / 2 + height / 4 * np.sin(t / (15 + 9 * k) + seed))
            column = int(width / 2 + width / 3 * np.cos(t / (20 + 5 * k) + seed))
            view[row : row + 40, column : column + 60] = color
        view += rng.normal(0, 1.5, view.shape)
        views[t] = view.clip(0, 255)
    return views


def dataset(folder: Path, episodes: int, length: int) -> Path:
    """A LeRobot dataset of four cameras, written by the export."""
    spaces = {name: Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8) for name in CAMERAS}
    state = Box(-1, 1, (14,), np.float32)
    raw = el.create(folder / "raw", observation_space=Dict({**spaces, "state": state}), action_space=state)
    rng = np.random.default_rng(0)
    with raw.writer() as writer:
        for episode in range(episodes):
            writer.write_episode(
                observations={
                    **{name: scene(length, 10 * episode + k) for k, name in enumerate(CAMERAS)},
                    "state": rng.uniform(-1, 1, (length, 14)).astype(np.float32),
                },
                actions=rng.uniform(-1, 1, (length, 14)).astype(np.float32),
                rewards=np.zeros(length),
                terminations=False,
                truncations=True,
                last_observation="missing",
            )
    raw.refresh().export(folder / "lerobot", format="lerobot", fps=FPS)
    shutil.rmtree(folder / "raw")
    return folder / "lerobot"


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Windows(Dataset):
    """Windows of LeRobot's files as training scripts read them: open containers, a seek for each window."""

    def __init__(self, folder: Path, frames: int, rows: int) -> None:
        self._files = [sorted((folder / "videos").glob(f"*{name}*/**/*.mp4"))[0] for name in CAMERAS]
        self._frames, self._rows = frames, rows
        self._open: list[Any] = []

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> np.ndarray:
        self._open = self._open or [av.open(str(file)) for file in self._files]
        return np.stack([self._window(container, row) for container in self._open])

    def _window(self, container: Any, row: int) -> np.ndarray:
        stream = container.streams.video[0]
        first, last = (
            round(max(at, 0) / FPS / float(stream.time_base)) for at in (row - self._frames + 1, row)
        )
        container.seek(first, stream=stream)
        frames = []
        for frame in container.decode(stream):
            if frame.pts >= first:
                frames.append(frame.to_ndarray(format="rgb24"))
            if frame.pts >= last:
                break
        return np.stack(frames[-self._frames :])


def windows(store: el.EpisodeStore, folder: Path, setting: Setting) -> list[Row]:
    """Random windows: some frames of each camera, and fifty actions."""
    rows = []
    count = setting.choose(128, 16)
    total = int(sum(episode.length for episode in store))
    for frames in (1, 8):
        steps = {f"observation.{name}": list(range(1 - frames, 1)) for name in CAMERAS}
        loader = store.loader(
            8, el.Deltas({**steps, "action": list(range(ACTIONS))}), shuffle=True, seed=0, columns=[]
        )
        peer = Windows(folder, frames, total)
        chosen = np.random.default_rng(0).integers(frames, total, count).tolist()

        def ours(loader: Any = loader) -> float:
            batches = iter(loader)
            return timed(lambda: [next(batches) for _ in range(count // 8)]) / count

        def theirs(peer: Windows = peer, chosen: list[int] = chosen) -> float:
            return timed(lambda: [peer[row] for row in chosen]) / count

        costs = interleave({"ours": ours, "theirs": theirs}, setting.repeats)
        rows.append(
            Row(
                f"random windows, 4 cameras x {frames} frames",
                "ms",
                scaled(costs["ours"], 1e3),
                "PyAV, containers kept open",
                scaled(costs["theirs"], 1e3),
                ratio_target=0.5,
            )
        )
    return rows


def epoch(store: el.EpisodeStore, folder: Path, setting: Setting) -> Row:
    """A shuffled epoch of single frames in two workers."""
    total = int(sum(episode.length for episode in store))
    columns = [*(f"observation.{name}" for name in CAMERAS), "action", "episode"]
    loader = store.loader(32, columns=columns, shuffle=True, seed=0, cache="stream")
    units = loader.iterable_dataset()

    def ours() -> float:
        batches = DataLoader(units, batch_size=None, collate_fn=units.collate, num_workers=2)
        return timed(lambda: [None for _ in batches])

    def theirs() -> float:
        data = DataLoader(Windows(folder, 1, total), batch_size=32, shuffle=True, num_workers=2)
        return timed(lambda: [None for _ in data])

    costs = interleave({"ours": ours, "theirs": theirs}, max(2, setting.repeats // 2), warm_up=False)
    return Row(
        "a shuffled epoch, 2 workers",
        "ms/step",
        scaled(costs["ours"], 1e3 / total),
        "PyAV in a DataLoader",
        scaled(costs["theirs"], 1e3 / total),
        ratio_target=0.5,
    )


def recording(setting: Setting) -> list[Row]:
    """The time of a step that records two cameras, encoded and raw; each frame takes 1/30 s of the loop."""
    frames = [scene(60, seed) for seed in range(2)]
    space = Dict({name: Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8) for name in CAMERAS[:2]})
    action = np.zeros(2, np.float32)
    steps = setting.choose(240, 30)

    def side(encodings: dict[str, el.Video] | None) -> float:
        path = setting.fresh("recorded")
        store = el.create(
            path, observation_space=space, action_space=Box(-1, 1, (2,), np.float32), encodings=encodings
        )
        cost = []
        with store.writer(seal_seconds=2.0) as writer:
            views = [dict(zip(CAMERAS, pair, strict=False)) for pair in zip(*frames, strict=True)]
            episode = writer.begin(views[0])
            for t in range(1, steps):
                start = time.perf_counter()
                episode.append(action, 0.0, views[t % 60])
                if t % 60 == 0:
                    episode.end()
                    episode = writer.begin(views[0])
                cost.append(time.perf_counter() - start)
                time.sleep(max(0.0, 1 / FPS - cost[-1]))
            episode.end()
        assert sum(each.length for each in store.refresh()) == steps - 1
        return float(np.median(cost))

    video = {f"observation.{name}": el.Video("h264") for name in CAMERAS[:2]}
    costs = interleave({"ours": lambda: side(video), "raw": lambda: side(None)}, 2, warm_up=False)
    return [
        Row(
            "record 2 cameras at 30 Hz as video, a step",
            "us",
            scaled(costs["ours"], 1e6),
            "raw frames",
            scaled(costs["raw"], 1e6),
            ratio_target=1.1,
        )
    ]


def lossless(setting: Setting) -> list[Row]:
    """Lossless frames beside zstd of the raw pixels, as raw columns have it."""
    frames = scene(setting.choose(32, 8), 3)
    space = Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    stores = {}
    for name, encodings in (("ours", {"observation": el.Video(lossless=True)}), ("raw", None)):
        path = setting.fresh(name)
        store = el.create(
            path, observation_space=space, action_space=Box(-1, 1, (2,), np.float32), encodings=encodings
        )
        with store.writer() as writer:
            zeros = np.zeros((len(frames) - 1, 2), np.float32)
            writer.write_episode(
                observations=frames,
                actions=zeros,
                rewards=zeros[:, 0],
                terminations=True,
                truncations=False,
            )
        stores[name] = path
    codec = pa.Codec("zstd", compression_level=1)
    packed = [codec.compress(frame.tobytes()) for frame in frames]
    sizes = {"ours": folder_bytes(stores["ours"] / "steps"), "raw": sum(each.size for each in packed)}

    def read(path: Path) -> Callable[[], float]:
        return lambda: timed(lambda: el.open(path)[0].observations) / len(frames)

    costs = interleave({name: read(path) for name, path in stores.items()}, setting.repeats)
    kilo = 1e-3 / len(frames)
    return [
        Row(
            "lossless camera frame",
            "kB",
            Samples((sizes["ours"] * kilo,)),
            "zstd",
            Samples((sizes["raw"] * kilo,)),
            ratio_target=0.5,
        ),
        Row(
            "decode a lossless camera frame",
            "ms",
            scaled(costs["ours"], 1e3),
            "raw column",
            scaled(costs["raw"], 1e3),
            ratio_target=1.3,
        ),
    ]


def run(setting: Setting) -> list[Row]:
    """Measure each work."""
    folder = setting.fresh("cameras")
    folder.mkdir(parents=True, exist_ok=True)
    lerobot = dataset(folder, setting.choose(8, 2), setting.choose(150, 40))
    target = folder / "store"

    def ours() -> float:
        shutil.rmtree(target, ignore_errors=True)
        return timed(lambda: el.import_dataset(lerobot, target))

    def theirs() -> float:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        return timed(lambda: shutil.copytree(lerobot, folder / "copy"))

    costs = interleave({"ours": ours, "theirs": theirs}, setting.repeats)
    store = el.open(target)
    return [
        Row(
            "size of 4 cameras of 640x480",
            "MB",
            Samples((folder_bytes(target) / 1e6,)),
            "LeRobot v3",
            Samples((folder_bytes(lerobot) / 1e6,)),
            ratio_target=1.1,
        ),
        Row(
            "import of them",
            "s",
            Samples(tuple(costs["ours"])),
            "copying the files",
            Samples(tuple(costs["theirs"])),
            ratio_target=3,
        ),
        *windows(store, lerobot, setting),
        epoch(store, lerobot, setting),
        *recording(setting),
        *lossless(setting),
    ]

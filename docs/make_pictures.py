"""Generate the pictures of the README and the site: charts, the terminal, the explorer, cameras.

    python docs/make_pictures.py                     # all of them, into docs/figures
    python docs/make_pictures.py charts terminal     # only these

The pictures show real output: this script records a store, runs the commands in a pseudo-terminal, and the
explorer in a headless Chromium (set `EPISODELAKE_CHROMIUM` to use another than that of the path). Install the
extra `test`.
"""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import episodelake as el

FIGURES = Path(__file__).parent / "figures"
STORE = "mountain-car"
COLUMNS = 100
COMMANDS = {
    "terminal-info": ["info", STORE],
    "terminal-show": ["show", STORE, "{usual}"],
    "terminal-sql": [
        "sql",
        STORE,
        "select name, count(*) as episodes, avg(episode_return) as mean_return, min(length) as quickest "
        "from episodes join runs using (run_id) where end_reason = 'terminated' group by all order by name",
    ],
    "terminal-plot": ["plot", STORE, "returns"],
}


def colours(text: str) -> list[tuple[int, int, int]]:
    """Colours as terminals' themes have them, from hexadecimal numbers."""
    return [
        (value >> 16, value >> 8 & 255, value & 255) for value in (int(word, 16) for word in text.split())
    ]


# A dark terminal: background, text, the eight colours, and their bright forms.
NIGHT = TerminalTheme(
    (16, 24, 32),
    (214, 222, 228),
    colours("34404a f07178 7ecc8c e9be6d 68a6f0 c892ea 5ac8d0 d6dee4"),
    colours("7a8a96 ff8b92 a0e2aa ffd591 8cbeff deb0fa 82dee4 ffffff"),
)


def record(folder: Path) -> el.EpisodeStore:
    """Three learners climb the hill of MountainCar by the cross-entropy method; each keeps its generation."""
    store = el.create(folder / STORE, gymnasium.make("MountainCar-v0"))
    for seed in range(3):
        random = np.random.default_rng(seed)
        mean, spread = np.zeros(3), np.ones(3)
        kept: dict[str, int] = {}
        environment = gymnasium.make("MountainCar-v0")
        recorder = store.record(
            environment,
            run=f"cem-seed{seed}",
            metadata={"seed": seed},
            episode_callback=lambda _, kept=kept: dict(kept),
        )
        with recorder as env:
            for generation in range(12):
                kept["generation"] = generation
                policies = mean + spread * random.normal(size=(20, 3))
                returns = [climb(env, policy, 20 * generation + n) for n, policy in enumerate(policies)]
                best = policies[np.argsort(returns, stable=True)[-5:]]
                mean, spread = best.mean(axis=0), best.std(axis=0) + 0.1
    return store.refresh()


def climb(env: gymnasium.Env, weights: np.ndarray, seed: int) -> float:
    """One episode; its return."""
    observation, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        push = weights @ (observation[0] + 0.5, 20 * observation[1], 0.5)
        observation, reward, terminated, truncated, _ = env.step(2 if push > 0 else 0)
        total += float(reward)
        done = terminated or truncated
    return total


def make_charts(store: el.EpisodeStore) -> None:
    """The pictures of the tutorial, of a store recorded as it says, and a chart of this one."""
    with tempfile.TemporaryDirectory() as folder:
        searched = el.create(Path(folder, "cartpole"), gymnasium.make("CartPole-v1"))
        random = np.random.default_rng(0)
        with searched.record(gymnasium.make("CartPole-v1"), run="search") as env:
            for seed in range(200):
                weights = random.normal(size=4)
                observation, _ = env.reset(seed=seed)
                done = False
                while not done:
                    observation, _, terminated, truncated, _ = env.step(int(weights @ observation > 0))
                    done = terminated or truncated
        searched.refresh()
        searched.plot.returns().save(FIGURES / "tutorial-returns.svg", theme="light")
        searched[3].plot().save(FIGURES / "tutorial-episode.svg", theme="light")
    with tempfile.TemporaryDirectory() as folder:
        store.plot.returns().save(Path(folder, "returns.png"), theme="light")
        keep(Image.open(Path(folder, "returns.png")), "plot-returns")


def keep(picture: Image.Image, name: str) -> None:
    """Write a picture with few colours, which takes a quarter of the room."""
    few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(FIGURES / f"{name}.png", optimize=True)


def make_terminal(store: el.EpisodeStore) -> None:
    """What commands show in a terminal of a hundred columns."""
    folder = store.path.parent
    lengths = store.episodes.collect()["length"].to_numpy()
    usual = int(np.argsort(lengths, stable=True)[len(lengths) // 2])
    for name, command in COMMANDS.items():
        words = [word.format(usual=usual) for word in command]
        shown = ran(["episodelake", *words], folder).replace(f"{folder}/", "").rstrip()
        typed = " ".join(f'"{word}"' if " " in word else word for word in words)
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), legacy_windows=False)
        prompt = Text("$ ", "bold green")
        console.print(
            prompt + Text(f"episodelake {typed}", "bold"), Text.from_ansi(shown), sep="\n", soft_wrap=False
        )
        # The fonts of the template would be fetched from elsewhere.
        template = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        drawn = console.export_svg(title="", theme=NIGHT, code_format=template, unique_id=name)
        (FIGURES / f"{name}.svg").write_text(drawn.replace("Fira Code", "ui-monospace"), "utf-8")


def ran(command: list[str], folder: Path) -> str:
    """What a command of this environment writes to a terminal."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    command = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=child, stdout=child, stderr=child)
    os.close(child)
    written = b""
    with contextlib.suppress(OSError):  # the terminal is gone when the command has ended
        while data := os.read(parent, 1 << 16):
            written += data
    os.close(parent)
    if process.wait():
        raise RuntimeError(f"{' '.join(command)} failed:\n{written.decode()}")
    return written.decode().replace("\r\n", "\n")


#: The size of four cameras side by side.
STRIP = (768, 144)
#: Of the recording of the explorer: the size of the page, and of each picture.
PAGE = {"width": 1280, "height": 900}
SHOWN = (960, 675)


def make_cameras(_: el.EpisodeStore) -> None:
    """An episode of the notebook on cameras, as the store gives its frames: all four, side by side."""
    notebook = json.loads((FIGURES.parent.parent / "notebooks" / "cameras.ipynb").read_text("utf-8"))
    scope: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["id"] in ("imports", "arm", "record"):
            exec("".join(cell["source"]), scope)
    episode = scope["store"][0]
    gap = ((0, 0), (0, 0), (0, 2), (0, 0))
    views = [np.pad(episode.observations[name], gap, constant_values=255) for name in scope["CAMERAS"]]
    frames = np.concatenate(views, axis=2)
    pictures = [Image.fromarray(frame).resize(STRIP, Image.Resampling.LANCZOS) for frame in frames]
    pictures[0].save(
        FIGURES / "cameras.webp",
        save_all=True,
        append_images=pictures[1:],
        duration=[50] * (len(pictures) - 1) + [1500],
        loop=0,
        quality=40,
        method=6,
    )
    scope["folder"].cleanup()


def make_explorer(store: el.EpisodeStore) -> None:
    """A recording of the explorer: the overview, the longest episodes, and one of them that plays."""
    from playwright.sync_api import Page, sync_playwright

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # a replay is drawn without a screen
    pictures: list[Image.Image] = []
    times: list[int] = []

    def take(page: Page, milliseconds: int) -> None:
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        pictures.append(shot.resize(SHOWN, Image.Resampling.LANCZOS))
        times.append(milliseconds)

    with explored(store) as address, sync_playwright() as playwright:
        chromium = os.environ.get("EPISODELAKE_CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=PAGE, color_scheme="light")
        page.goto(address)
        page.locator(".findings").wait_for(timeout=60_000)
        page.wait_for_timeout(6_000)
        take(page, 3_000)
        page.get_by_role("tab", name="Episodes").click()
        page.locator(".first canvas").first.wait_for(timeout=60_000)
        page.wait_for_timeout(2_000)
        take(page, 1_500)
        page.get_by_text("Render a replay").click()
        page.locator(".first .frame").first.wait_for(timeout=60_000)
        page.wait_for_timeout(2_000)
        slider = page.locator(".timeline .q-slider")
        size = slider.bounding_box()
        for share in np.linspace(0.02, 0.98, 24):
            slider.click(position={"x": float(share) * (size["width"] if size else 100), "y": 10})
            page.wait_for_timeout(700)
            take(page, 120)
        times[-1] = 1_500
        browser.close()
    first, *others = pictures
    target = FIGURES / "explorer.webp"
    first.save(target, save_all=True, append_images=others, duration=times, loop=0, quality=70, method=6)


@contextlib.contextmanager
def explored(store: el.EpisodeStore) -> Iterator[str]:
    """The address of a running explorer."""
    command = [
        str(Path(sys.executable).parent / "episodelake"),
        "explore",
        STORE,
        "--no-browser",
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, cwd=store.path.parent, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = next((line.strip() for line in process.stdout if line.startswith("http")), None)
        if address is None:
            raise RuntimeError("The explorer did not start.")
        yield address
    finally:
        process.terminate()
        process.wait()


PARTS: dict[str, Callable[[el.EpisodeStore], None]] = {
    "charts": make_charts,
    "terminal": make_terminal,
    "explorer": make_explorer,
    "cameras": make_cameras,
}


def main() -> None:
    """Make those that are named, or all."""
    with tempfile.TemporaryDirectory() as folder:
        store = record(Path(folder))
        for name in sys.argv[1:] or PARTS:
            PARTS[name](store)
    for path in sorted(FIGURES.iterdir()):
        print(f"{path.name}: {path.stat().st_size >> 10} kB")


if __name__ == "__main__":
    main()

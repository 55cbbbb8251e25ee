"""A short walk through the installed package: record CartPole, ask in SQL, rebuild, run the command line.

It is run by hand or by `tests/check_wheel.sh` with the interpreter that has the wheel, from a folder where
the checkout cannot be seen. It ends with a non-zero status at the first thing that is not as it should be.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

import episodelake as el


def check(condition: bool, what: str) -> None:
    """Stop with `what` unless `condition` holds; unlike assert, this stays when Python optimises."""
    if not condition:
        raise SystemExit(f"smoke test failed: {what}")


def record(folder: Path, episodes: int) -> list[tuple[np.ndarray, float]]:
    """Record random episodes of CartPole into a new store; return the observations and return of each."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(folder, env)
    seen = []
    with store.record(env, run="smoke", metadata={"policy": "random"}) as recorder:
        recorder.action_space.seed(0)
        for seed in range(episodes):
            observation, _ = recorder.reset(seed=seed)
            observations, total, done = [observation.copy()], 0.0, False
            while not done:
                observation, reward, terminated, truncated, _ = recorder.step(recorder.action_space.sample())
                observations.append(observation.copy())
                total += float(reward)
                done = terminated or truncated
            seen.append((np.stack(observations), total))
    return seen


def main() -> None:
    """Run every part in order and say so at the end."""
    check(Path(el.__file__).resolve().is_relative_to(Path(sys.prefix).resolve()), "not the installed package")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "cartpole"
        seen = record(folder, episodes=5)
        store = el.open(folder)
        check(len(store) == len(seen), f"{len(store)} episodes instead of {len(seen)}")
        rows = store.sql("select seed, length, episode_return from episodes order by seed").fetchall()
        wanted = [(seed, len(observations) - 1, total) for seed, (observations, total) in enumerate(seen)]
        check(rows == wanted, f"SQL says {rows}, the loop saw {wanted}")
        for episode, (observations, _) in zip(store, seen, strict=True):
            back = episode.observations
            same = back.dtype == observations.dtype and np.array_equal(back, observations)
            check(same, f"episode {episode.id} came back changed")
        command = [str(Path(sys.executable).with_name("episodelake")), "info", str(folder)]
        told = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        steps = sum(len(observations) - 1 for observations, _ in seen)
        well = told.returncode == 0 and str(len(seen)) in told.stdout and str(steps) in told.stdout
        check(well, f"`episodelake info` said: {told.stdout}{told.stderr}")
    print(f"smoke test passed: episodelake {Path(el.__file__).parent}")


if __name__ == "__main__":
    main()

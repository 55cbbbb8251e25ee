"""dm_env time steps: the action of a row led to its observation, in `.npz` files and in tables."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from test_cli import printed

LENGTHS = [6, 1, 4]


def steps(rng: np.random.Generator, length: int, *, image: bool = False) -> dict[str, np.ndarray]:
    """T+1 rows as a recorder of time steps writes them; each observation is the last one plus the action."""
    actions = rng.uniform(0.5, 1, (length + 1, 2)).astype(np.float32)
    actions[0] = 0
    rewards = rng.normal(size=length + 1).astype(np.float32)
    rewards[0] = 0
    places = np.cumsum(actions, axis=0, dtype=np.float64).astype(np.float32)
    pixels = rng.integers(0, 256, (length + 1, 4, 4, 3), dtype=np.uint8)
    seen = {"image": pixels, "place": places} if image else {"observation": places}
    return {**seen, "action": actions, "reward": rewards}


def drq(folder: Path, ends: list[float]) -> list[dict[str, np.ndarray]]:
    """Files as DrQ-v2, URLB and ExORL name them, with columns of URLB and ExORL."""
    rng, episodes = np.random.default_rng(0), []
    folder.mkdir()
    for index, (length, end) in enumerate(zip(LENGTHS, ends, strict=True)):
        arrays = steps(rng, length)
        arrays["reward"] = arrays["reward"][:, None]
        arrays["discount"] = np.ones((length + 1, 1), np.float32)
        arrays["discount"][-1] = end
        arrays["skill"] = rng.normal(size=(length + 1, 3)).astype(np.float32)
        np.savez_compressed(folder / f"20260301T120000_{9 + index}_{length}.npz", **arrays)
        episodes.append(arrays)
    return episodes


def dreamer(folder: Path, ends: list[float]) -> list[dict[str, np.ndarray]]:
    """Files as DreamerV2 names them."""
    rng, episodes = np.random.default_rng(0), []
    folder.mkdir()
    for index, (length, end) in enumerate(zip(LENGTHS, ends, strict=True)):
        flags = {name: np.zeros(length + 1, bool) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][0], flags["is_last"][-1], flags["is_terminal"][-1] = True, True, end == 0
        arrays = {**steps(rng, length, image=True), **flags, "log_success": np.zeros(length + 1, np.float32)}
        np.savez_compressed(folder / f"20260301T120000-{index:032x}-{length}.npz", **arrays)
        episodes.append(arrays)
    return episodes


def sampled(arrays: dict[str, np.ndarray], name: str) -> list[tuple[Any, ...]]:
    """The transitions that these tools sample: an observation, and the rest of the next row."""
    return [
        (arrays[name][t - 1], arrays["action"][t], float(arrays["reward"][t].item()), arrays[name][t])
        for t in range(1, len(arrays["action"]))
    ]


@pytest.mark.parametrize(("tool", "name"), [(drq, "observation"), (dreamer, "place")])
def test_folders_of_time_steps_are_recognised(tmp_path: Path, tool: Any, name: str) -> None:
    """Every transition is one that the tool samples; ends and other columns are kept."""
    ends = [1.0, 0.0, 1.0]
    episodes = tool(tmp_path / "buffer", ends)
    report = el.import_dataset(tmp_path / "buffer", tmp_path / "store")
    assert (report.format, report.steps, dict(report.lost)) == ("dm_env", sum(LENGTHS), {})
    assert report.mapping["action"] == "action of the next row"
    assert report.action_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    store = el.open(tmp_path / "store")
    for episode, arrays, end in zip(store, episodes, ends, strict=True):
        seen: Any = episode.observations
        places = seen if tool is drq else seen["place"]
        assert tool is drq or np.array_equal(seen["image"], arrays["image"])
        ours = zip(places[:-1], episode.actions, episode.rewards.tolist(), places[1:], strict=True)
        assert str(list(ours)) == str(sampled(arrays, name))
        assert episode.end_reason == ("terminated" if end == 0 else "truncated")
        other = "skill" if tool is drq else "log_success"
        assert np.array_equal(np.stack(episode.extra[other]), arrays[other])
    pattern = str(tmp_path / "buffer" / "*.npz")
    again = el.import_dataset(pattern, tmp_path / "again")
    assert (again.format, again.episodes) == ("dm_env", 3)
    assert el.import_dataset(tmp_path / "buffer", store).present == 3
    with pytest.raises(el.errors.InvalidArgumentError, match=r"format= \(--format\): .*table"):
        el.import_dataset(tmp_path / "buffer", tmp_path / "mapped", mapping={"observation": "place"})


def test_time_steps_that_state_something_else(tmp_path: Path) -> None:
    """A first action that is no dummy is refused with its file; what has no meaning counts as lost."""
    (arrays, _, last) = drq(tmp_path / "buffer", [1.0, 0.0, 1.0])
    file = tmp_path / "buffer" / "20260301T120000_9_6.npz"
    arrays["reward"][0], arrays["discount"][2] = 3, 0.5
    last["is_terminal"] = last["is_last"] = np.zeros(5, bool)
    np.savez(file, **arrays)
    np.savez(tmp_path / "buffer" / "20260301T120000_11_4.npz", **last)
    np.savez(tmp_path / "buffer" / "20260301T120000_12_0.npz", **{key: a[:1] for key, a in arrays.items()})
    report = el.import_dataset(tmp_path / "buffer", tmp_path / "store")
    assert dict(report.lost) == {
        "a reward other than 0 of a first row, which no action led to": 1,
        "a discount other than 1 before the last row": 1,
        "an episode with an observation and no transition": 1,
    }
    assert [each.end_reason for each in el.open(tmp_path / "store")] == ["truncated", "terminated", "cut"]
    arrays["action"][0] = 1
    np.savez(tmp_path / "buffer" / "20260301T120000_13_6.npz", **arrays)
    with pytest.raises(el.errors.DatasetError, match=r"_13_6\.npz: its first action is not zeros"):
        el.import_dataset(tmp_path / "buffer", tmp_path / "other")
    np.savez(file, **arrays)
    assert el.import_dataset(file, tmp_path / "table", mapping={
        "observation": "observation", "action": "action", "episode": el.FILE,
    }).format == "table"  # fmt: skip


def table(rng: np.random.Generator) -> tuple[pl.DataFrame, list[dict[str, np.ndarray]]]:
    """Rows of time steps in a random order, with NULL for what first rows do not have."""
    frames, episodes = [], []
    for number, length in enumerate((3, 5, 2)):
        arrays = steps(rng, length)
        done = np.zeros(length + 1, bool)
        done[-1] = number == 1
        rewards = [None, *arrays["reward"][1:].astype(float).tolist()]
        frames.append(
            pl.DataFrame(
                {
                    "run": number,
                    "t": np.arange(length + 1),
                    "x": arrays["observation"][:, 0],
                    "y": arrays["observation"][:, 1],
                    "u": arrays["action"].tolist(),
                    "gain": rewards,
                    "done": done,
                    "note": [f"{number}-{t}" for t in range(length + 1)],
                },
                strict=False,
            )
        )
        episodes.append(arrays)
    return pl.concat(frames).sample(fraction=1, shuffle=True, seed=0), episodes


def test_rows_of_a_table_whose_action_led_to_their_observation(tmp_path: Path) -> None:
    """The mapping states it, in Python and on the command line; other columns stay with their row."""
    rows, episodes = table(np.random.default_rng(1))
    mapping = {
        "observation": ["x", "y"], "action": "u", "reward": "gain", "terminated": "done", "episode": "run",
        "step": "t", "extra": ["note", "u"], "action_leads_to": True,
    }  # fmt: skip
    report = el.import_dataset(rows, tmp_path / "store", mapping=mapping)
    assert dict(report.lost) == {
        "whether an episode was truncated, which the table does not state: it is cut": 2
    }
    store = el.open(tmp_path / "store")
    for number, (episode, arrays) in enumerate(zip(store, episodes, strict=True)):
        places = episode.observations.astype(np.float32)
        ours = zip(
            places[:-1], episode.actions.astype(np.float32), episode.rewards.tolist(), places[1:], strict=True
        )
        assert str(list(ours)) == str(sampled(arrays, "observation"))
        assert episode.end_reason == ("terminated" if number == 1 else "cut")
        assert episode.extra["note"] == [f"{number}-{t}" for t in range(len(places))]
        assert np.allclose(np.stack(episode.extra["u"]), arrays["action"])
    rows.write_parquet(tmp_path / "rows.parquet")
    words = ["observation=x,y", "action=u", "reward=gain", "terminated=done", "episode=run", "step=t"]
    given = [word for each in (*words, "action_leads_to=true") for word in ("--map", each)]
    printed("import", str(tmp_path / "rows.parquet"), str(tmp_path / "shell"), *given)
    assert [each.rewards.tolist() for each in el.open(tmp_path / "shell")] == [
        each.rewards.tolist() for each in store
    ]


def test_mappings_of_time_steps_that_make_no_sense(tmp_path: Path) -> None:
    """A next observation beside it, a flag of a first row, and values that led to nothing."""
    rows, _ = table(np.random.default_rng(1))
    base: Any = {"observation": ["x", "y"], "action": "u", "reward": "gain", "episode": "run", "step": "t"}
    led = base | {"action_leads_to": True}
    for mapping, message in (
        (led | {"next_observation": ["x", "y"]}, "leave next_observation out"),
        (base | {"action_leads_to": "yes"}, "expected True or False"),
        (led | {"done": "first"}, "Episode 0: `first` is set in its first row"),
    ):
        with pytest.raises(el.EpisodelakeError, match=message):
            el.import_dataset(rows.with_columns(first=pl.col("t") == 0), tmp_path / "store", mapping=mapping)
    odd = rows.with_columns(gain=pl.col("gain").fill_null(2.0), u=pl.lit([1.0, 0.0]))
    lost = el.import_dataset(odd, tmp_path / "store", mapping=led).lost
    assert lost["an action of a first row, which led to no observation"] == 3
    assert lost["a reward of a first row, which led to no observation"] == 3
    single = rows.filter((pl.col("t") == 0) | (pl.col("run") == 1))
    report = el.import_dataset(single, tmp_path / "single", mapping=led)
    assert (report.episodes, report.lost["an episode with an observation and no transition"]) == (1, 2)


def test_chunks_of_several_episodes_are_no_time_steps(tmp_path: Path) -> None:
    """Files of DreamerV3 have the same arrays; their rows begin within an episode."""
    rng = np.random.default_rng(0)
    flags = {name: np.zeros(9, bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_last"][[0, 5]] = flags["is_first"][[1, 6]] = True
    np.savez(tmp_path / "chunk.npz", **steps(rng, 8, image=True), **flags)
    with pytest.raises(el.errors.DatasetError, match="no known format"):
        el.import_dataset(tmp_path / "chunk.npz", tmp_path / "store")
    with pytest.raises(el.errors.DatasetError, match="an episode begins after its first row"):
        el.import_dataset(tmp_path / "chunk.npz", tmp_path / "store", format="dm_env")

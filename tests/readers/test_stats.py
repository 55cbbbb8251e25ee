"""Statistics of columns: those of DuckDB and numpy on the same rows, exact to rounding, and kept on disk."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import episodelake as el
from effort import looped
from episodelake.readers.measures import measuring
from episodelake.readers.measures.measuring import Histograms
from loader_batches import random_store
from waiting import PATIENCE

VECTOR = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
QUANTILES = [0.0, 0.01, 0.3, 0.5, 0.99, 1.0]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Forty episodes with gaps and NaN in what the policy logged."""
    path = tmp_path_factory.mktemp("stats") / "store"
    rng = np.random.default_rng(4)
    store = el.create(path, observation_space=VECTOR, action_space=gym.spaces.Discrete(5))
    with store.writer(run="stats") as writer:
        for number in range(40):
            episode = writer.begin(rng.normal(size=3).astype(np.float32))
            length = int(rng.integers(2, 30))
            for t in range(length):
                policy: dict[str, Any] = {"pair": rng.normal(size=2)} if t % 3 else {}
                policy["value"] = math.nan if t % 7 == 3 else 1e9 + rng.normal()
                if number == 7 and t == 0:
                    policy["value"] = math.inf
                observation = (rng.normal(size=3) * [1, 50, 0] + [0, 1e4, 7]).astype(np.float32)
                episode.append(
                    int(rng.integers(5)),
                    float(rng.normal()),
                    observation,
                    terminated=t == length - 1,
                    policy=policy,
                )
            episode.end()
            if number % 15 == 14:
                writer.seal()
    return store.refresh()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for the cache."""
    return tmp_path / "cache"


def duck(store: el.EpisodeStore, column: str) -> list[float]:
    """What DuckDB says of a column of the raw files: count, mean, deviation, extremes, quantiles."""
    files = [str(path) for path in (Path(store.path) / "steps").rglob("*.parquet")]
    text = f"""
        select count(value), avg(value), stddev_pop(value), min(value), max(value),
            quantile_cont(value, {QUANTILES})
        from (select ({column})::double as value from read_parquet({files}, union_by_name = true))
    """
    *numbers, quantiles = duckdb.sql(text).fetchall()[0]
    return [*numbers, *quantiles]


def told(stats: el.types.ColumnStats, element: tuple[int, ...] = ()) -> list[float]:
    """The same of ours."""
    parts = [stats.count, stats.mean, stats.std, stats.minimum, stats.maximum, *stats.quantiles.values()]
    return [float(part[element]) for part in parts]


def test_as_duckdb_says_of_the_raw_files(store: el.EpisodeStore, folder: Path) -> None:
    """Element by element; the last row of an episode has an observation, and no action or reward."""
    stats = store.stats(quantiles=QUANTILES, cache_folder=folder)
    assert list(stats) == ["observation", "action", "reward", "policy.pair", "policy.value"]
    rows = store.steps.select(pl.len()).collect().item()
    steps = rows - len(store)
    for element in range(3):
        expected = duck(store, f"observation[{element + 1}]")
        np.testing.assert_allclose(told(stats["observation"], (element,)), expected, rtol=1e-12, atol=1e-12)
    for name in ("action", "reward"):
        np.testing.assert_allclose(told(stats[name]), duck(store, name), rtol=1e-12)
        assert (stats[name].rows, stats[name].absent) == (steps, len(store))
    for element in range(2):
        expected = duck(store, f'"policy.pair"[{element + 1}]')
        np.testing.assert_allclose(told(stats["policy.pair"], (element,)), expected, rtol=1e-12)
    pairs = store.steps.select(pl.col("policy.pair").count()).collect().item()
    assert (stats["policy.pair"].rows, stats["policy.pair"].absent) == (pairs, rows - pairs)
    assert stats["observation"].std[2] > 0 and stats["observation"].shape == (3,)


def test_what_is_no_number_is_counted_and_left_out(store: el.EpisodeStore, folder: Path) -> None:
    """NaN is; infinite values are values, of which a mean is infinite and a deviation is none."""
    view = store.filter("number <> 7")
    stats = view.stats(["policy.value"], quantiles=QUANTILES, cache_folder=folder)["policy.value"]
    raw = view.steps.select("policy.value").collect()["policy.value"].drop_nulls()
    assert stats.nan == raw.is_nan().sum() > 0 and stats.rows == len(raw) == stats.count + stats.nan
    values = raw.drop_nans().to_numpy()
    np.testing.assert_array_equal(told(stats)[3:5], [values.min(), values.max()])
    np.testing.assert_allclose(told(stats)[5:], np.quantile(values, QUANTILES), rtol=1e-15)
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    spread = math.sqrt(sum((value - mean) ** 2 for value in exact) / len(exact))
    assert abs(stats.mean - float(mean)) < 1e-6 and abs(stats.std / spread - 1) < 1e-9
    odd = store[7:8].stats(["policy.value"], cache_folder=folder)["policy.value"]
    assert odd.maximum == odd.mean == math.inf and np.isnan(odd.std) and np.isfinite(odd.minimum)


numbers = st.one_of(
    st.floats(width=64),
    st.floats(-1e3, 1e3),
    st.floats(1e9, 1e9 + 1),
    st.sampled_from([0.0, 1e308, -1e308, 1.7e308, 5e-324]),
)


@given(arrays.arrays(np.float64, st.integers(0, 40), elements=numbers), st.floats(0, 1))
@example(np.array([5e-324, 0.0]), 0.5)
@example(np.array([1.7e308, -1e308, -1e308]), 0.5)
@example(np.array([1e308, np.nextafter(1e308, 0)]), 0.1)
def test_numbers_are_those_of_exact_arithmetic(values: np.ndarray, probability: float) -> None:
    """Whatever their size: mean and deviation to rounding, quantiles between the right values."""
    count, nan, mean, std, low, high, quantile = measuring._numbers(values.copy(), [probability])
    real = sorted(value for value in values.tolist() if not math.isnan(value))
    assert (count, nan) == (len(real), len(values) - len(real))
    if not real:
        assert all(map(math.isnan, (mean, std, low, high, quantile)))
        return
    assert (low, high) == (real[0], real[-1])
    place = (len(real) - 1) * probability
    below, above = real[int(place)], real[min(int(place) + 1, len(real) - 1)]
    assert below <= quantile <= above or (below, above) == (-math.inf, math.inf)
    if not all(map(math.isfinite, real)):
        assert math.isnan(std) and not math.isfinite(mean)
        return
    exact = [Fraction(value) for value in real]
    middle = sum(exact) / len(exact)
    largest = max(abs(low), abs(high))
    # No double is nearer to half of the smallest one than that half.
    smallest = Fraction(5e-324)
    assert abs(Fraction(mean) - middle) <= Fraction(largest) * Fraction(2) ** -50 + smallest / 2
    variance = float(
        sum((value - middle) ** 2 for value in exact) / len(exact) / (Fraction(largest) or 1) ** 2
    )
    spread = Fraction(math.sqrt(variance)) * (Fraction(largest) or 1)
    assert abs(Fraction(std) - spread) <= spread / 10**14 + Fraction(largest) * Fraction(2e-16) + smallest / 2


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.int64, [2**53 + 1, 2**53 + 3, 2**53 + 5, 2**53 + 5]),
        (np.int64, [-(2**63), 2**63 - 1, 0, 7]),
        (np.uint64, [2**64 - 1, 2**64 - 2, 2**64 - 5, 2**63]),
        (np.int64, [-(2**53), 5, 6, 2]),
    ],
)
def test_long_integers_are_exact(tmp_path: Path, folder: Path, dtype: Any, values: list[int]) -> None:
    """Extremes beyond 2^53 are those recorded, deviations those of exact arithmetic; also from the cache."""
    info = np.iinfo(dtype)
    space = gym.spaces.Box(info.min, info.max, (1,), dtype)
    store = el.create(tmp_path / "s", observation_space=gym.spaces.Box(0, 1, (1,)), action_space=space)
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((5, 1), np.float32),
            actions=np.array(values, dtype)[:, None],
            rewards=np.ones(4),
            terminations=True,
            truncations=False,
        )
    mean = Fraction(sum(values), 4)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / 4)
    for _ in range(2):
        found = store.refresh().stats(["action", "reward"], cache_folder=folder)
        measured = found["action"]
        assert measured.minimum.dtype == measured.maximum.dtype == dtype
        assert (int(measured.minimum[0]), int(measured.maximum[0])) == (min(values), max(values))
        assert measured.mean[0] == pytest.approx(float(mean), rel=1e-15)
        assert measured.std[0] == pytest.approx(std, rel=1e-12)
        assert found["reward"].minimum.dtype == np.float64 and len(found.frame()) == 2


def test_a_deviation_survives_a_mean_that_is_rounded() -> None:
    """Numbers so large that their mean is no float64: the deviation is exact all the same."""
    values = 2.0**52 + np.arange(1000) % 2
    _, _, mean, std, *_ = measuring._numbers(values, [])
    assert abs(mean - 2.0**52) <= 1 and std == 0.5


@looped("dtype", [np.float16, np.float32, np.int8, np.uint64, np.bool_])
def test_every_dtype(dtype: Any) -> None:
    """Numbers of other kinds are measured as the float64 that they are."""
    values = np.random.default_rng(0).integers(0, 2 if dtype is np.bool_ else 100, 501).astype(dtype)
    found = measuring._numbers(values.copy(), QUANTILES)
    wide = values.astype(np.float64)
    expected = [501, 0, wide.mean(), wide.std(), wide.min(), wide.max(), *np.quantile(wide, QUANTILES)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("shape", "over", "kept"),
    [
        ((5, 7), (0, 1, 2), ()),
        ((5, 7, 3), (0, 1, 2), (3,)),
        ((4, 5, 7), (0, 2, 3), (4, 1, 1)),
        ((2, 5, 7), (0, 1, 2, 3), ()),
        ((3, 5, 3), (0, 1, 2), (3,)),
    ],
)
def test_frames_are_measured_by_channel(
    shape: Any, over: Any, kept: Any, tmp_path: Path, folder: Path
) -> None:
    """Over all pixels of a channel, as numpy says of all frames at once; also if they are read in parts."""
    space = gym.spaces.Dict(image=gym.spaces.Box(0, 255, shape, np.uint8), speed=VECTOR)
    store = random_store(tmp_path / "store", [4, 9, 2, 1], ["cut"] * 4, space, 1)
    frames = np.concatenate([episode.observations["image"] for episode in store])
    speeds = np.concatenate([episode.observations["speed"] for episode in store])
    for part in (1 << 27, 300):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measuring, "_PART", part)
            stats = store.stats(["observation"], quantiles=QUANTILES, cache_folder=folder / str(part))
        image = stats["observation.image"]
        assert image.mean.shape == kept and image.shape == shape and image.rows == len(frames)
        assert image.count.sum() == frames.size and not image.nan.any()
        for measured, expected in [
            (image.mean, frames.mean(axis=over)),
            (image.std, frames.std(axis=over)),
            (image.minimum, frames.min(axis=over)),
            (image.maximum, frames.max(axis=over)),
            *zip(image.quantiles.values(), np.quantile(frames, QUANTILES, axis=over), strict=True),
        ]:
            np.testing.assert_allclose(measured.ravel(), expected.ravel(), rtol=1e-12)
        np.testing.assert_allclose(
            stats["observation.speed"].mean, speeds.mean(axis=0, dtype=float), rtol=1e-12
        )
        normalized = el.Normalize.from_stats(stats, "observation.image")({"observation": {"image": frames}})
        np.testing.assert_allclose(normalized["observation"]["image"].mean(axis=over), 0, atol=1e-6)


@given(arrays.arrays(np.uint8, st.tuples(st.integers(0, 6), st.just(3), st.just(5))))
def test_counts_of_any_number_of_bytes(frames: np.ndarray) -> None:
    """Odd ones too, and none."""
    histograms = Histograms((3, 5))
    for frame in frames:
        histograms.add(frame[None])
    stats = histograms.stats("image", np.ones(len(frames), bool), [0.25])
    assert stats.count == frames.size
    if frames.size:
        np.testing.assert_allclose(stats.quantile(0.25), np.quantile(frames, 0.25))
        np.testing.assert_allclose([stats.mean, stats.std], [frames.mean(), frames.std()], atol=1e-12)


def test_they_print_and_become_a_frame(store: el.EpisodeStore, folder: Path) -> None:
    """One row per element, a column per quantile."""
    stats = store.stats(["observation", "reward"], quantiles=[0.5], cache_folder=folder)
    frame = stats.frame()
    assert frame.columns == [
        *("column", "element", "rows", "absent", "count", "nan", "mean", "std", "minimum", "maximum", "q0.5")
    ]
    assert frame["column"].to_list() == ["observation"] * 3 + ["reward"]
    assert frame["element"].to_list() == ["0", "1", "2", ""]
    assert frame["q0.5"][3] == stats["reward"].quantile(0.5)
    assert "observation" in str(stats) and "q0.5" in str(stats["reward"])
    assert repr(stats) == "Stats(observation, reward)" and "'reward', float64 ()" in repr(stats["reward"])
    assert pickle.loads(pickle.dumps(stats)).frame().equals(frame)
    with pytest.raises(KeyError, match="there are: observation, reward"):
        stats["action"]
    with pytest.raises(el.errors.InvalidArgumentError, match=r"0.9 of 'reward' was not measured.*0.5"):
        stats["reward"].quantile(0.9)


def files(folder: Path) -> list[Path]:
    """What is in the cache."""
    return sorted((folder / "stats").iterdir()) if folder.exists() else []


@pytest.mark.further
def test_they_are_kept_by_version_episodes_and_column(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured once is read from the cache, in another process too; anything else is measured."""
    store = random_store(tmp_path / "store", [4, 6, 3], ["cut"] * 3, VECTOR, 2)
    first = store.stats(["observation", "reward"], cache_folder=folder)
    assert len(files(folder)) == 2
    code = "import sys, episodelake as el; print(el.open(sys.argv[1]).stats(['reward'])['reward'].mean)"
    monkeypatch.setenv("EPISODELAKE_CACHE", str(folder))
    before = files(folder)[0].stat().st_mtime_ns, files(folder)[1].stat().st_mtime_ns
    command = [sys.executable, "-c", code, str(store.path)]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=PATIENCE
    ).stdout
    assert float(said) == first["reward"].mean
    assert (files(folder)[0].stat().st_mtime_ns, files(folder)[1].stat().st_mtime_ns) == before
    measured, measure = [], measuring.measure

    def counted(*given: Any) -> Any:
        measured.append(given[1].name)
        return measure(*given)

    monkeypatch.setattr(measuring, "measure", counted)
    again = store.stats(["reward", "observation"])
    assert not measured and again["observation"].frame().equals(first["observation"].frame())
    assert again["observation"].shape == (3,) and again["observation"].count.dtype == np.int64
    store[1:].stats(["reward"])
    store.stats(["reward"], quantiles=[0.5])
    assert measured == ["reward", "reward"]
    with store.writer(run="more") as writer:
        episode = writer.begin(np.zeros(3, np.float32))
        episode.append(0, 100.0, np.zeros(3, np.float32), terminated=True)
        episode.end()
    assert store.stats(["reward"])["reward"].maximum < 100 and len(measured) == 2
    assert store.refresh().stats(["reward"])["reward"].maximum == 100 and len(measured) == 3


def test_copies_of_a_store_are_told_apart(tmp_path: Path, folder: Path) -> None:
    """Two copies that went on separately have the same id and version, and not the same rows."""
    first = random_store(tmp_path / "first", [4], ["cut"], VECTOR)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    for number, store in enumerate([first, el.open(tmp_path / "second")]):
        with store.writer(run="more") as writer:
            episode = writer.begin(np.zeros(3, np.float32))
            episode.append(0, 100.0 + number, np.zeros(3, np.float32), terminated=True)
            episode.end()
        assert store.refresh().stats(["reward"], cache_folder=folder)["reward"].maximum == 100 + number


def test_columns_that_steps_got_later(tmp_path: Path, folder: Path) -> None:
    """Annotations are measured as other columns are, and anew when they change."""
    store = random_store(tmp_path / "store", [4, 2], ["cut"] * 2, VECTOR)
    for factor in (1.0, 3.0):
        keys = store.transitions.select("episode_id", "t", (pl.col("t") * factor).alias("priority"))
        store.annotate(keys.collect(), on=("episode_id", "t"))
        stats = store.refresh().stats(["priority"], cache_folder=folder)["priority"]
        assert (stats.maximum, stats.count, stats.absent) == (3 * factor, 6, 2)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other", "folder"])
def test_a_damaged_file_is_measured_again(store: el.EpisodeStore, folder: Path, damage: str) -> None:
    """And replaced, unless that cannot be."""
    first = store.stats(["reward", "action"], cache_folder=folder)
    expected = first.frame()
    one, other = files(folder)
    content = one.read_bytes()
    if damage == "folder":
        one.unlink()
        one.mkdir()
        with pytest.warns(RuntimeWarning, match="could not be kept"):
            assert store.stats(["reward", "action"], cache_folder=folder).frame().equals(expected)
        return
    one.write_bytes(
        {
            "cut": content[:-9],
            "flip": content.replace(b'"mean": ', b'"mean": 1', 1),
            "empty": b"",
            "other": other.read_bytes(),
        }[damage]
    )
    assert store.stats(["reward", "action"], cache_folder=folder).frame().equals(expected)
    assert one.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_a_warning(store: el.EpisodeStore, tmp_path: Path) -> None:
    """The statistics are there all the same."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.warns(RuntimeWarning, match=r"could not be kept.*EPISODELAKE_CACHE"):
        stats = store.stats(["reward"], cache_folder=blocked)
    assert stats["reward"].count > 0


def test_old_files_go(store: el.EpisodeStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps so many files, the newest."""
    from episodelake.readers.measures import column_stats

    monkeypatch.setattr(column_stats, "_MOST_FILES", 3)
    for number in range(6):
        store[: number + 1].stats(["reward"], cache_folder=folder)
    assert len(files(folder)) == 3
    json.loads(files(folder)[0].read_bytes().partition(b"\n")[2])


@looped(
    ("arguments", "options", "text"),
    [
        (["rewards"], {}, r"no column 'rewards'.*reward"),
        ("reward", {}, "expected a list of names"),
        (["reward"], {"quantiles": [1.5]}, "probabilities from 0 to 1"),
        (["reward"], {"quantiles": 0.5}, "probabilities from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    store: el.EpisodeStore, arguments: Any, options: Any, text: str
) -> None:
    """With what there is."""
    with pytest.raises(el.errors.InvalidArgumentError, match=text):
        store.stats(arguments, **options)
    with pytest.raises(el.errors.InvalidArgumentError, match="the view is empty"):
        store.filter("length > 999").stats()


def test_columns_without_one_shape_are_left_out_unless_asked_for(tmp_path: Path, folder: Path) -> None:
    """Of lists and texts the lengths are measured, and all values; what are no arrays is refused."""
    choice = gym.spaces.OneOf([gym.spaces.Discrete(2), gym.spaces.Text(3)])
    space = gym.spaces.Dict(
        words=gym.spaces.Sequence(gym.spaces.Box(-9, 9, (2,), np.float32)),
        said=gym.spaces.Text(5),
        one=choice,
    )
    store = el.create(tmp_path / "store", observation_space=space, action_space=gym.spaces.Discrete(2))
    pairs = [[[1, 2], [3, 4]], [], [[-1, 0]]]
    with store.writer(run="text") as writer:
        seen = [
            {"words": tuple(np.array(pair, np.float32) for pair in each), "said": said, "one": (0, 1)}
            for each, said in zip(pairs, ["a\u00e9", "", "abc"], strict=True)
        ]
        episode = writer.begin(seen[0], info={"hits": [1, 2, 3]})
        episode.append(1, 2.0, seen[1], info={"hits": [4]})
        episode.append(1, 2.0, seen[2], terminated=True)
    assert list(store.refresh().stats(cache_folder=folder)) == ["action", "reward"]
    names = ["observation.words", "observation.said", "info.hits"]
    for _ in range(2):  # measured, and kept
        stats = store.stats(names, cache_folder=folder)
        assert list(stats) == [each for name in names for each in (name, f"len({name})")]
        words, lengths = stats["observation.words"], stats["len(observation.words)"]
        assert words.mean.tolist() == [1, 2] and words.count.tolist() == [3, 3] and words.rows == 3
        assert words.minimum.tolist() == [-1, 0] and words.dtype == "float32"
        assert (lengths.minimum, lengths.maximum, lengths.mean) == (0, 2, 1) and lengths.count == 3
        assert stats["len(observation.said)"].maximum == 3
        hits = stats["len(info.hits)"]
        assert (hits.rows, hits.absent, hits.mean, stats["info.hits"].mean) == (2, 1, 2, 2.5)
    normalize = el.Normalize.from_stats(stats, ["observation.words"], "range")
    (batch,) = store.loader(9, columns=["observation.words"], transforms=[normalize])
    assert batch["observation.words"].values.tolist() == [[0, 0], [1, 1]]
    with pytest.raises(el.errors.InvalidArgumentError, match=r"'observation.one' are no arrays"):
        store.stats(["observation"], cache_folder=folder)


def test_parts_of_what_a_transition_has(tmp_path: Path, folder: Path) -> None:
    """Actions, rewards, flags and policy values of a last row do not count, nor do those of their parts."""
    arm, grip = gym.spaces.Box(1, 3, (2,), np.float32), gym.spaces.Discrete(2, start=1)
    space = gym.spaces.Dict(arm=arm, nested=gym.spaces.Dict(grip=grip))
    store = el.create(tmp_path / "store", observation_space=VECTOR, action_space=space)
    with store.writer() as writer:
        for length in (3, 2):
            episode = writer.begin(np.zeros(3, np.float32))
            for t in range(length):
                action = {"arm": np.array([1 + t, 3], np.float32), "nested": {"grip": 1 + t % 2}}
                policy = {"deep": {"value": 2.0 + t}}
                last = t == length - 1
                episode.append(action, 5.0, np.zeros(3, np.float32), terminated=last, policy=policy)
    parts = ["action.arm", "action.nested.grip", "action", "action.nested", "reward", "policy.deep.value"]
    stats = store.refresh().stats(parts, cache_folder=folder)
    assert "action.arm" in stats and "action.nested.grip" in stats
    for name, column in stats.items():
        assert np.all(column.count == 5) and np.all(column.minimum >= 1), name
    found = el.Normalize.from_stats(stats, ["action.arm"], "range").by["action.arm"]
    assert found[0].tolist() == [2.0, 3.0]


def test_progress_counts_columns(store: el.EpisodeStore, folder: Path) -> None:
    """The progress is called before each column and at the end, whether values are cached or measured."""
    calls: list[tuple[int, int]] = []
    columns = ["reward", "observation"]
    for _ in range(2):
        store.stats(columns, cache_folder=folder, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 2), (1, 2), (2, 2)] * 2

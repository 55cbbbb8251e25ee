"""Reading a store in Ray Data, compared with the arrays that were written, with views and with loaders.

`make test-rllib` runs these tests on a small Ray cluster.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("cluster")]
LENGTHS = (7, 3, 40, 1, 12, 3, 25, 9)

SPACES = {
    "vectors": (spaces.Box(-9, 9, (3, 2), np.float32), spaces.Box(-1, 1, (2,), np.float64)),
    "discrete": (spaces.Discrete(5), spaces.Discrete(3, start=-1)),
    "frames": (spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.MultiBinary(3)),
    "wide": (spaces.Box(0, 2**64 - 1, (2,), np.uint64), spaces.Box(-1, 1, (1,), np.float16)),
    "number": (spaces.Box(0, 2**64 - 1, (), np.uint64), spaces.MultiDiscrete([3, 4])),
    "parts": (
        spaces.Dict({"camera": spaces.Box(0, 255, (4, 4), np.uint8), "place": spaces.Box(-1, 1, (2,))}),
        spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
    ),
}


def leaves(value: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The parts of a value with their dotted names."""
    if isinstance(value, Mapping | tuple):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in pairs:
            yield from leaves(part, f"{name}.{key}")
    else:
        yield name, np.asarray(value)


def recorded(
    path: Path, observation: spaces.Space, action: spaces.Space, lengths: tuple[int, ...] = LENGTHS
) -> tuple[el.EpisodeStore, list[dict[str, np.ndarray]]]:
    """A store, and its transitions as they were written."""
    observation.seed(1), action.seed(2)
    rng, rows = np.random.default_rng(3), []
    store = el.create(path, observation_space=observation, action_space=action)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            seen = observation.sample()
            episode = writer.begin(seen)
            for t in range(length):
                taken, reward, following = action.sample(), float(rng.normal()), observation.sample()
                row = {"t": t, "reward": reward, "terminated": t + 1 == length, "number": number}
                rows.append(row | dict(leaves(seen, "observation")) | dict(leaves(taken, "action")))
                episode.append(taken, reward, following, terminated=t + 1 == length, truncated=False)
                seen = following
    return store.refresh(), rows


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Episodes of vectors with a step annotation, infos in some steps, and texts."""
    path = tmp_path_factory.mktemp("ray") / "store"
    made, _ = recorded(path, *SPACES["vectors"])
    with made.writer() as writer:
        episode = writer.begin(made.observation_space.sample())
        for t in range(5):
            info = {"word": f"w{t}", "cost": 0.5} if t % 2 else {}
            episode.append(
                made.action_space.sample(), 1.0, made.observation_space.sample(), truncated=t == 4, info=info
            )
    made = made.refresh()
    keys = ["episode_id", "t"]
    made.annotate(made.transitions.select(*keys, half=pl.col("reward") / 2).filter(pl.col("t") > 0), on=keys)
    made.annotate(made.episodes.select("episode_id", good=pl.col("episode_return") > 0))
    return made.refresh()


def path_of(store: el.EpisodeStore) -> str:
    """The folder of a store."""
    return str(store.context.snapshot.layout.root)


def together(dataset: Any) -> dict[str, np.ndarray]:
    """All rows of a dataset, in order."""
    batches = list(dataset.iter_batches(batch_size=None))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def equal(found: Any, expected: Any) -> bool:
    """Whether arrays have the same dtype, shape and values."""
    found, expected = np.asarray(found), np.asarray(expected)
    same = found.dtype == expected.dtype and found.shape == expected.shape
    return same and found.tobytes() == expected.tobytes()


def plain(values: Any) -> Any:
    """Values in plain lists, with None where a number is missing."""
    if isinstance(values, np.ndarray | list):
        return [plain(value) for value in values]
    if isinstance(values, Mapping):
        return {key: plain(value) for key, value in values.items()}
    return None if values is None or values != values else values


@pytest.mark.parametrize("kind", SPACES)
def test_steps_are_what_was_written(tmp_path: Path, kind: str) -> None:
    """Each part of a space has its shape and dtype, in order; tasks read whole episodes."""
    from episodelake.integrations.ray import read_episodes, read_steps, read_units

    store, rows = recorded(tmp_path / "s", *SPACES[kind])
    steps = read_steps(tmp_path / "s", override_num_blocks=4)
    assert steps.count() == len(rows) == sum(LENGTHS)
    names = [name for name in rows[0] if name != "number"]
    found = together(steps)
    for name in names:
        assert equal(found[name], np.stack([row[name] for row in rows])), name
    blocks = list(steps.iter_batches(batch_size=None))
    assert len(blocks) > 2
    ids = [set(block["episode_id"].tolist()) for block in blocks]
    assert len(set.union(*ids)) == sum(map(len, ids)) == len(LENGTHS)
    episodes = read_episodes(tmp_path / "s", ["number"], override_num_blocks=3).take_all()
    assert [episode["number"] for episode in episodes] == list(range(len(LENGTHS)))
    for number, episode in enumerate(episodes):
        own = [row for row in rows if row["number"] == number]
        for name in (name for name in names if name.startswith(("action", "reward"))):
            assert equal(episode[name], np.stack([row[name] for row in own])), name
        for name in (name for name in names if name.startswith("observation")):
            assert equal(episode[name][:-1], np.stack([row[name] for row in own])), name
            assert len(episode[name]) == len(own) + 1
    for units in (None, el.NSteps(3), el.Windows(4, stride=3)):
        units_read = together(read_units(tmp_path / "s", units, override_num_blocks=3))
        (batch,) = store.loader(10**6, units)
        expected = {name: leaf for key, value in batch.items() for name, leaf in leaves(value, key)}
        assert sorted(units_read) == sorted(expected)
        assert all(equal(units_read[name], expected[name]) for name in expected)


def test_ragged_values_are_lists(tmp_path: Path) -> None:
    """A space without a fixed shape comes as it is stored in steps, and as lists in episodes and units."""
    from episodelake.integrations.ray import read_episodes, read_steps, read_units

    ragged = spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32), stack=True)
    store, _ = recorded(tmp_path / "s", ragged, spaces.Text(5))
    found = read_steps(tmp_path / "s").take_all()
    expected = store.transitions.collect().to_dicts()
    for name in ("action", "observation"):
        assert [plain(row[name]) for row in found] == [row[name] for row in expected]
    steps = [pair for episode in store for pair in zip(episode.observations, episode.actions, strict=False)]
    for units in (None, el.Windows(1)):
        rows = read_units(tmp_path / "s", units).take_all()
        assert len(rows) == len(steps)
        for row, (seen, said) in zip(rows, steps, strict=True):
            own, text = (row[name] if units is None else row[name][0] for name in ("observation", "action"))
            assert [plain(pair) for pair in own] == np.asarray(seen).tolist()
            assert bytes(text).decode() == said
    rows = read_episodes(tmp_path / "s", ["episode_id"], steps=["observation", "action"]).take_all()
    for row, episode in zip(rows, store, strict=True):
        seen = [[plain(pair) for pair in each] for each in row["observation"]]
        assert seen == [np.asarray(each).tolist() for each in episode.observations]
        assert [bytes(each).decode() for each in row["action"]] == list(episode.actions)


def test_all_columns_of_steps_and_episodes_are_those_of_the_view(store: el.EpisodeStore) -> None:
    """Infos and annotations that some rows lack are NULL; with `last` the last observations come too."""
    from episodelake.integrations.ray import read_episodes, read_steps

    for last, frame in ((False, store.transitions), (True, store.steps)):
        read = read_steps(path_of(store), last=last, override_num_blocks=5)
        expected = frame.collect()
        assert read.count() == len(expected) and read.columns() == expected.columns
        rows = read.take_all()
        for name in expected.columns:
            values = [plain(row[name]) for row in rows]
            flat = [None if each is None else np.ravel(each).tolist() for each in values]
            wanted = [None if each is None else np.ravel(each).tolist() for each in expected[name].to_list()]
            if name == "action":  # the last row of an episode has none
                wanted = [[0.0, 0.0] if each is None else each for each in wanted]
            assert flat == wanted, name
    episodes = read_episodes(path_of(store), steps=()).take_all()
    assert episodes == store.episodes.collect().to_dicts()


def test_what_is_read_can_be_chosen(store: el.EpisodeStore) -> None:
    """Columns, episodes and versions; later filters, limits and selections of Ray give what they should."""
    from episodelake.integrations.ray import read_episodes, read_steps, read_units

    path, expected = path_of(store), store.transitions.collect()
    read = read_steps(path, ["reward", "t"], where="length > 5")
    chosen = store.filter("length > 5").transitions.collect()
    assert read.columns() == ["reward", "t"] and read.count() == len(chosen)
    assert equal(together(read)["reward"], chosen["reward"].to_numpy())
    read = read_steps(path)
    assert together(read.select_columns(["t", "half"]))["t"].tolist() == expected["t"].to_list()
    assert read.select_columns(["t"]).schema().names == ["t"]
    assert read.select_columns([]).count() == len(expected)
    assert [row["t"] for row in read.limit(11).take_all()] == expected["t"].to_list()[:11]
    assert read.filter(lambda row: row["reward"] > 0).count() == (expected["reward"] > 0).sum()
    assert read_steps(path, version=store.version - 1).columns() == read.columns()
    assert "half" not in read_steps(path, version=store.version - 2).columns()
    episodes = read_episodes(path, ["length"], steps=["reward"]).select_columns(["reward"]).take_all()
    assert [len(row["reward"]) for row in episodes] == store.episodes.collect()["length"].to_list()
    units = read_units(path, el.Windows(4), columns=["reward", "mask"]).select_columns(["mask"])
    assert units.columns() == ["mask"] and together(units)["mask"].all()


def test_workers_get_each_unit_once_an_epoch(store: el.EpisodeStore) -> None:
    """`streaming_split` deals out every unit; batches become tensors of torch."""
    import ray
    import torch

    from episodelake.integrations.ray import read_units

    units = read_units(
        path_of(store), el.Windows(4), columns=["reward", "episode", "t"], override_num_blocks=6
    )
    whole = together(units)
    expected = sorted(zip(whole["episode"].tolist(), whole["t"][:, 0].tolist(), strict=True))
    assert len(set(expected)) == len(expected)

    @ray.remote
    def work(part: Any) -> list[list[tuple[int, int]]]:
        epochs = []
        for _ in range(2):
            batches = list(part.iter_torch_batches(batch_size=5))
            assert all(batch["reward"].shape[1:] == (4,) for batch in batches)
            pairs = [zip(b["episode"].tolist(), b["t"][:, 0].tolist(), strict=True) for b in batches]
            epochs.append([pair for some in pairs for pair in some])
        return epochs

    split = units.streaming_split(2)
    results = ray.get([work.remote(part) for part in split])
    for epoch in range(2):
        assert sorted(pair for result in results for pair in result[epoch]) == expected
    batch = next(iter(units.iter_torch_batches(batch_size=3)))
    assert isinstance(batch["reward"], torch.Tensor) and batch["reward"].dtype == torch.float64
    assert together(units)["t"].tobytes() == whole["t"].tobytes()


def test_tasks_have_exact_rows_and_sizes(store: el.EpisodeStore) -> None:
    """Each task says how many rows it reads, and of numbers and tensors how many bytes."""
    from episodelake.integrations.ray import reading
    from episodelake.integrations.ray.datasource import StoreDatasource

    sources = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "episodelake.integrations.ray.datasource.StoreDatasource",
            lambda *arguments: sources.append(StoreDatasource(*arguments)) or sources[-1],
        )
        reading.read_steps(path_of(store), ["observation", "reward", "t"], override_num_blocks=4)
        reading.read_units(path_of(store), el.Windows(5), override_num_blocks=4)
        reading.read_episodes(path_of(store), ["number"], override_num_blocks=4)
    for source in sources:
        tasks = source.get_read_tasks(1)
        assert 1 < len(tasks) <= 4
        for task in tasks:
            assert sum(len(block) for block in task()) == task.metadata.num_rows
        assert source.estimate_inmemory_data_size() == sum(task.metadata.size_bytes for task in tasks)
    exact = together(reading.read_steps(path_of(store), ["observation", "reward", "t"]))
    assert sources[0].estimate_inmemory_data_size() == sum(values.nbytes for values in exact.values())


def test_agents(tmp_path: Path) -> None:
    """Steps of several groups, and the units of an agent, a group and a team."""
    from episodelake.integrations.ray import read_episodes, read_steps, read_units

    red, blue = spaces.Box(-1, 1, (4,), np.float32), spaces.Box(-1, 1, (2, 2), np.float32)
    store = el.create(
        tmp_path / "s", agents={"red": (red, spaces.Discrete(2)), "blue": (blue, spaces.Discrete(3))}
    )
    with store.team_writer() as writer:
        for length in (4, 9, 2):
            episode = writer.begin({"red": red.sample(), "blue": blue.sample()})
            for t in range(length):
                ends = {"red": t + 1 == length, "blue": t + 1 == length}
                episode.append(
                    {"red": t % 2, "blue": t % 3},
                    {"red": 1.0 * t, "blue": 2.0 * t},
                    {"red": red.sample(), "blue": blue.sample()},
                    terminations=ends,
                )
    store = store.refresh()
    read = read_steps(tmp_path / "s", override_num_blocks=2)
    expected, rows = store.transitions.collect(), together(read)
    assert read.count() == len(expected) == 30
    assert rows["agent_id"].tolist() == expected["agent_id"].to_list()
    for group in store.context.snapshot.schema.groups:
        own = expected.with_row_index("row").filter(pl.col("agent_id") == group.name)
        name = f"{group.name}.observation" if f"{group.name}.observation" in rows else "observation"
        values = np.array(own[name].to_list(), np.float32).reshape(-1, *group.observation_space.shape)
        assert equal(rows[name][own["row"].to_numpy()], values)
    assert read_steps(tmp_path / "s", last=True).count() == len(store.steps.collect())
    for options in ({"agent": "blue"}, {"group": "red"}, {"joint": True}):
        units = together(read_units(tmp_path / "s", override_num_blocks=2, **options))
        (batch,) = store.loader(10**6, **options)
        expected_units = {name: leaf for key, value in batch.items() for name, leaf in leaves(value, key)}
        assert sorted(units) == sorted(expected_units)
        assert all(equal(units[name], expected_units[name]) for name in units), options
    episodes = read_episodes(tmp_path / "s", ["length"], agent="blue").take_all()
    assert [row["observation"].shape for row in episodes] == [(5, 2, 2), (10, 2, 2), (3, 2, 2)]
    with pytest.raises(el.errors.InvalidArgumentError, match="agent"):
        read_episodes(tmp_path / "s")


def test_missing_last_observations(tmp_path: Path) -> None:
    """An episode has the transitions between the observations that it has; one without any is left out."""
    from episodelake.integrations.ray import read_episodes, read_steps, read_units

    frame = pl.DataFrame(
        {
            "episode": [0, 0, 0, 1, 2, 2],
            "observation": [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]],
            "action": [0, 1, 0, 1, 0, 1],
            "reward": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "terminated": [False, False, True, True, False, True],
        }
    )
    el.import_dataset(frame, tmp_path / "s", last_observation="missing")
    store = el.open(tmp_path / "s")
    assert read_steps(tmp_path / "s").count() == len(store.transitions.collect()) == 6
    assert read_steps(tmp_path / "s", last=True).count() == len(store.steps.collect())
    episodes = read_episodes(tmp_path / "s", ["length"]).take_all()
    assert [row["length"] for row in episodes] == [3, 2]
    assert [row["observation"].ravel().tolist() for row in episodes] == [[0.0, 1.0, 2.0], [4.0, 5.0]]
    (batch,) = store.loader(10**6)
    assert equal(together(read_units(tmp_path / "s"))["reward"], batch["reward"])


def test_bad_arguments_are_refused_before_anything_runs(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Unknown columns, options, conditions and stores, with what there is instead."""
    from episodelake.integrations.ray import read_episodes, read_steps, read_units

    path, refused = path_of(store), el.errors.InvalidArgumentError
    with pytest.raises(refused, match=r"no column 'rewards' of steps\. Did you mean reward\?"):
        read_steps(path, ["rewards"])
    with pytest.raises(refused, match=r"columns='reward': expected a list of names"):
        read_steps(path, "reward")
    with pytest.raises(refused, match=r"steps='reward': expected a list of names"):
        read_episodes(path, steps="reward")
    with pytest.raises(refused, match=r"no option 'colums'\. There are"):
        read_steps(path, colums=["t"])
    with pytest.raises(refused, match="override_num_blocks"):
        read_steps(path, override_num_blocks=0)
    with pytest.raises(el.errors.QueryError, match="lenght"):
        read_steps(path, where="lenght > 3")
    with pytest.raises(refused, match="no episode to read"):
        read_steps(path, where="length > 999")
    with pytest.raises(refused, match="no unit"):
        read_units(path, el.Windows(1000))
    with pytest.raises(refused, match="read_episodes"):
        read_units(path, el.Episodes())
    with pytest.raises(refused, match=r"units=64: expected el\.Windows"):
        read_units(path, 64)
    for opened in (store, store.filter("length > 3")):
        with pytest.raises(refused, match=r"path=.*store\.url"):
            read_steps(opened)
    with pytest.raises(refused, match="no column 'lengths'"):
        read_episodes(path, ["lengths"])
    with pytest.raises(el.errors.StoreNotFoundError):
        read_steps(tmp_path / "none")
    with pytest.raises(refused, match="in the memory of this process"):
        read_steps("memory://store")
    with pytest.raises(Exception, match="no column 'rewards'"):
        read_steps(path).select_columns(["rewards"]).take_all()
    with pytest.raises(AttributeError, match="read_stepz"):
        sys.modules[read_steps.__module__.rpartition(".")[0]].read_stepz  # noqa: B018


def test_errors_of_tasks_reach_the_driver(tmp_path: Path) -> None:
    """A store that other machines do not see, and a function that fails, with their reasons."""
    import ray

    from episodelake.integrations.ray import read_steps, read_units

    recorded(tmp_path / "s", *SPACES["discrete"])

    def fails(batch: Any) -> Any:
        raise ValueError("this function fails")

    with pytest.raises(Exception, match="this function fails"):
        read_units(tmp_path / "s", transforms=[fails]).take_all()
    steps, store = read_steps(tmp_path / "s"), el.open(tmp_path / "s")
    store.delete("length > 5")
    store.vacuum(older_than=timedelta(0))
    with pytest.raises(ray.exceptions.RayTaskError, match=r"Version 1 .* was vacuumed"):
        steps.take_all()
    steps = read_steps(tmp_path / "s")
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(ray.exceptions.RayTaskError, match="does not see the store at"):
        steps.take_all()

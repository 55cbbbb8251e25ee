"""`frame_at` of SQL: the cells of a raw frame column, from any encoding."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

import episodelake as el
from effort import looped
from episodelake.readers import video_frames
from episodelake.testing.adapters import case
from video_stores import CODECS, LENGTHS, SHAPES, Team, check_frame, recorded_store

CAMERAS = {name: SHAPES[name] for name in ("odd", "planar", "exact", "raw")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Cameras of two codecs, without loss, and raw."""
    return recorded_store(tmp_path_factory.mktemp("frame-at") / "store", cameras=CAMERAS)


@pytest.mark.further
def test_cells_are_raw_frames(store: el.EpisodeStore) -> None:
    """Each is what the episode has, whatever rows a condition leaves and in whatever order."""
    for read_only, camera in itertools.product([False, True], CAMERAS):
        with case((read_only, camera)):
            column = f"observation.{camera}"
            frame = f"frame_at('{column}', episode_id, t) as frame"
            text = f"select episode_id, t, {frame} from steps where t % 3 = 1"
            rows = store.query(f"{text} order by hash(t, episode_id)", read_only=read_only)
            assert rows.schema["frame"] == pl.Binary
            assert rows.height == sum(t % 3 == 1 for length in LENGTHS for t in range(length + 1))
            for episode_id, t, cell in rows.iter_rows():
                frame = np.frombuffer(cell, np.uint8).reshape(CAMERAS[camera])
                assert np.array_equal(frame, store[episode_id].observations[camera][t])
                check_frame(frame, camera, store[episode_id].seed or 0, t)
            decoded = store.decode_frames(rows, column)
            assert b"".join(rows["frame"]) == decoded.tobytes()
            if camera == "raw":
                same = f"select bool_and(frame_at('{column}', episode_id, t) = \"{column}\") from steps"
                assert store.query(same).item() is True


def test_it_may_be_used_in_conditions_and_beside_tables(store: el.EpisodeStore) -> None:
    """In a filter, after a join, of the next step, of several columns, and on a connection of one's own."""
    frame = "frame_at('observation.odd', episode_id, 1)"
    assert len(store.filter(f"octet_length({frame}) = {33 * 47 * 3} and length > 3")) == 5
    wanted = pl.DataFrame({"episode_id": [store[2].id, store[0].id, None], "t": [7, 0, 0]})
    with store.connect() as connection:
        connection.register("wanted", wanted.to_arrow())
        columns = "(values ('observation.odd'), ('observation.raw')) columns(name)"
        text = f"select frame_at(name, episode_id, t) from wanted, {columns}"
        cells = [cell for (cell,) in connection.sql(text).fetchall()]
    assert sum(cell is None for cell in cells) == 2
    expected = {
        store[key].observations[camera][t].tobytes()
        for camera in ("odd", "raw")
        for key, t in ((2, 7), (0, 0))
    }
    assert {cell for cell in cells if cell is not None} == expected
    text = "select t, frame_at('observation.odd', episode_id, t + 1) from transitions where episode_id = ?"
    for t, cell in store.query(text, [store[2].id]).iter_rows():
        assert cell == store[2].observations["odd"][t + 1].tobytes()


def test_frames_of_agents(tmp_path: Path) -> None:
    """The agent is an argument."""
    encodings = {"tall.observation.grey": CODECS["h264"], "wide.observation.odd": CODECS["lossless"]}
    store = el.create(tmp_path / "store", Team(), encodings=encodings)
    with store.record(Team()) as env:
        for seed in range(2):
            env.reset(seed=seed)
            while env.agents:
                env.step(dict.fromkeys(env.agents, 0))
    text = """select episode_id, agent_id, t, frame_at('tall.observation.grey', episode_id, agent_id, t)
        from steps where starts_with(agent_id, 'tall')"""
    rows = store.refresh().query(text)
    assert rows.height == 2 * (7 + 3)
    for episode_id, agent, t, cell in rows.iter_rows():
        assert cell == store[episode_id].agent(agent).observations["grey"][t].tobytes()
    with pytest.raises(el.errors.QueryError, match=r"no agent 'low'\. Its agents are: tall_0, tall_1, wide"):
        store.query(text.replace("agent_id, t)", "'low', t)"))


def test_a_missing_last_observation_is_null(tmp_path: Path) -> None:
    """As its cell is; a step beyond is an error."""
    store = el.create(
        tmp_path / "store",
        observation_space=el_space(),
        action_space=el_space((1,)),
        encodings={"observation": CODECS["h264"]},
    )
    frames = np.full((4, 32, 32, 3), 90, np.uint8)
    with store.writer() as writer:
        writer.write_episode(
            observations=frames,
            actions=np.zeros((4, 1), np.uint8),
            rewards=np.zeros(4),
            terminations=True,
            truncations=False,
            last_observation="missing",
        )
    rows = store.refresh().query("select t, frame_at('observation', episode_id, t) as frame from steps")
    assert rows.filter(pl.col("frame").is_null())["t"].to_list() == [4]
    with pytest.raises(el.errors.QueryError, match="no observation t=5 of"):
        store.query("select frame_at('observation', episode_id, t + 1) from steps")


def el_space(shape: tuple[int, ...] = (32, 32, 3)) -> Any:
    """Bytes."""
    from gymnasium.spaces import Box

    return Box(0, 255, shape, np.uint8)


@looped(
    ("call", "message"),
    [
        ("frame_at('observation.od', episode_id, t)", r"frame_at: There is no column 'observation\.od' of"),
        ("frame_at('observation.odd', 'none', t)", "There is no episode 'none' among these 8"),
        ("frame_at('observation.odd', episode_id, t + 90)", r"no observation t=9\d of .*; it has 0 to"),
        ("frame_at('observation.odd', episode_id, -1)", "no observation t=-1 of"),
    ],
)
def test_wrong_arguments_are_named(store: el.EpisodeStore, call: str, message: str) -> None:
    """In queries and in filters."""
    with pytest.raises(el.errors.QueryError, match=message):
        store.query(f"select {call} from steps")
    with pytest.raises(el.errors.QueryError, match=message):
        store.filter(f"episode_id in (select episode_id from steps where {call} is null)")
    assert store.query("select count(*) from episodes").item() == len(LENGTHS)


def test_a_view_shows_its_own_episodes(store: el.EpisodeStore) -> None:
    """An id of another episode is refused."""
    view = store[:2]
    call = "select octet_length(frame_at('observation.raw', ?, 0))"
    assert view.query(call, [store[1].id]).item() == 33 * 47 * 3
    with pytest.raises(el.errors.QueryError, match="among these 2"):
        view.query(call, [store[3].id])


def test_each_chunk_of_a_vector_is_decoded_once(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All frames of a column in one vector: as many chunks as there are."""
    from episodelake.store.frames import video_column

    decoded: list[Any] = []
    decode = video_column.ffmpeg.decode
    monkeypatch.setattr(
        video_column.ffmpeg,
        "decode",
        lambda chunk, *given: decoded.append(bytes(chunk.packets[0])) or decode(chunk, *given),
    )
    store.query(
        "select frame_at('observation.odd', episode_id, t) from (from steps order by hash(t, episode_id))"
    )
    assert len(decoded) == sum(-(-(length + 1) // 4) for length in LENGTHS)


def test_errors_of_the_disk_and_packages_are_our_own(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They pass through DuckDB."""
    text = "select frame_at('observation.odd', episode_id, t) from steps"
    for error in (
        el.errors.StoreUnavailableError("The disk is away."),
        el.errors.CorruptStoreError("A cell is damaged."),
        el.errors.MissingPackageError("Video needs av."),
    ):

        def fail(*given: Any, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(video_frames._Lane, "frames", fail)
            with pytest.raises(type(error), match=str(error)):
                store.query(text)
            with pytest.raises(duckdb.Error, match=str(error)):
                store.sql(text).fetchall()
    assert store.query(text).height == sum(length + 1 for length in LENGTHS)


def test_queries_without_it_register_nothing(tmp_path: Path, store: el.EpisodeStore) -> None:
    """The function is created by the first query that names it; a store without frames has none."""
    script = f"""
import episodelake as el
from episodelake.readers.sql.frame_function import FrameFunction
FrameFunction.register = None
store = el.open({str(store.path)!r})
print(store.query("select count(*) from steps").item())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == [str(sum(length + 1 for length in LENGTHS)).encode()]
    plain = el.create(tmp_path / "plain", observation_space=el_space((2,)), action_space=el_space((1,)))
    with pytest.raises(el.errors.QueryError, match="frame_at"):
        plain.query("select frame_at('observation', episode_id, t) from steps")

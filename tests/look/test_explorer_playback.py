"""Frames for playback: decoded in chunks ahead, exact when they stand still, and small ones as thumbnails."""

import base64
import io
import json

import fastapi
import numpy as np
import pytest
from fastapi.testclient import TestClient
from gymnasium.spaces import Box, Dict, Discrete
from PIL import Image

import episodelake as el
from effort import looped
from episodelake.explorer.live.watch import Watch
from episodelake.explorer.pictures import sources
from episodelake.explorer.pictures.served import add_frames
from episodelake.explorer.pictures.sources import RecordedPictures, frame_sources, rate_of
from episodelake.store.errors import StoreAccessError

LENGTH = 40


@pytest.fixture(scope="module")
def frames() -> dict[str, np.ndarray]:
    """Images of a small and a large camera."""
    rng = np.random.default_rng(0)
    smooth = np.linspace(0, 255, 320 * 300 * 3).reshape(320, 300, 3)
    return {
        "large": np.stack([np.roll(smooth, 2000 * t).astype(np.uint8) for t in range(LENGTH + 1)]),
        "small": rng.integers(0, 255, (LENGTH + 1, 16, 12, 3), np.uint8),
    }


@pytest.fixture(scope="module")
def store(frames: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """An episode with both."""
    space = Dict({name: Box(0, 255, images.shape[1:], np.uint8) for name, images in frames.items()})
    path = tmp_path_factory.mktemp("playback") / "store"
    store = el.create(path, observation_space=space, action_space=Discrete(2), card={"fps": 10})
    with store.writer() as writer:
        writer.write_episode(
            observations=frames,
            actions=np.zeros(LENGTH, np.int64),
            rewards=np.ones(LENGTH),
            terminations=True,
            truncations=False,
        )
    return store.refresh()


@pytest.fixture(scope="module")
def episode(store: el.EpisodeStore) -> el.Episode:
    """The only episode."""
    return store[0]


def _image(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_every_order_gives_the_recorded_frames(
    episode: el.Episode, frames: dict[str, np.ndarray], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of a chunk, each step has its image, forwards, backwards and beyond the end."""
    monkeypatch.setattr(sources, "CHUNK_BYTES", rows * 16 * 12 * 3)
    source = RecordedPictures(episode, "observation.small")
    for t in [*range(LENGTH + 1), *range(LENGTH, -1, -3), 5, 30, 2]:
        picture = source.picture(t)
        assert picture.t == t
        np.testing.assert_array_equal(_image(picture.data), frames["small"][t])
    assert source.picture(LENGTH + 9).t == LENGTH
    assert len(source._chunks) <= 3


def test_a_failure_that_passes(
    episode: el.Episode, frames: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that could not be read are read again with the next look at their step."""
    source = RecordedPictures(episode, "observation.small")
    with monkeypatch.context() as patch:
        patch.setattr(el.Episode, "frames", _stale)
        with pytest.raises(StoreAccessError):
            source.picture(3)
    np.testing.assert_array_equal(_image(source.picture(3).data), frames["small"][3])


def _stale(*_: object, **__: object) -> np.ndarray:
    raise StoreAccessError("Stale file handle")


def test_steps_that_follow_are_read_once(episode: el.Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Playing decodes each chunk once, although every step is shown."""
    monkeypatch.setattr(sources, "CHUNK_BYTES", 10 * 16 * 12 * 3)
    calls: list[slice] = []
    decoded = el.Episode.frames

    def counted(self: el.Episode, steps: slice, **options: str) -> np.ndarray:
        calls.append(steps)
        return decoded(self, steps, **options)

    monkeypatch.setattr(el.Episode, "frames", counted)
    source = RecordedPictures(episode, "observation.small")
    for t in range(LENGTH + 1):
        source.picture(t)
    assert sorted((each.start, each.stop) for each in calls) == [
        (0, 10),
        (10, 20),
        (20, 30),
        (30, 40),
        (40, 41),
    ]


def test_only_large_passing_frames_lose_quality(episode: el.Episode, frames: dict[str, np.ndarray]) -> None:
    """A frame that stands still is exact; a large one that passes by is close to it."""
    large, small = frame_sources(episode, replayed=False)
    assert (large.name, small.name) == ("large", "small")
    still, passing = large.picture(9), large.picture(9, passing=True)
    np.testing.assert_array_equal(_image(still.data), frames["large"][9])
    assert (still.kind, passing.kind) == ("png", "jpeg")
    difference = _image(passing.data).astype(int) - frames["large"][9]
    assert np.abs(difference).mean() < 4
    np.testing.assert_array_equal(_image(small.picture(9, passing=True).data), frames["small"][9])


def test_packs_have_each_frame_once(episode: el.Episode, frames: dict[str, np.ndarray]) -> None:
    """Packs give all frames in order; a pack of one is exact, and behind the last one they are empty."""
    large, small = frame_sources(episode, replayed=False)
    for source, exact in ((small, True), (large, False)):
        found = []
        while len(found) < source.count:
            problem, part = unpacked(source.packed(len(found), want="pictures"))
            assert problem == "" and [t for t, _ in part] == [*range(len(found), len(found) + len(part))]
            found += [_image(data) for _, data in part]
        difference = np.abs(np.stack(found).astype(int) - frames[source.name])
        assert difference.max() == 0 if exact else difference.mean() < 4
        assert len(unpacked(source.packed(0, want="pictures"))[1]) == min(source.props["rows"], LENGTH + 1)
    ((t, data),) = unpacked(large.packed(7, want="exact"))[1]
    np.testing.assert_array_equal(_image(data), frames["large"][t])
    assert t == 7 and unpacked(large.packed(LENGTH + 1, want="pictures")) == ("", [])


def test_a_pack_says_what_is_wrong(episode: el.Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that cannot be read are a problem of the page, not of the server."""
    source = RecordedPictures(episode, "observation.small")
    monkeypatch.setattr(el.Episode, "frames", _stale)
    assert unpacked(source.packed(0, want="pictures")) == ("Stale file handle", [])


def unpacked(pack: bytes) -> tuple[str, list[tuple[int, bytes]]]:
    """The problem of a pack, and its steps with their images."""
    end = 4 + int.from_bytes(pack[:4], "little")
    head, found = json.loads(pack[4:end]), []
    for frame in head["frames"]:
        found.append((frame["t"], pack[end : end + frame["size"]]))
        end += frame["size"]
    assert end == len(pack)
    return head["problem"], found


def test_thumbnails(episode: el.Episode, frames: dict[str, np.ndarray]) -> None:
    """They are spread over the episode, small, and of their steps."""
    source = RecordedPictures(episode, "observation.large")
    thumbnails = source.thumbnails(5)
    assert [t for t, _ in thumbnails] == [0, 10, 20, 30, 40]
    for t, url in thumbnails:
        image = _image(base64.b64decode(url.partition("base64,")[2]))
        np.testing.assert_array_equal(image, frames["large"][t][::4, ::4])
    assert len(RecordedPictures(episode, "observation.small").thumbnails(100)) == LENGTH + 1


def test_sheets(store: el.EpisodeStore, frames: dict[str, np.ndarray]) -> None:
    """Pictures from the first to the last, of a large frame four, made once; one that is gone has none. Lists
    show the one in the middle.
    """
    sheets, episode = Watch(store).sheets, store[0]
    assert sheets.ratio == 300 / 320 and not sheets.quick
    sheet = sheets.sheet(episode.id)
    assert sheets.sheet(episode.id) is sheet and sheets.sheet("gone/000001") == b""
    pictures = np.split(_image(sheet), 12, axis=1)
    for picture, t in ((pictures[0], 0), (pictures[5], round(LENGTH / 3)), (pictures[-1], LENGTH)):
        assert picture.shape == (96, 90, 3)
        assert abs(picture.mean() - frames["large"][t].mean()) < 3
        assert np.abs(picture[::24, ::30].astype(int) - frames["large"][t][::80, ::100]).mean() < 12
    application = fastapi.FastAPI()
    add_frames(application)
    answer = TestClient(application).get(f"{sheets.url_of(episode.id)}?still=1")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    for picture in np.split(_image(answer.content), 12, axis=1):
        assert np.abs(picture[::24, ::30].astype(int) - frames["large"][LENGTH // 2][::80, ::100]).mean() < 12


RATES = [(10, 10.0), (2.5, 2.5), (None, 30.0), (0, 30.0), ("fast", 30.0), (1e9, 30.0)]


@looped(("fps", "rate"), RATES)
def test_the_rate_is_that_of_the_card(episode: el.Episode, fps: object, rate: float) -> None:
    """A card without a plausible rate leaves it to the environment, and where that is unknown it is 30."""
    assert rate_of(episode, fps) == rate

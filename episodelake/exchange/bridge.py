"""BridgeData as it is recorded: a folder `traj_groupN/trajN` for each episode, with images and pickles.

`images0/im_T.jpg` and the other cameras, and `full_state` of `obs_dict.pkl` are the observation, with a row
more than the `actions` of `policy_out.pkl`: the last observation. There are neither rewards nor flags, so
rewards are NaN and every episode is cut. Other values of the pickles become step columns. `lang.txt` has the
instruction, the metadata `task`.

Up to 2021-07-23 the images lag a step behind. As in `bridgedata_raw_to_numpy.py` of bridge_data_v2, such an
episode begins with its second observation, and its last action is left out.

Pickles can run code, so an import needs `trust=True`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from ..errors import DatasetError
from ..plugin import (
    ForeignDataset,
    ForeignEpisode,
    Format,
    ImportOptions,
    Match,
    Part,
    check_bytes,
    check_unpickled,
    reading,
)
from ..plugin.files import is_file, is_folder, matching, walk
from ..writers.importing.columns import array_space, image_frames, opened_image, read_json
from ..writers.importing.formats import NO_REWARDS
from ..writers.importing.trees import natural

_OBSERVED, _ACTED = "obs_dict.pkl", "policy_out.pkl"
_STATES = ("full_state", "state")
_UNREAD = ("agent_data.pkl", "depth_images")
_LAG = datetime(2021, 7, 23)


def _trajectories(source: Any) -> Iterator[Path]:
    """Yield the folders of the episodes in the order of their names."""
    if not isinstance(source, str | Path) or not is_folder(Path(source)):
        return
    for folder, folders, files in walk(source):
        folders[:] = sorted((name for name in folders if name[0] != "."), key=natural)
        if _OBSERVED in files and _ACTED in files:
            folders.clear()
            yield Path(folder)


def _detect(source: Any) -> Match:
    trajectory = next(_trajectories(source), None)
    if trajectory is None:
        return Match(f"it has no folder with {_OBSERVED} and {_ACTED}", 2, related=False)
    return Match(f"{trajectory.name} has {_OBSERVED} and {_ACTED}")


class _Dataset(ForeignDataset):
    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__()
        self._folder = Path(source)
        self._paths = list(_trajectories(source))
        if not self._paths:
            raise DatasetError(
                f"{source} has no folder with {_OBSERVED} and {_ACTED}, so it is no BridgeData."
            )
        first = self._paths[0]
        state, actions = _state(_unpickled(first / _OBSERVED), first), _actions(_policy_out(first))
        cameras = {name: spaces.Box(0, 255, _shape(first, name), np.uint8) for name in _cameras(first)}
        self.observation_space = options.observation_space or spaces.Dict(
            {**cameras, "state": array_space(state.dtype, state.shape[1:])}
        )
        self.action_space = options.action_space or array_space(actions.dtype, actions.shape[1:])
        self.mapping = {
            "observation": f"{', '.join(cameras)}, {_OBSERVED}: {_STATES[0]}",
            "action": f"{_ACTED}: actions",
            "reward": "NaN",
            "metadata.task": "lang.txt",
        }
        self.count = len(self._paths)

    def parts(self) -> Iterator[Part]:
        """Yield a part for each trajectory."""
        for path in self._paths:
            name = path.relative_to(self._folder).as_posix()
            yield Part((path.name if name == "." else name,), partial(self._load, path))

    def _load(self, path: Path) -> ForeignEpisode:
        observed, policy = _unpickled(path / _OBSERVED), _policy_out(path)
        actions, state = _actions(policy), _state(observed, path)
        count = len(actions)
        frames = {name: _frames(path, name) for name in _cameras(path)}
        for name, values in {**frames, "state": state}.items():
            if len(values) != count + 1:
                raise DatasetError(
                    f"{path}: {name} has {len(values)} rows; {count} actions need {count + 1}."
                )
        extra: dict[str, Any] = {}
        for name, values in observed.items():
            array = np.asarray(values) if not isinstance(values, Mapping) else np.array(None)
            if name not in _STATES and array.dtype.kind in "biuf" and array.shape[:1] == (count + 1,):
                extra[name] = array
            elif name not in _STATES:
                self.losses.add(f"{name} of {_OBSERVED}, which has not a row for each observation")
        columns = _columns(policy)
        extra |= (
            {"policy_out": {name: [*values, None] for name, values in columns.items()}} if columns else {}
        )
        for name in sorted({each.rstrip("0123456789") for each in os.listdir(path)} & {*_UNREAD}):
            self.losses.add(f"{name}, which is not read")
        self.losses.add(NO_REWARDS, count)
        observations = {**frames, "state": state}
        if _lags(path):
            self.losses.add("a first observation and a last action, since images lagged up to 2021-07-23")
            observations = {name: values[1:] for name, values in observations.items()}
            actions, extra = actions[:-1], _later(extra)
        return ForeignEpisode(
            observations,
            actions,
            np.full(len(actions), np.nan),
            False,
            False,
            extra=extra or None,
            metadata=_metadata(path) | self._collection(path),
        )

    def _collection(self, path: Path) -> dict[str, Any]:
        """Return what a dated folder of the source states of its episodes."""
        for folder in islice(path.parents, 3):
            file = folder / "collection_metadata.json"
            if folder.is_relative_to(self._folder) and is_file(file):
                return {"collection_metadata": read_json(file)}
        return {}


def _unpickled(file: Path) -> Any:
    check_unpickled(file)
    check_bytes(str(file), file.stat().st_size)
    with reading(file), open(file, "rb") as opened:
        return pickle.load(opened)


def _policy_out(path: Path) -> list[Any]:
    values = _unpickled(path / _ACTED)
    if not isinstance(values, list) or not values:
        raise DatasetError(f"{path / _ACTED} has no list of actions.")
    return values


def _actions(policy: list[Any]) -> np.ndarray:
    return np.stack([np.asarray(each["actions"] if isinstance(each, Mapping) else each) for each in policy])


def _columns(policy: list[Any]) -> dict[str, list[Any]]:
    """Return the other values of the policy by their name, numbers and texts."""
    if not all(isinstance(each, Mapping) for each in policy):
        return {}
    names = set.intersection(*({*each} for each in policy)) - {"actions"}
    return {name: [each[name] for each in policy] for name in sorted(names)}


def _state(observed: Any, path: Path) -> np.ndarray:
    name = next((name for name in _STATES if isinstance(observed, Mapping) and name in observed), None)
    if name is None:
        raise DatasetError(f"{path / _OBSERVED} has no {' or '.join(_STATES)}.")
    return np.asarray(observed[name])


def _cameras(path: Path) -> list[str]:
    names = (each.name for each in os.scandir(path) if is_folder(each) and each.name.startswith("images"))
    return sorted(names, key=natural)


def _files(path: Path, name: str) -> list[Path]:
    files = sorted(matching(path / name, "im_*.jpg"), key=natural)
    if not files:
        raise DatasetError(f"{path / name} has no im_T.jpg.")
    return files


def _shape(path: Path, name: str) -> tuple[int, ...]:
    with opened_image(_files(path, name)[0], str(path / name)) as image:
        return image.height, image.width, 3


def _frames(path: Path, name: str) -> np.ndarray:
    files = _files(path, name)
    return image_frames(path, name, [file.read_bytes() for file in files], _shape(path, name))[0]


def _lags(path: Path) -> bool:
    for name in (each.name for each in islice(path.parents, 4)):
        try:
            return datetime.strptime(name, "%Y-%m-%d_%H-%M-%S") < _LAG
        except ValueError:
            continue
    return False


def _later(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return step columns from the second observation on; those of actions keep their own, but the last."""
    return {
        name: {key: [*each[:-2], None] for key, each in part.items()}
        if isinstance(part, Mapping)
        else part[1:]
        for name, part in extra.items()
    }


def _metadata(path: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if is_file(path / "lang.txt"):
        text = (path / "lang.txt").read_text("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        tasks = [line for line in lines if "confidence" not in line]
        metadata |= {"task": tasks[0] if tasks else "", **({"lang": lines} if len(lines) > 1 else {})}
    return metadata


FORMAT = Format(
    "bridge",
    "'episodelake[explore]'",
    "folders with obs_dict.pkl, policy_out.pkl and images0; with trust=True",
    _detect,
    _Dataset,
)
"""BridgeData as it is recorded."""

"""RLlib trains from stores and records into them; needs `ray[rllib]`.

    from episodelake.integrations.rllib import StoreOfflineData

    config.offline_data(input_=["data/cartpole"], offline_data_class=StoreOfflineData)

    from episodelake.integrations.rllib import StoreRecorder

    config.callbacks(StoreRecorder("data/cartpole", run="ppo"))

Names load on first use. Where Ray is missing, the first use raises `MissingPackageError`.
"""

from __future__ import annotations

import importlib

from ...store.common.optional_packages import require

_ORIGINS = {
    "StoreOfflineData": "offline",
    "StorePreLearner": "offline_episodes",
    "StoreRecorder": "recording",
}
__all__ = sorted(_ORIGINS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("ray.rllib", "The RLlib integration")
    value = globals()[name] = getattr(importlib.import_module(f".{_ORIGINS[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

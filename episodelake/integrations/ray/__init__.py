"""Ray Data reads stores, on all machines of a cluster; needs `ray[data]`.

    from episodelake.integrations.ray import read_units

    batches = read_units("data/cartpole", el.Windows(64)).iter_torch_batches(batch_size=256)

Names load on first use. Where Ray is missing, the first use raises `MissingPackageError`.
"""

from __future__ import annotations

import importlib

from ...store.common.optional_packages import require

_ORIGINS = {"read_episodes": "reading", "read_steps": "reading", "read_units": "reading"}
__all__ = sorted(_ORIGINS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("ray.data", "The Ray integration")
    value = globals()[name] = getattr(importlib.import_module(f".{_ORIGINS[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

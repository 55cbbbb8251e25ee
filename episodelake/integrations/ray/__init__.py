"""Ray reads and writes stores, and records into them, on all machines of a cluster; needs the extra `[ray]`.

    from episodelake.integrations.ray import read_units

    batches = read_units("data/cartpole", el.Windows(64)).iter_torch_batches(batch_size=256)

Names load on first use. Where Ray is missing, the first use raises `MissingPackageError`.
"""

from __future__ import annotations

from .. import names_of

__all__, __getattr__, __dir__ = names_of(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "collect": "collecting",
        "read_episodes": "reading",
        "read_steps": "reading",
        "read_units": "reading",
        "recorder_actor": "recording",
        "write_steps": "writing",
    },
    "ray.data",
    "The Ray integration",
    "'episodelake[ray]'",
)

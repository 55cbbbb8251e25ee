"""RLlib trains from stores and records into them; needs `ray[rllib]`.

    from episodelake.integrations.rllib import StoreOfflineData

    config.offline_data(input_=["data/cartpole"], offline_data_class=StoreOfflineData)

    from episodelake.integrations.rllib import StoreRecorder

    config.callbacks(StoreRecorder("data/cartpole", run="ppo"))

Names load on first use. Where Ray is missing, the first use raises `MissingPackageError`.
"""

from __future__ import annotations

from .. import names_of

__all__, __getattr__, __dir__ = names_of(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "StoreOfflineData": "offline",
        "StorePreLearner": "offline_episodes",
        "StoreRecorder": "recording",
    },
    "ray.rllib",
    "The RLlib integration",
    "'ray[rllib]'",
)

"""Episodelake: a columnar store for reinforcement-learning episodes on Arrow and Parquet.

    import episodelake as el

    store = el.create("data/cartpole", env)
    with store.record(env, run="ppo-seed3") as env: ...
    store.refresh().sql("select avg(episode_return) from episodes")

`create` and `open` give an `EpisodeStore`; everything else is reached from there.
"""

from __future__ import annotations

from ._store import EpisodeStore, create, merge, recover
from ._store import open_store as open
from .readers.agents import AgentEpisode, MultiAgentEpisode
from .readers.episode import Episode
from .readers.loading.column_stats import ColumnStats, Stats
from .readers.loading.following import FollowingLoader
from .readers.loading.loader import Loader
from .readers.loading.mixing import MixedLoader, mix
from .readers.loading.priorities import Prioritised
from .readers.loading.prioritised import PrioritisedLoader
from .readers.loading.transforms.cast import Cast
from .readers.loading.transforms.clip import Clip
from .readers.loading.transforms.frame_stack import FrameStack
from .readers.loading.transforms.gae import GAE
from .readers.loading.transforms.normalise import Normalise
from .readers.loading.transforms.on_read import DerivedColumns
from .readers.loading.transforms.one_hot import OneHot
from .readers.loading.transforms.relabel import Relabel
from .readers.loading.transforms.rename_keys import RenameKeys
from .readers.loading.transforms.return_to_go import ReturnToGo
from .readers.loading.transforms.select_keys import SelectKeys
from .readers.loading.unpadded import unpadded
from .readers.namespaces import EpisodeExpr, EpisodeFrame, EpisodeLazyFrame
from .readers.replaying.replay import Difference, ReplayReport
from .readers.view import EpisodeView
from .store.agents import AgentGroup
from .store.errors import (
    ConcurrentCommitError,
    CorruptStoreError,
    EnvUnavailableError,
    EpisodelakeError,
    EpisodeNotFoundError,
    EpisodeTimeoutError,
    FormatVersionError,
    InvalidArgumentError,
    LoaderStateError,
    MissingPackageError,
    NothingToDrawError,
    QueryError,
    RecorderStateError,
    SpaceMismatchError,
    StoreAccessError,
    StoreExistsError,
    StoreNotFoundError,
    UnitNotFoundError,
    UnsupportedSpaceError,
    UntrustedEnvError,
    VersionNotFoundError,
)
from .store.maintenance.compaction import CompactReport
from .store.maintenance.deletion import DeleteReport
from .store.maintenance.merging import MergeReport
from .store.maintenance.vacuum import VacuumReport
from .store.maintenance.verification import Fault, VerifyReport
from .store.recovery import RecoveredRun
from .store.spaces import Codec, register_codec
from .store.values import OpaqueValue
from .writers.aec_recorder import AECRecorder
from .writers.callbacks import EpisodeSummary, StepData
from .writers.collecting.bar import CollectProgress
from .writers.collecting.collect import collect
from .writers.collecting.loop import CollectStep
from .writers.collecting.outputs import PolicyOutput
from .writers.collecting.stats import CollectStats, WorkerReport
from .writers.episode_writer import EpisodeRow, EpisodeWriter, OpenEpisode
from .writers.options import SessionOptions
from .writers.parallel_recorder import ParallelRecorder
from .writers.pool_recorder import PoolRecorder
from .writers.recorder import Recorder
from .writers.vector_recorder import VectorRecorder

__all__ = [
    "AECRecorder",
    "AgentEpisode",
    "AgentGroup",
    "Cast",
    "Clip",
    "Codec",
    "CollectProgress",
    "CollectStats",
    "CollectStep",
    "ColumnStats",
    "CompactReport",
    "ConcurrentCommitError",
    "CorruptStoreError",
    "DeleteReport",
    "DerivedColumns",
    "Difference",
    "EnvUnavailableError",
    "Episode",
    "EpisodeExpr",
    "EpisodeFrame",
    "EpisodeLazyFrame",
    "EpisodeNotFoundError",
    "EpisodeRow",
    "EpisodeStore",
    "EpisodeSummary",
    "EpisodeTimeoutError",
    "EpisodeView",
    "EpisodeWriter",
    "EpisodelakeError",
    "Fault",
    "FollowingLoader",
    "FormatVersionError",
    "FrameStack",
    "GAE",
    "InvalidArgumentError",
    "Loader",
    "LoaderStateError",
    "MergeReport",
    "MissingPackageError",
    "MixedLoader",
    "MultiAgentEpisode",
    "Normalise",
    "NothingToDrawError",
    "OneHot",
    "OpaqueValue",
    "OpenEpisode",
    "ParallelRecorder",
    "PolicyOutput",
    "PoolRecorder",
    "Prioritised",
    "PrioritisedLoader",
    "QueryError",
    "Recorder",
    "RecorderStateError",
    "RecoveredRun",
    "Relabel",
    "RenameKeys",
    "ReplayReport",
    "ReturnToGo",
    "SelectKeys",
    "SessionOptions",
    "SpaceMismatchError",
    "Stats",
    "StepData",
    "StoreAccessError",
    "StoreExistsError",
    "StoreNotFoundError",
    "UnitNotFoundError",
    "UnsupportedSpaceError",
    "UntrustedEnvError",
    "VacuumReport",
    "VectorRecorder",
    "VerifyReport",
    "VersionNotFoundError",
    "WorkerReport",
    "collect",
    "create",
    "merge",
    "mix",
    "open",
    "recover",
    "register_codec",
    "unpadded",
]

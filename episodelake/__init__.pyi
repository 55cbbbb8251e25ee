"""The public names, for type checkers; `__init__.py` loads them on first use."""

from ._formats import formats
from ._importing import ImportReport, import_dataset
from ._saved import Artifacts
from ._store import EpisodeStore, create, merge, recover
from ._store import open_store as open
from .readers.agents import AgentEpisode, MultiAgentEpisode
from .readers.episode import Episode
from .readers.exporting.export import ExportReport
from .readers.loading.batch_source import Batches
from .readers.loading.columns.caching import Cache
from .readers.loading.following.loader import FollowingLoader
from .readers.loading.following.window import Follow
from .readers.loading.loader import Loader, PrioritisedLoader
from .readers.loading.mixing import MixedLoader, mix
from .readers.loading.order.priorities import Prioritised
from .readers.loading.order.shard import Shard
from .readers.loading.output.outputs import Output
from .readers.loading.output.unpadded import unpadded
from .readers.loading.stats.column_stats import ColumnStats, Stats
from .readers.loading.transforms.cast import Cast
from .readers.loading.transforms.clip import Clip
from .readers.loading.transforms.flatten import Flatten
from .readers.loading.transforms.frame_stack import FrameStack
from .readers.loading.transforms.gae import GAE
from .readers.loading.transforms.normalise import Normalise
from .readers.loading.transforms.on_read import DerivedColumns
from .readers.loading.transforms.one_hot import OneHot
from .readers.loading.transforms.relabel import Relabel
from .readers.loading.transforms.rename_keys import RenameKeys
from .readers.loading.transforms.return_to_go import ReturnToGo
from .readers.loading.transforms.select_keys import SelectKeys
from .readers.loading.transforms.torch_module import TorchModule
from .readers.loading.units.deltas import Deltas
from .readers.loading.units.n_steps import NSteps
from .readers.loading.units.transitions import Transitions
from .readers.loading.units.whole_episodes import WholeEpisodes
from .readers.loading.units.windows import Windows
from .readers.namespaces import EpisodeExpr, EpisodeFrame, EpisodeLazyFrame
from .readers.replaying.comparison import Difference
from .readers.replaying.replay import ReplayReport
from .readers.scores import normalised_score
from .readers.view import EpisodeView
from .replay_buffer.buffer import ReplayBuffer
from .store.agents.agents import AgentGroup
from .store.dynamic.values import OpaqueValue
from .store.environments.codecs import register_artifact_codec
from .store.environments.records import SavedEnvironment
from .store.errors import (
    ConcurrentCommitError,
    CorruptStoreError,
    DatasetError,
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
from .store.journal.recovery import RecoveredRun
from .store.maintenance.compaction import CompactReport
from .store.maintenance.deletion import DeleteReport
from .store.maintenance.merging import MergeReport
from .store.maintenance.vacuum import VacuumReport
from .store.maintenance.verification import Fault, VerifyReport
from .store.spaces import Codec, register_codec
from .writers.collecting.bar import CollectProgress
from .writers.collecting.collect import collect
from .writers.collecting.loop import CollectStep
from .writers.collecting.outputs import PolicyOutput
from .writers.collecting.stats import CollectStats, WorkerReport
from .writers.episode_writer import EpisodeWriter
from .writers.importing.table.mapping import ColumnMapping
from .writers.open_episode import EpisodeRow, OpenEpisode, ReopenedEpisode
from .writers.options import SessionOptions
from .writers.recorders.aec_recorder import AECRecorder
from .writers.recorders.callbacks import EpisodeSummary, StepData
from .writers.recorders.parallel_recorder import ParallelRecorder
from .writers.recorders.pool_recorder import PoolRecorder
from .writers.recorders.recorder import Recorder
from .writers.recorders.vector_recorder import VectorRecorder
from .writers.team_writer import OpenTeam, TeamWriter

__all__ = [
    "AECRecorder",
    "AgentEpisode",
    "AgentGroup",
    "Artifacts",
    "Batches",
    "Cache",
    "Cast",
    "Clip",
    "Codec",
    "CollectProgress",
    "CollectStats",
    "CollectStep",
    "ColumnMapping",
    "ColumnStats",
    "CompactReport",
    "ConcurrentCommitError",
    "CorruptStoreError",
    "DatasetError",
    "DeleteReport",
    "Deltas",
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
    "ExportReport",
    "Fault",
    "Flatten",
    "Follow",
    "FollowingLoader",
    "FormatVersionError",
    "FrameStack",
    "GAE",
    "ImportReport",
    "InvalidArgumentError",
    "Loader",
    "LoaderStateError",
    "MergeReport",
    "MissingPackageError",
    "MixedLoader",
    "MultiAgentEpisode",
    "NSteps",
    "Normalise",
    "NothingToDrawError",
    "OneHot",
    "OpaqueValue",
    "OpenEpisode",
    "OpenTeam",
    "Output",
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
    "ReopenedEpisode",
    "ReplayBuffer",
    "ReplayReport",
    "ReturnToGo",
    "SavedEnvironment",
    "SelectKeys",
    "SessionOptions",
    "Shard",
    "SpaceMismatchError",
    "Stats",
    "StepData",
    "StoreAccessError",
    "StoreExistsError",
    "StoreNotFoundError",
    "TeamWriter",
    "TorchModule",
    "Transitions",
    "UnitNotFoundError",
    "UnsupportedSpaceError",
    "UntrustedEnvError",
    "VacuumReport",
    "VectorRecorder",
    "VerifyReport",
    "VersionNotFoundError",
    "WholeEpisodes",
    "Windows",
    "WorkerReport",
    "collect",
    "create",
    "formats",
    "import_dataset",
    "merge",
    "mix",
    "normalised_score",
    "open",
    "recover",
    "register_artifact_codec",
    "register_codec",
    "unpadded",
]

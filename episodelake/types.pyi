"""The names of `episodelake.types`, for type checkers; `types.py` loads them on first use."""

from .annotations.mapping import MapReport
from .environments import Artifacts
from .explorer_process import Explorer
from .importing.importing import ImportReport
from .lakes.lake import Lake
from .publishing.report import PublishReport
from .readers.charts.numbers import ChartNumbers
from .readers.charts.signals import Signal
from .readers.columns.ragged import Ragged
from .readers.context import Parameters, SqlCondition
from .readers.exporting.export import ExportReport
from .readers.loading.feeding import FollowingLoader
from .readers.loading.loader import PrioritizedLoader
from .readers.loading.mixing import MixedLoader
from .readers.loading.units import Units
from .readers.measures.column_stats import ColumnStats, Stats
from .readers.measures.health import Finding, HealthReport
from .readers.namespaces import EpisodeExpr, EpisodeFrame, EpisodeLazyFrame
from .readers.pictures.video import EpisodeVideo
from .readers.replaying.comparison import Difference
from .readers.replaying.replay import ReplayReport
from .readers.verification.inspection import Fault, VerifyReport
from .rollouts.rollout import Branch, Rollout
from .rollouts.tokens import MessageTokens
from .rollouts.writing import OpenRollout, RolloutWriter
from .store.agents import AgentGroup
from .store.common.progress import Progress
from .store.dynamic.values import OpaqueValue
from .store.environments.records import SavedEnvironment
from .store.frames import EncodedFrames
from .store.recovery.recovery import RecoveredRun
from .store.rewrite.compaction import CompactReport
from .store.rewrite.merging import MergeReport
from .store.rewrite.rewriting import DeleteReport
from .store.vacuum import VacuumReport
from .writers.collecting.display import CollectProgress
from .writers.collecting.loop import CollectStep
from .writers.collecting.stats import CollectStats, WorkerReport
from .writers.episodes.episode_writer import OpenEpisode, ReopenedEpisode
from .writers.episodes.team_writer import OpenTeam, TeamWriter
from .writers.recorders.callbacks import EpisodeSummary, StepData
from .writers.recorders.pettingzoo_recorders import AECRecorder, ParallelRecorder
from .writers.recorders.pool_recorder import PoolRecorder
from .writers.recorders.recorder import Recorder
from .writers.recorders.vector_recorder import VectorRecorder
from .writers.rows.step_rows import EpisodeRow
from .writers.session.journal import SessionKeywords, SessionOptions

__all__ = [
    "AECRecorder",
    "AgentGroup",
    "Artifacts",
    "Branch",
    "ChartNumbers",
    "CollectProgress",
    "CollectStats",
    "CollectStep",
    "ColumnStats",
    "CompactReport",
    "DeleteReport",
    "Difference",
    "EncodedFrames",
    "EpisodeExpr",
    "EpisodeFrame",
    "EpisodeLazyFrame",
    "EpisodeRow",
    "EpisodeSummary",
    "EpisodeVideo",
    "Explorer",
    "ExportReport",
    "Fault",
    "Finding",
    "FollowingLoader",
    "HealthReport",
    "ImportReport",
    "Lake",
    "MapReport",
    "MergeReport",
    "MessageTokens",
    "MixedLoader",
    "OpaqueValue",
    "OpenEpisode",
    "OpenRollout",
    "OpenTeam",
    "ParallelRecorder",
    "Parameters",
    "PoolRecorder",
    "PrioritizedLoader",
    "Progress",
    "PublishReport",
    "Ragged",
    "Recorder",
    "RecoveredRun",
    "ReopenedEpisode",
    "ReplayReport",
    "Rollout",
    "RolloutWriter",
    "SavedEnvironment",
    "SessionKeywords",
    "SessionOptions",
    "Signal",
    "SqlCondition",
    "Stats",
    "StepData",
    "TeamWriter",
    "Units",
    "VacuumReport",
    "VectorRecorder",
    "VerifyReport",
    "WorkerReport",
]

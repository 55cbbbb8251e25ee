"""The names of `episodelake.plugin.engines`, for type checkers; `engines.py` loads them on first use."""

from ..importing.importing import import_part
from ..readers.loading.feeding import unit_counts
from ..store.rewrite.merging import merge_stores
from ..store.staging import staging
from ..writers.collecting.display import StopSignal
from ..writers.collecting.worker import Share, work_share
from ..writers.collecting.workers import Worker, WorkerPool

__all__ = [
    "Share",
    "StopSignal",
    "Worker",
    "WorkerPool",
    "import_part",
    "merge_stores",
    "staging",
    "unit_counts",
    "work_share",
]

"""The names of `episodelake.plugin.columns`, for type checkers; `columns.py` loads them on first use."""

from ..store.dynamic.column_groups import EXTRA, INFO, METADATA, POLICY, ColumnGroup
from ..store.dynamic.logical_types import LogicalType, with_kind
from ..store.names import (
    ACTION,
    EPISODE,
    OBSERVATION,
    RESERVED,
    REWARD,
    TERMINATED,
    TRUNCATED,
    check_name,
    escape,
    escape_distinct,
    is_observation,
    next_name,
    unescape,
)

__all__ = [
    "ACTION",
    "ColumnGroup",
    "EPISODE",
    "EXTRA",
    "INFO",
    "LogicalType",
    "METADATA",
    "OBSERVATION",
    "POLICY",
    "RESERVED",
    "REWARD",
    "TERMINATED",
    "TRUNCATED",
    "check_name",
    "escape",
    "escape_distinct",
    "is_observation",
    "next_name",
    "unescape",
    "with_kind",
]

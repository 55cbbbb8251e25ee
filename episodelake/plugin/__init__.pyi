"""The names of `episodelake.plugin`, for type checkers; `__init__.py` loads them on first use."""

from ..readers.blocks import Block
from ..readers.chart_session import ChartSession
from ..readers.columns.cache_folder import CacheFolder
from ..readers.columns.tree import map_leaves
from ..readers.context import ReadContext
from ..readers.dataset_card import DatasetCard
from ..readers.dataset_facts import DatasetFacts
from ..readers.episode_data import EpisodeData, stack
from ..readers.episodes import iterate_blocks, iterate_episodes
from ..readers.exporting.capabilities import Holds
from ..readers.exporting.target import Export, Option, export_format
from ..readers.formatting import counted, size_text
from ..readers.frames import collected, episodes_frame
from ..readers.growing import GrowingEpisode
from ..readers.measures.table_size import TableSize
from ..readers.replaying.rendering import RenderedFrames
from ..readers.replaying.run_envs import RunEnv
from ..readers.sql.session import QuerySession
from ..readers.sql.sources import SqlSources, sql_type
from ..readers.sql.text import literal, quote
from ..readers.tasks import Address
from ..readers.unsealed import JournalFollower, Unsealed, UnsealedEpisode
from ..readers.view import ReadView
from ..store.card import CardEntries
from ..store.common.arguments import (
    expect,
    flag,
    one_of,
    positive_number,
    refuse_mask,
    suggest,
    whole_number,
)
from ..store.common.exchange import Losses
from ..store.common.foreign_arrays import to_numpy
from ..store.common.optional_packages import require
from ..store.common.progress import progress_meter
from ..store.common.warn import warn_caller
from ..store.dynamic.values import dump_json, freeze_value, load_json
from ..store.journal.run_journal import Journals
from ..store.layout import Layout
from ..store.rewrite.fixed_copy import write_fixed_copy
from ..store.schema import StepSchema
from ..store.snapshot import Snapshot
from ..store.spaces import SpaceCodec, space_from_json, space_to_json
from ..store.spaces.arrow import LISTS, elements_of, plain_array, plain_table, values_of
from ..store.spaces.codec import slice_batch
from ..store.spaces.fixed import FixedNode
from ..writers.importing.boundary import check_bytes, check_unpickled, inside, reading
from ..writers.importing.flat_trees import FlatTree
from ..writers.importing.formats import (
    ForeignDataset,
    ForeignEpisode,
    ForeignTable,
    Format,
    ImportOptions,
    Match,
    Part,
)
from ..writers.importing.grouped_trees import GroupedTree
from ..writers.importing.joined import tree_format
from ..writers.importing.layouts import TreeLayout
from ..writers.recorders.vector_values import InfoChoice
from . import columns as columns
from . import engines as engines
from . import files as files

__all__ = [
    "Address",
    "Block",
    "CacheFolder",
    "CardEntries",
    "ChartSession",
    "DatasetCard",
    "DatasetFacts",
    "EpisodeData",
    "Export",
    "FixedNode",
    "FlatTree",
    "ForeignDataset",
    "ForeignEpisode",
    "ForeignTable",
    "Format",
    "GroupedTree",
    "GrowingEpisode",
    "Holds",
    "ImportOptions",
    "InfoChoice",
    "JournalFollower",
    "Journals",
    "LISTS",
    "Layout",
    "Losses",
    "Match",
    "Option",
    "Part",
    "QuerySession",
    "ReadContext",
    "ReadView",
    "RenderedFrames",
    "RunEnv",
    "Snapshot",
    "SpaceCodec",
    "SqlSources",
    "StepSchema",
    "TableSize",
    "TreeLayout",
    "Unsealed",
    "UnsealedEpisode",
    "check_bytes",
    "check_unpickled",
    "collected",
    "counted",
    "dump_json",
    "elements_of",
    "episodes_frame",
    "expect",
    "export_format",
    "flag",
    "freeze_value",
    "inside",
    "iterate_blocks",
    "iterate_episodes",
    "literal",
    "load_json",
    "map_leaves",
    "one_of",
    "plain_array",
    "plain_table",
    "positive_number",
    "progress_meter",
    "quote",
    "reading",
    "refuse_mask",
    "require",
    "size_text",
    "slice_batch",
    "space_from_json",
    "space_to_json",
    "sql_type",
    "stack",
    "suggest",
    "to_numpy",
    "tree_format",
    "values_of",
    "warn_caller",
    "whole_number",
    "write_fixed_copy",
]

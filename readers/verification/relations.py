"""Relations between episodes and their steps, as SQL.

The episodes table is in DuckDB as a whole. Of steps it gets one row for each lane, from `pages`.

One query finds out which faults there are; each of these has a query that counts it by file. An episode whose
row pointers are wrong is not compared with its steps, and a lane is reported for its first fault only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.agents import LANE_COLUMNS, RETURNS
from ...store.checks import Findings
from ...store.errors import StoreUnavailableError
from ...store.layout import STEPS
from ...store.names import FLAGS
from ...store.schema import LAST_OBSERVATION, MISSING, StepSchema
from ...store.tables.table_files import is_file_name
from ..sql.sources import open_connection, run_interruptible
from ..sql.text import literal
from .pages import ROW_FAULTS, Lanes, objectives

#: About so many episodes are loaded at a time.
_BATCH_ROWS = 1 << 19
#: Sums of smaller row numbers are within 64 bits.
_MOST_ROWS = 1 << 40
_COLUMNS = (
    *("episode_id", "run_id", "number", "length", "episode_return", *FLAGS, "end_reason"),
    *("segment", "row_start", "row_count"),
)
_AGENTS = (*LANE_COLUMNS, RETURNS)

#: Episodes of the files that were read, and which of them contradict themselves.
_EPISODES = """
    SELECT * EXCLUDE (run_id, number, is_file),
      coalesce(episode_id = run_id || '/' || printf('%06d', number), false) AS named,
      NOT {runs_known} OR coalesce(run_id IN (SELECT run_id FROM runs), false) AS has_run,
      {bad_agents} AS bad_agents, possible AND NOT bad_agents AS valid
    FROM (SELECT *, coalesce(is_file AND row_start >= 0 AND row_start < {most} AND row_count >= 2
      AND row_count < {most}, false) AS possible FROM read)"""

_BAD_AGENTS = f"""
    coalesce(len(list_distinct([{", ".join(f"coalesce(len({name}), 0)" for name in _AGENTS)}])) > 1
      OR len(agents) < 1 OR len(list_distinct(agents)) < len(agents)
      OR NOT list_has_all({{groups}}, agent_groups)
      OR {" OR ".join(f"list_count({name}) < len(agents)" for name in LANE_COLUMNS)}
      OR list_min(agent_lengths) < 0 OR list_max(agent_lengths) >= {_MOST_ROWS}
      OR list_sum(agent_lengths) + len(agents) <> row_count, true)"""

#: For each table of episodes that others contradict: how it is made, and which of its episodes are not valid.
_CONTRADICTED = {
    """CREATE TABLE repeated AS SELECT e FROM (
      SELECT e, row_number() OVER (PARTITION BY episode_id ORDER BY e) AS nth FROM episodes
      WHERE episode_id IN (SELECT episode_id FROM episodes GROUP BY ALL HAVING count(*) > 1))
      WHERE nth > 1""": "FROM repeated",
    # Episodes that begin before earlier ones of their segment end, with the one of these that ends last.
    """CREATE TABLE crossing AS SELECT e, other FROM (
      SELECT e, row_start, max(stop) OVER earlier AS reach, arg_max(e, stop) OVER earlier AS other
      FROM (SELECT *, row_start + row_count AS stop FROM episodes WHERE valid)
      WINDOW earlier AS (PARTITION BY segment ORDER BY row_start, e
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
      WHERE row_start < reach""": "SELECT unnest([e, other]) FROM crossing",
}

#: Where the rows of each episode are, or, of several agents, those of each.
_LANES = """SELECT e, episode_id, NULL::VARCHAR AS agent_id, segment, row_start AS start, row_count AS count,
  0 AS place, 0 AS agent_group, last_missing, terminated, truncated, NULL AS agent_return
  FROM episodes WHERE valid ORDER BY segment, start"""
_AGENT_LANES = """SELECT *,
    row_start + (sum(count) OVER (PARTITION BY e ORDER BY place) - count)::BIGINT AS start
  FROM (SELECT e, episode_id, segment, row_start, last_missing, unnest(range(len(agents))) AS place,
    unnest(agents) AS agent_id, list_position({groups}, unnest(agent_groups)) - 1 AS agent_group,
    unnest(agent_lengths) + 1 AS count, unnest(agent_terminations) AS terminated,
    unnest(agent_truncations) AS truncated, unnest(agent_returns) AS agent_return
    FROM (SELECT * FROM episodes WHERE valid)) ORDER BY segment, start"""


@dataclass(frozen=True)
class _Fault:
    """A condition on a row of `known`, and how the episodes that meet it are reported.

    Attributes:
        condition, kind, message: of the fault.
        detail: an expression for what follows the id of an episode.
        file: an expression for the number of the file; -1 minus that of the segment for a file of steps.
    """

    condition: str
    kind: str
    message: str
    detail: str = "''"
    file: str = "file"


def _known(schema: StepSchema) -> str:
    """Return the query for all that is known of each episode.

    It reads `episodes`, `repeated` and `crossing`, the `lanes` with what was found in their rows, and
    `segments`: names, whether they were `read`, and sizes, NULL for those that cannot be read.
    """
    sums = [f"sum_{number}" for number in range(objectives(schema))]
    # A sum of the agents' returns in their order, to the last bit.
    total = "list_sum(list({} ORDER BY place))" if schema.groups else "any_value({})"
    one = "[{}]" if schema.reward_shape else "{}"
    return f"""
    SELECT episodes.*, found.* EXCLUDE (e), segments.* EXCLUDE (segment), other_id,
      e IN (FROM repeated) AS repeated, valid AND read AS compared, coalesce(stop > size, false) AS beyond
    FROM episodes JOIN segments USING (segment)
    LEFT JOIN (SELECT crossing.e, episode_id AS other_id FROM crossing JOIN episodes ON other = episodes.e)
      USING (e)
    LEFT JOIN (SELECT e, max(start + count) AS stop, bit_or(fault) AS row_faults,
        bool_and(fault = 0 AND there = count AND rewards = count - 1) AS whole,
        max(last_step) AS last_step, {one.format(", ".join(map(total.format, sums)))} AS total,
        bool_and(ended) AS ended, bool_or(cut) AND bool_and(ended OR cut) AS cut,
        bool_or(agent_return IS DISTINCT FROM {one.format(", ".join(sums))}) AS other_returns,
        bool_or(terminated <> ended OR truncated <> cut) AS other_flags
      FROM (SELECT * REPLACE (coalesce(if(count > 1, ended, terminated), false) AS ended,
        coalesce(if(count > 1, cut, truncated), false) AS cut) FROM lanes) GROUP BY e) AS found USING (e)"""


def _faults(schema: StepSchema) -> list[_Fault]:
    """Return all faults of episodes and of their rows."""
    agents = bool(schema.groups)
    length = "last_step" if agents else "row_count - 1"
    steps = "-1 - segment"
    fitting = "compared AND named AND NOT beyond"
    if not agents:
        fitting += f" AND length IS NOT DISTINCT FROM {length}"
    of_agents = [
        _Fault("whole AND other_returns", "return", "The return of an agent is not the sum of its rewards"),
        _Fault(
            "whole AND other_flags", "flags", "The flags of an agent are not those of its last transition"
        ),
    ]
    return [
        _Fault("NOT named", "episode", "The id is not made of run_id and number"),
        _Fault("repeated", "episode", "The episode is there more than once"),
        _Fault("named AND NOT has_run", "episode", "The table runs lacks the run of the episode"),
        _Fault(
            "NOT possible",
            "pointer",
            "It points at rows that no segment can have",
            "concat(' at ', coalesce(row_count, -1), ' rows from row ', coalesce(row_start, -1), "
            "' of ', name)",
        ),
        _Fault(
            "possible AND bad_agents AND NOT repeated",
            "episode",
            "Its agents cannot be what the table says, or do not have so many rows",
        ),
        _Fault(
            "other_id IS NOT NULL", "pointer", "It points at rows of another episode", "' and ' || other_id"
        ),
        _Fault(
            "beyond",
            "pointer",
            "It points at rows behind the end of its segment",
            "concat(', which has ', size, ' rows')",
        ),
        _Fault(
            f"{'whole' if agents else 'compared'} AND length IS DISTINCT FROM {length}",
            "pointer",
            f"Its length is not {'the last env_step of its rows' if agents else length}",
            "concat(' has the length ', length, ' and ', row_count, ' rows')",
        ),
        _Fault(
            "whole AND episode_return IS DISTINCT FROM total",
            "return",
            "Its return is not the sum of its rewards",
            "concat(' has ', coalesce(episode_return::VARCHAR, 'NULL'), "
            "', its rewards add up to ', total::VARCHAR)",
        ),
        *(of_agents if agents else ()),
        _Fault(
            "whole AND (terminated IS DISTINCT FROM ended OR truncated IS DISTINCT FROM cut)",
            "flags",
            "Its flags are not those of its last transition",
        ),
        _Fault(
            """(compared OR NOT valid) AND coalesce(CASE WHEN if(whole, ended, terminated)
              THEN end_reason <> 'terminated' WHEN if(whole, cut, truncated) THEN end_reason <> 'truncated'
              ELSE end_reason NOT IN ('cut', 'interrupted') END, true)""",
            "flags",
            "Its end reason does not go with its flags",
        ),
        *(
            _Fault(f"{fitting} AND (row_faults & {1 << place}) > 0", kind, message, file=steps)
            for place, (kind, message) in enumerate(ROW_FAULTS.values())
        ),
    ]


class Relations:
    """The episodes table in DuckDB, and its comparison with itself and with the steps.

    Args:
        schema: of the store.
        runs: the runs that episodes may have; None if that is not known.

    Attributes:
        columns: the columns of episodes that are compared.
        count: how many episodes there are.
    """

    def __init__(self, schema: StepSchema, runs: Collection[str] | None) -> None:
        names = (*_COLUMNS, *(_AGENTS if schema.groups else ()))
        self.columns = pa.schema([schema.episodes.field(name) for name in names])
        self._schema = schema
        self._connection = run_interruptible(open_connection)
        self._groups = f"[{', '.join(literal(group.name) for group in schema.groups)}]"
        self._runs_known = runs is not None
        self._runs = pa.table({"run_id": pa.array(sorted(runs or ()), pa.string())})
        self.count = 0
        self._files: list[str] = []
        self._segments: dict[str | None, int] = {}
        #: What is not loaded yet.
        self._episodes: list[pa.Table] = []
        self._loaded = False

    def close(self) -> None:
        """Close DuckDB."""
        self._connection.close()

    def add(self, file: str, tables: Collection[pa.Table]) -> None:
        """Add the episodes of a file.

        Args:
            file: its name relative to the store.
            tables: its rows.
        """
        for table in tables:
            self._episodes.append(self._numbered(table, len(self._files)))
            self.count += table.num_rows
        self._files.append(file)
        if sum(table.num_rows for table in self._episodes) >= _BATCH_ROWS:
            self._load()

    def _numbered(self, table: pa.Table, file: int) -> pa.Table:
        """Return the columns that are compared, with numbers of episodes, files and segments."""
        rows = table.select(self.columns.names).cast(self.columns)
        segments = rows.column("segment").combine_chunks().dictionary_encode("encode")
        names = segments.dictionary.to_pylist()
        numbers = [self._segments.setdefault(name, len(self._segments)) for name in names]
        is_file = [name is not None and is_file_name(name) for name in names]
        missing = pa.nulls(rows.num_rows, LAST_OBSERVATION.type)
        if LAST_OBSERVATION.name in table.column_names:
            column = table.column(LAST_OBSERVATION.name)
            missing = column if column.type == LAST_OBSERVATION.type else missing
        more = {
            "e": np.arange(self.count, self.count + rows.num_rows),
            "file": np.full(rows.num_rows, file, np.int32),
            "last_missing": pc.call_function("equal", [missing, pa.scalar(MISSING)]).fill_null(False),
            "is_file": pa.array(is_file, pa.bool_()).take(segments.indices),
            "segment": pa.array(numbers, pa.int32()).take(segments.indices),
        }
        return pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **more})

    def _load(self) -> None:
        into = "INSERT INTO episodes" if self._loaded else "CREATE TABLE episodes AS"
        text = _EPISODES.format(
            runs_known=self._runs_known,
            bad_agents=_BAD_AGENTS.format(groups=self._groups) if self._schema.groups else "false",
            most=_MOST_ROWS,
        )
        read = self._episodes or [self._numbered(self.columns.empty_table(), 0)]
        self._run(f"{into} {text}", read=pa.concat_tables(read), runs=self._runs)
        self._episodes, self._loaded = [], True

    def lanes(self) -> Lanes:
        """Return the lanes of all episodes whose row pointers can be right."""
        self._load()
        for text, invalid in _CONTRADICTED.items():
            if self._run(text) != [(0,)]:
                self._run(f"UPDATE episodes SET valid = false WHERE e IN ({invalid})")
        text = _AGENT_LANES.format(groups=self._groups) if self._schema.groups else _LANES
        # One query for each segment would take longer than reading a small one.
        return Lanes(self._run(text, arrow=True), self._schema, self._segments)

    def report(self, lanes: Lanes, sizes: Mapping[str, int | None], findings: Findings) -> None:
        """Report all faults of the episodes.

        Args:
            lanes: with what was found in their rows.
            sizes: how many rows the segments have that were read; None for those that cannot be read.
            findings: where faults go.
        """
        names: list[Any] = list(self._segments)
        segments = {
            "segment": np.arange(len(names), dtype=np.int32),
            "name": pa.array(names, pa.string()),
            "read": np.array([name in sizes for name in names], bool),
            "size": pa.array([sizes.get(name) for name in names], pa.int64()),
        }
        known = f"WITH known AS ({_known(self._schema)})"
        faults = _faults(self._schema)
        conditions = ", ".join(f"bool_or({fault.condition})" for fault in faults)
        text = f"{known} SELECT {conditions} FROM known"
        (there,) = self._run(text, lanes=lanes.found(), segments=pa.table(segments))
        for fault in (fault for fault, is_there in zip(faults, there, strict=True) if is_there):
            text = f"""{known} SELECT {fault.file} AS file, count(*),
              list({{'id': episode_id, 'detail': {fault.detail}}} ORDER BY e)[:3]
              FROM known WHERE {fault.condition} GROUP BY ALL"""
            for file, count, examples in self._run(text):
                name = self._files[file] if file >= 0 else f"{STEPS}/{names[-1 - file]}"
                texts = [f"{each['id']!r}{each['detail']}" for each in examples]
                findings.add(fault.kind, name, fault.message, texts, count)

    def _run(self, text: str, *, arrow: bool = False, **tables: pa.Table) -> Any:
        """Run a statement in DuckDB; return its rows.

        Args:
            text: of the statement.
            arrow: return a table of Arrow.
            tables: to be known by these names from now on.

        Raises:
            StoreUnavailableError: DuckDB has too little memory, or no space for temporary files.
        """
        connection = self._connection

        def work() -> Any:
            for name, table in tables.items():
                connection.register(name, table)
            return connection.sql(text).to_arrow_table() if arrow else connection.execute(text).fetchall()

        try:
            return run_interruptible(work, connection.interrupt)
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            raise StoreUnavailableError(
                f"The steps cannot be compared with the episodes now: {error}. Free memory, or space for "
                "temporary files, and call again."
            ) from error

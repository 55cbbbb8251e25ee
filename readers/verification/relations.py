"""Relations between episodes, steps and annotations, as SQL.

The episodes table is in DuckDB as a whole. Steps come in batches of complete episodes, so that memory holds
the rows of one batch, or of the longest episode.

The queries return a row for each episode and fault; equal faults of a file are summed up. An episode whose
row pointers are wrong is not compared with its steps, and a lane is reported for its first fault only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ...store.agents import LANE_COLUMNS, RETURNS
from ...store.checks import Findings
from ...store.errors import StoreUnavailableError
from ...store.layout import STEPS
from ...store.names import FLAGS
from ...store.schema import StepSchema
from ...store.tables.table_files import is_file_name
from ..sql.sources import open_connection, run_interruptible
from ..sql.text import literal
from .pages import SegmentLanes, compared_columns, objectives

#: About so many rows are compared at a time.
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
_LANES = """CREATE VIEW lanes AS SELECT e AS lane, e, 0 AS place, segment, NULL AS agent, 0 AS agent_group,
  row_start AS start, row_count AS count, terminated, truncated, NULL AS agent_return, last_missing
  FROM episodes WHERE valid"""
_AGENT_LANES = """CREATE TABLE lanes AS SELECT row_number() OVER (ORDER BY e, place) AS lane, *,
  row_start + (sum(count) OVER (PARTITION BY e ORDER BY place) - count)::BIGINT AS start
  FROM (SELECT e, segment, row_start, last_missing, unnest(range(len(agents))) AS place,
    unnest(agents) AS agent, list_position({groups}, unnest(agent_groups)) - 1 AS agent_group,
    unnest(agent_lengths) + 1 AS count, unnest(agent_terminations) AS terminated,
    unnest(agent_truncations) AS truncated, unnest(agent_returns) AS agent_return
    FROM (SELECT * FROM episodes WHERE valid))"""


def _case(condition: str, kind: str, message: str, detail: str = "''") -> str:
    fault = f"{{'kind': {literal(kind)}, 'message': {literal(message)}, 'detail': {detail}}}"
    return f"WHEN {condition} THEN {fault}"


def _each(*cases: str) -> str:
    """Return an expression for all faults of an episode, one row each; those that it has not are NULL."""
    return f"unnest([{', '.join(f'CASE {case} END' for case in cases)}]) AS fault"


def _summed(faults: str) -> str:
    """Return a query that sums up equal faults of a file, from one for `e`, `episode_id`, `file`, `fault`."""
    return f"""SELECT fault.kind, fault.message, file, count(*),
      list({{'id': episode_id, 'detail': fault.detail}} ORDER BY e)[:3]
      FROM ({faults}) WHERE fault IS NOT NULL GROUP BY ALL"""


def _reason(terminated: str, truncated: str) -> str:
    wrong = f"""coalesce(CASE WHEN {terminated} THEN end_reason <> 'terminated' WHEN {truncated}
      THEN end_reason <> 'truncated' ELSE end_reason NOT IN ('cut', 'interrupted') END, true)"""
    return _case(wrong, "flags", "Its end reason does not go with its flags")


#: Faults of episodes that no step is needed for.
_FAULTS_OF_EPISODES = f"""SELECT e, episode_id, file, {
    _each(
        _case("NOT named", "episode", "The id is not made of run_id and number"),
        _case("e IN (FROM repeated)", "episode", "The episode is there more than once"),
        _case("named AND NOT has_run", "episode", "The table runs lacks the run of the episode"),
        _case(
            "NOT possible",
            "pointer",
            "It points at rows that no segment can have",
            "concat(' at ', coalesce(row_count, -1), ' rows from row ', coalesce(row_start, -1), "
            "' of ', name)",
        ),
        _case(
            "possible AND bad_agents AND e NOT IN (FROM repeated)",
            "episode",
            "Its agents cannot be what the table says, or do not have so many rows",
        ),
        _case(
            "other_id IS NOT NULL", "pointer", "It points at rows of another episode", "' and ' || other_id"
        ),
    )
}
  FROM episodes JOIN segments USING (segment)
  LEFT JOIN (SELECT crossing.e, episode_id AS other_id FROM crossing JOIN episodes ON other = episodes.e)
  USING (e)
UNION ALL SELECT e, episode_id, file, {
    _each(_reason("terminated", "truncated"))
} FROM episodes WHERE NOT valid"""

_ALIEN = "s.episode_id IS DISTINCT FROM o.episode_id OR s.t IS DISTINCT FROM s.row - lanes.start"
_ALIEN_AGENT = f"{_ALIEN} OR s.agent_id IS DISTINCT FROM lanes.agent"

_LANE_FAULT = " ".join(
    [
        _case("alien", "rows", "Rows of an episode have another episode_id, or their t is not 0, 1, 2, ..."),
        _case("surplus", "flags", "The last row has an action, a reward or flags"),
        _case("lacking", "flags", "A row before the last one lacks its action, reward or flags"),
        _case("early", "flags", "A flag is set before the last transition"),
        _case("unseen", "rows", "A row lacks its observation"),
        _case("shown", "rows", "The last row has an observation, which is missing by the table episodes"),
        _case("strange", "rows", "A row has values of another group of agents"),
        _case("falls", "rows", "env_step is NULL, or does not grow from row to row of an agent"),
    ]
)


def _comparison(schema: StepSchema) -> str:
    """Return the query for the faults of the episodes in `asked`, whose rows are in `read`."""
    agents, numbers = bool(schema.groups), range(objectives(schema))
    one = "[{}]" if schema.reward_shape else "{}"
    sums = one.format(", ".join(f"sum_{number}" for number in numbers))
    total = one.format(", ".join(f"list_sum(list(sum_{number} ORDER BY place))" for number in numbers))
    added = ", ".join(
        f"coalesce(list_sum(list(reward_{number} ORDER BY row) FILTER (after > 0)), 0) AS sum_{number}"
        for number in numbers
    )
    before = "lag(env_step) OVER (PARTITION BY lane ORDER BY row)"
    rows = f"(SELECT *, {before} AS before FROM read)" if agents else "(SELECT *, 0 AS env_step FROM read)"
    falls = "bool_or(coalesce(env_step, -1) < 0 OR env_step <= before)" if agents else "false"
    length = "last_step" if agents else "row_count - 1"
    expected = "the last env_step of its rows" if agents else "row_count - 1"
    faults = [
        _case(
            "row_start + row_count > size",
            "pointer",
            "It points at rows behind the end of its segment",
            "concat(', which has ', size, ' rows')",
        ),
        _case(
            f"{'whole AND' if agents else ''} length IS DISTINCT FROM {length}",
            "pointer",
            f"Its length is not {expected}",
            "concat(' has the length ', length, ' and ', row_count, ' rows')",
        ),
        _case(
            "whole AND episode_return IS DISTINCT FROM total",
            "return",
            "Its return is not the sum of its rewards",
            "concat(' has ', coalesce(episode_return::VARCHAR, 'NULL'), "
            "', its rewards add up to ', total::VARCHAR)",
        ),
        _case("whole AND other_returns", "return", "The return of an agent is not the sum of its rewards"),
        _case("whole AND other_flags", "flags", "The flags of an agent are not those of its last transition"),
        _case(
            "whole AND (terminated IS DISTINCT FROM ended OR truncated IS DISTINCT FROM cut)",
            "flags",
            "Its flags are not those of its last transition",
        ),
        _reason("if(whole, ended, terminated)", "if(whole, cut, truncated)"),
    ]
    suppressed = "NOT named OR row_start + row_count > size"
    if not agents:
        suppressed += " OR length IS DISTINCT FROM row_count - 1"
    return f"""
    WITH o AS (SELECT * FROM episodes WHERE e IN (FROM asked)),
    marks AS (SELECT lane, count(*) AS there, count(reward_0) FILTER (after > 0) AS rewards, bool_or({
        _ALIEN_AGENT if agents else _ALIEN
    }) AS alien,
        bool_or(after = 0 AND outcome) AS surplus, bool_or(after > 0 AND NOT complete) AS lacking,
        bool_or(after > 1 AND (s.terminated OR s.truncated)) AS early,
        bool_or(observed AND NOT seen) AS unseen, bool_or(NOT observed AND shown) AS shown,
        bool_or(strange) AS strange, {falls} AS falls, max(env_step) AS last_step,
        any_value(s.terminated) FILTER (after = 1) AS terminated,
        any_value(s.truncated) FILTER (after = 1) AS truncated, {added}
      FROM {rows} AS s JOIN lanes USING (lane) JOIN o USING (e) GROUP BY lane),
    compared AS (SELECT lanes.*, marks.* EXCLUDE (lane, terminated, truncated), CASE {
        _LANE_FAULT
    } END AS fault,
        coalesce(if(count > 1, marks.terminated, lanes.terminated), false) AS ended,
        coalesce(if(count > 1, marks.truncated, lanes.truncated), false) AS cut
      FROM (SELECT * FROM lanes WHERE e IN (FROM asked)) AS lanes LEFT JOIN marks USING (lane)),
    found AS (SELECT e, bool_and(fault IS NULL AND coalesce(there = count AND rewards = count - 1, false)) AS
          whole,
        list_distinct(list(fault)) AS faults, max(last_step) AS last_step, {total} AS total,
        bool_and(ended) AS ended, bool_or(cut) AND bool_and(ended OR cut) AS cut,
        {f"bool_or(agent_return IS DISTINCT FROM {sums})" if agents else "false"} AS other_returns,
        {"bool_or(terminated <> ended OR truncated <> cut)" if agents else "false"} AS other_flags
      FROM compared GROUP BY e),
    joined AS (SELECT o.*, found.* EXCLUDE (e), size
      FROM o JOIN found USING (e) JOIN segments USING (segment))
    SELECT * FROM ({_summed(f"SELECT e, episode_id, file, {_each(*faults)} FROM joined")})
    UNION ALL SELECT * FROM ({
        _summed(
            "SELECT e, episode_id, -1 - segment AS file, unnest(faults) AS fault "
            f"FROM joined WHERE NOT coalesce({suppressed}, false)"
        )
    })"""


def _annotated(agents: bool) -> str:
    """Return the query for rows of annotations in `read` whose keys are not those of their lanes."""
    message = "Its episode_id or t are not those of the steps beside them"
    fault = _case(_ALIEN_AGENT if agents else _ALIEN, "annotation", message)
    return _summed(
        f"SELECT DISTINCT e, o.episode_id, s.file, CASE {fault} END AS fault "
        "FROM read AS s JOIN lanes USING (lane) JOIN episodes AS o USING (e)"
    )


class Relations:
    """The episodes table in DuckDB, and the comparison of steps and annotations with it.

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
        #: What is not loaded or compared yet.
        self._episodes = [self._numbered(self.columns.empty_table(), np.zeros(0, bool), 0)]
        self._loaded = 0
        self._steps: list[pa.Table] = []
        self._asked: list[np.ndarray] = []
        self._sizes: dict[str, int | None] = {}
        self._beside: list[pa.Table] = []

    def close(self) -> None:
        """Close DuckDB."""
        self._connection.close()

    def add(self, file: str, rows: pa.Table, last_missing: np.ndarray) -> None:
        """Add the episodes of a file.

        Args:
            file: its name relative to the store.
            rows: with `columns`.
            last_missing: whose last observation is missing: bool, one for each.
        """
        self._episodes.append(self._numbered(rows, last_missing, self._number(file)))
        self.count += rows.num_rows
        if sum(table.num_rows for table in self._episodes) >= _BATCH_ROWS:
            self._load()

    def _number(self, file: str) -> int:
        self._files.append(file)
        return len(self._files) - 1

    def _numbered(self, rows: pa.Table, last_missing: np.ndarray, file: int) -> pa.Table:
        segments = rows.column("segment").combine_chunks().dictionary_encode("encode")
        names = segments.dictionary.to_pylist()
        codes = [self._segments.setdefault(name, len(self._segments)) for name in names]
        places = segments.indices
        numbers = {
            "e": np.arange(self.count, self.count + rows.num_rows),
            "file": np.full(rows.num_rows, file, np.int32),
            "last_missing": last_missing,
            "is_file": pa.array([name is not None and is_file_name(name) for name in names], pa.bool_()).take(
                places
            ),
            "segment": pa.array(codes, pa.int32()).take(places),
        }
        return pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **numbers})

    def _load(self) -> None:
        into = "INSERT INTO episodes" if self._loaded else "CREATE TABLE episodes AS"
        self._loaded += 1
        text = _EPISODES.format(
            runs_known=self._runs_known,
            bad_agents=_BAD_AGENTS.format(groups=self._groups) if self._schema.groups else "false",
            most=_MOST_ROWS,
        )
        self._query(f"{into} {text}", read=pa.concat_tables(self._episodes), runs=self._runs)
        self._episodes = [self._episodes[0].slice(0, 0)]

    def check_episodes(self, findings: Findings) -> dict[str, int]:
        """Compare the episodes with each other.

        Returns:
            The segments of those whose row pointers are right, with the number of their transitions.
        """
        self._load()
        for text, invalid in _CONTRADICTED.items():
            if self._query(text) != [(0,)]:
                self._query(f"UPDATE episodes SET valid = false WHERE e IN ({invalid})")
        self._query(_AGENT_LANES.format(groups=self._groups) if self._schema.groups else _LANES)
        names: list[Any] = list(self._segments)
        segments = {"segment": np.arange(len(names), dtype=np.int32), "name": pa.array(names, pa.string())}
        self._report(findings, _summed(_FAULTS_OF_EPISODES), segments=pa.table(segments))
        columns = "segment, lane, e, start, start + count, agent_group, last_missing"
        text = f"SELECT {columns} FROM lanes ORDER BY segment, start"
        # One query for each segment would take longer than reading a small one.
        self._lanes: dict[str, np.ndarray] = self._query(text, "fetchnumpy")
        text = "SELECT segment, sum(count - 1)::BIGINT FROM lanes GROUP BY ALL ORDER BY min(e)"
        return {names[number]: steps for number, steps in self._query(text)}

    def lanes(self, segment: str) -> SegmentLanes:
        """Return the lanes with rows in a segment."""
        number = self._segments.get(segment, -1)
        first, last = np.searchsorted(self._lanes["segment"], [number, number + 1])
        return SegmentLanes(
            *(column[first:last] for name, column in self._lanes.items() if name != "segment")
        )

    def compare(
        self,
        segment: str,
        size: int | None,
        lanes: SegmentLanes,
        pages: Iterable[tuple[int, pa.Table | None]],
        findings: Findings,
    ) -> None:
        """Compare the steps of a segment with its episodes, in a batch with others.

        Args:
            segment, size: its name and number of rows; None if it cannot be read.
            lanes: of the segment.
            pages: of `StepsPages.read`.
            findings: where faults go.
        """
        first = np.flatnonzero(np.diff(lanes.episode, prepend=-1))
        episodes, starts, done = lanes.episode[first], lanes.start[first], 0
        if len(episodes):
            self._sizes[segment] = size
        for stop, rows in pages:
            self._steps += [] if rows is None else [rows]
            if sum(table.num_rows for table in self._steps) >= _BATCH_ROWS:
                # The last of the episodes that have begun may go on.
                going = max(done, int(np.searchsorted(starts, stop)) - 1)
                self._asked.append(episodes[done:going])
                done = going
                steps = pa.concat_tables(self._steps)
                rest = np.isin(steps.column("lane").to_numpy(), lanes.lane[lanes.episode == episodes[going]])
                self._steps = [steps.filter(pa.array(~rest))]
                self._compare_steps(findings)
                self._steps, self._sizes = [steps.filter(pa.array(rest))], {segment: size}
        self._asked.append(episodes[done:])

    def annotate(self, file: str, rows: Iterable[pa.Table], findings: Findings) -> None:
        """Compare the rows of an annotation with the lanes beside it."""
        number = self._number(file)
        for table in rows:
            self._beside.append(table.append_column("file", pa.array(np.full(table.num_rows, number))))
            if sum(each.num_rows for each in self._beside) >= _BATCH_ROWS:
                self._compare_annotations(findings)

    def finish(self, findings: Findings) -> None:
        """Compare what is left of the last batches."""
        self._compare_steps(findings)
        self._compare_annotations(findings)

    def _compare_steps(self, findings: Findings) -> None:
        asked = pa.table({"e": np.concatenate([np.zeros(0, np.int64), *self._asked])})
        if asked.num_rows:
            names, sizes = list(self._sizes), list(self._sizes.values())
            segments = {
                "segment": np.array([self._segments[name] for name in names], np.int32),
                "size": pa.array(sizes, pa.int64()),
            }
            read = pa.concat_tables(self._steps or [compared_columns(self._schema).empty_table()])
            self._report(
                findings, _comparison(self._schema), asked=asked, segments=pa.table(segments), read=read
            )
        self._steps, self._asked, self._sizes = [], [], {}

    def _compare_annotations(self, findings: Findings) -> None:
        if self._beside:
            self._report(findings, _annotated(bool(self._schema.groups)), read=pa.concat_tables(self._beside))
        self._beside = []

    def _report(self, findings: Findings, text: str, **tables: pa.Table) -> None:
        names: list[str | None] = list(self._segments)
        for kind, message, file, count, examples in self._query(text, **tables):
            name = self._files[file] if file >= 0 else f"{STEPS}/{names[-1 - file]}"
            findings.add(kind, name, message, [f"{each['id']!r}{each['detail']}" for each in examples], count)

    def _query(self, text: str, fetch: str = "fetchall", **tables: pa.Table) -> Any:
        """Run a statement in DuckDB on its tables and some of Arrow.

        Raises:
            StoreUnavailableError: DuckDB has too little memory, or no space for temporary files.
        """
        connection = self._connection

        def work() -> Any:
            for name, table in tables.items():
                connection.register(name, table)
            rows = getattr(connection.execute(text), fetch)()
            for name in tables:
                connection.unregister(name)
            return rows

        try:
            return run_interruptible(work, connection.interrupt)
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            raise StoreUnavailableError(
                f"The steps cannot be compared with the episodes now: {error}. Free memory, or space for "
                "temporary files, and call again."
            ) from error

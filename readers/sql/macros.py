"""Macros for episodes, which every connection to a store has besides its tables.

They are made for the columns of one store: its agents, its objectives, its spaces. `query.py` creates them on
top of the views `runs`, `episodes`, `steps` and `transitions`. They read through those views, so they see
what the connection shows, a filtered view's episodes for instance, and are computed by DuckDB alone.
docs/sql.md describes each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...store.layout import EPISODES, STEPS
from ...store.names import next_name
from ...store.schema import ACTION, OBSERVATION, StepSchema
from .elements import HISTOGRAM_OF_STEPS, element_macros, histogram_of_actions, leaves_of
from .text import is_whole, quote

TRANSITIONS = "transitions"
WITH_NEXT = "transitions_with_next"
FRAME_AT = "frame_at"
#: The function of Python that the macro `frame_at` calls.
FRAME_FUNCTION = "_frame_at"
_POSITION_OF = "POSITION_OF"
_OUTSIDE = "NOT coalesce(gamma BETWEEN 0 AND 1, false)"
_WRONG_GAMMA = "'gamma is ' || coalesce(gamma::VARCHAR, 'NULL') || '; expected a number from 0 to 1'"


@dataclass(frozen=True)
class Macro:
    """A macro of a connection.

    A parameter must not have the name of a column that its macro's body sees, or DuckDB refuses the macro. No
    column of a store begins with an underscore, so parameters that are given by position do. Those that are
    given by name (`gamma := 0.9`) are used only where the body sees columns that this module names.

    Attributes:
        name: its name.
        parameters: as they stand in its brackets, with their defaults.
        body: an expression, or the query of a table macro.
        is_table: whether it is used after FROM.
        reads: the views that it reads.
    """

    name: str
    parameters: str
    body: str
    is_table: bool = True
    reads: frozenset[str] = frozenset({STEPS})

    @property
    def signature(self) -> str:
        """The macro as it is called: `returns_to_go(gamma := 1)`, `first_hit(condition)`."""
        shown = [parameter.removeprefix("_") for parameter in self.parameters.split(", ")]
        return f"{self.name}({', '.join(shown)})"

    def at(self, position_of: str) -> Macro:
        """Return the macro for a connection.

        Args:
            position_of: a query for the id of the episode at `_place`, which counts from 0 or from the end.
        """
        if self.name != "episode_at":
            return self
        return replace(self, body=self.body.replace(_POSITION_OF, position_of))


def macros_of(schema: StepSchema, columns: Sequence[str]) -> tuple[Macro, ...]:
    """Return the macros of a store, in alphabetical order.

    Args:
        schema: the columns that the store's spaces decide.
        columns: all columns of `steps`.
    """
    keys = key_names(schema)
    at_place = f"SELECT * FROM {EPISODES} WHERE episode_id = ({_POSITION_OF})"
    macros = [
        Macro("returns_to_go", "gamma := 1", _returns_to_go(schema), reads=frozenset({EPISODES, STEPS})),
        Macro("discounted_return", "gamma := 1", _discounted_return(schema)),
        Macro("moving_return", "episodes := 100", _moving_return(schema), reads=frozenset({EPISODES})),
        Macro("episode_at", "_place", at_place, reads=frozenset({EPISODES})),
        Macro("step_at", "_step", _STEP_AT, reads=frozenset({EPISODES})),
        Macro(
            "transitions_of", "_episode", _transitions_of(schema, columns), reads=frozenset({EPISODES, STEPS})
        ),
        Macro("first_hit", "_condition", _first_hit(keys)),
        Macro("step_percentiles", "_value", _STEP_PERCENTILES),
        Macro("step_histogram", "_value, bins := 20", HISTOGRAM_OF_STEPS),
    ]
    actions = histogram_of_actions(leaves_of(schema, ACTION))
    if actions is not None:
        macros.append(Macro("action_histogram", *actions))
    if any(leaf.node.binary for leaf in leaves_of(schema, OBSERVATION)):
        given = ", ".join(["_column", "_episode", *(["_agent"] if len(keys) > 1 else []), "_t"])
        macros.append(Macro(FRAME_AT, given, f"{FRAME_FUNCTION}({given})", False))
    for name, forms in element_macros(schema).items():
        macros += [Macro(name, parameters, body, False, frozenset()) for parameters, body in forms]
    return tuple(sorted(macros, key=lambda macro: macro.signature))


def statements(macros: tuple[Macro, ...]) -> Iterator[tuple[str, str]]:
    """Yield names and the statements that create them; macros of one name are forms of one."""
    for name in dict.fromkeys(macro.name for macro in macros):
        forms = ", ".join(
            f"({macro.parameters}) AS {'TABLE ' if macro.is_table else ''}{macro.body}"
            for macro in macros
            if macro.name == name
        )
        yield name, f"CREATE OR REPLACE MACRO {quote(name)}{forms}"


def key_names(schema: StepSchema) -> list[str]:
    """Return the columns that identify a row of rewards: the episode, and with several agents the agent."""
    return [name for name, _ in schema.step_keys if name != "t"]


def with_following(columns: Sequence[str]) -> str:
    """Return the columns of `transitions_with_next`, over steps in the files' order.

    The rows of an episode, and of an agent in it, follow each other by t, so the next observation is that of
    the next row, and DuckDB streams it: nothing is sorted, and a LIMIT ends the reading.
    """
    wrong = "error('the steps are not read in the order of their files')"
    following = [
        f"CASE WHEN terminated IS NULL THEN NULL WHEN lead(t) OVER () = t + 1 THEN "
        f"lead({quote(column)}) OVER () ELSE {wrong} END AS {quote(name)}"
        for column, name in next_columns(columns).items()
    ]
    return ", ".join([_others(columns), *following])


def next_columns(columns: Sequence[str]) -> dict[str, str]:
    """For each column of steps that the next row has more of: its name in `transitions_with_next`.

    Such as `next_observation`, `next_info.cost`, `next_policy.value`.
    """
    return {column: name for column in columns if (name := next_name(column)) is not None}


def _others(columns: Sequence[str]) -> str:
    """Return all columns of steps, without those that earlier versions recorded under the name of a next
    one.
    """
    hidden = [quote(name) for name in next_columns(columns).values() if name in columns]
    return f"* EXCLUDE ({', '.join(hidden)})" if hidden else "*"


def _each_objective(schema: StepSchema, expression: str) -> str:
    """Return an expression for the reward, or a list with one for each objective; REWARD is replaced."""
    if not schema.reward_shape:
        return expression.replace("REWARD", "reward")
    parts = range(1, math.prod(schema.reward_shape) + 1)
    return "[" + ", ".join(expression.replace("REWARD", f"reward[{part}]") for part in parts) + "]"


def _returns_to_go(schema: StepSchema) -> str:
    """Return SQL that sums the rewards ahead, by stretches of time too short for gamma to vanish.

    A step's weight is gamma to the power of its place in a stretch; the sum from a step to the stretch's end,
    divided by that step's weight, is what it has ahead there. A stretch ends before a weight is below 1e-150,
    so nothing is divided by 0, and what comes after the next stretch counts for less than 1e-75 of a reward:
    only what is not finite has to be looked for there. Nearly all episodes are one finite stretch, which one
    sum is enough for.
    """
    keys = ", ".join(key_names(schema))
    rewards = f"(SELECT {keys}, t, reward FROM {STEPS})"
    # Not a WINDOW clause in each SELECT: DuckDB before 2.0 refuses the second one of a name.
    rows = f"PARTITION BY {keys} ORDER BY t ROWS BETWEEN"
    ahead = f"sum(REWARD * weight) OVER ({rows} CURRENT ROW AND UNBOUNDED FOLLOWING) / weight"
    stretch = f"sum(REWARD * weight) OVER ({rows} CURRENT ROW AND rest FOLLOWING)"
    after = f"sum(REWARD * weight) OVER ({rows} rest + 1 FOLLOWING AND rest + span FOLLOWING)"
    odd = "CASE WHEN isfinite(REWARD) THEN NULL ELSE REWARD END"
    far = f"sum({odd}) OVER ({rows} rest + 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    stretches = f"({stretch} + coalesce({after}, 0) * power) / weight + coalesce({far}, 0)"
    total = "list_sum(episode_return)" if schema.reward_shape else "episode_return"

    def select(join: str, sums: str) -> str:
        value = _each_objective(schema, f"CASE WHEN gamma = 0 THEN REWARD ELSE {sums} END")
        return (
            f"SELECT {keys}, t, reward, {value} AS return_to_go FROM weighted {join} JOIN stretched "
            "USING (episode_id)"
        )

    return f"""
        WITH span AS (
            SELECT CASE
                WHEN {_OUTSIDE} THEN error({_WRONG_GAMMA})::BIGINT
                WHEN gamma = 0 THEN 1
                WHEN gamma = 1 THEN 9000000000000000
                ELSE greatest(1, floor(-345.0 / ln(gamma::DOUBLE)))::BIGINT END AS span
        ), weighted AS NOT MATERIALIZED (
            SELECT {keys}, t, reward, span, pow(gamma::DOUBLE, t % span) AS weight,
                pow(gamma::DOUBLE, span) AS power, span - 1 - t % span AS rest
            FROM {rewards}, span WHERE reward IS NOT NULL
        ), stretched AS (
            SELECT episode_id FROM (SELECT episode_id, length, episode_return FROM {EPISODES}), span
            WHERE length > span OR NOT coalesce(isfinite({total}), false)
        )
        {select("ANTI", ahead)} UNION ALL {select("SEMI", stretches)}"""


def _discounted_return(schema: StepSchema) -> str:
    keys = ", ".join(key_names(schema))
    weight = f"CASE WHEN {_OUTSIDE} THEN error({_WRONG_GAMMA})::DOUBLE ELSE pow(gamma::DOUBLE, t) END"
    # What is not finite stays so, however small its weight.
    term = f"WHEN isfinite(REWARD) THEN REWARD * {weight} ELSE REWARD"
    weighted = f"coalesce(sum(CASE WHEN gamma = 0 AND t > 0 THEN 0 {term} END), 0)"
    total = _each_objective(schema, weighted)
    return (
        f"SELECT {keys}, {total} AS discounted_return "
        f"FROM (SELECT {keys}, t, reward FROM {STEPS}) GROUP BY {keys}"
    )


def _moving_return(schema: StepSchema) -> str:
    before = (
        "CASE WHEN coalesce(episodes >= 1, false) THEN episodes - 1 ELSE error('episodes is ' || "
        "coalesce(episodes::VARCHAR, 'NULL') || '; expected a whole number of at least 1')::BIGINT END"
    )
    mean = _each_objective(schema, "avg(REWARD) OVER recent").replace("reward", "episode_return")
    return f"""
        SELECT run_id, number, episode_id, episode_return, {mean} AS moving_return
        FROM (SELECT run_id, number, episode_id, episode_return FROM {EPISODES})
        WINDOW recent AS (
            PARTITION BY run_id ORDER BY number ROWS BETWEEN {before} PRECEDING AND CURRENT ROW
        )"""


def _transitions_of(schema: StepSchema, columns: Sequence[str]) -> str:
    keys = ", ".join(key_names(schema))
    following = [
        f"lead({quote(column)}) OVER following AS {quote(name)}"
        for column, name in next_columns(columns).items()
    ]
    shown = ", ".join([_others(columns), *following])
    id_given = (
        "CASE WHEN typeof(_episode) = 'VARCHAR' THEN _episode::VARCHAR ELSE error('transitions_of takes the "
        "id of an episode; for a position use (SELECT episode_id FROM episode_at(0))')::VARCHAR END"
    )
    # An id that no episode has would else look like an episode without transitions. It is looked up in a part
    # of its own, so that the steps keep a condition that files are pruned by, and only if it is a text. Where
    # there is no episode at all, no id is a mistake.
    known = (
        f"typeof(_episode) <> 'VARCHAR' OR EXISTS (FROM {EPISODES} WHERE episode_id = _episode::VARCHAR) "
        f"OR NOT EXISTS (FROM {EPISODES})"
    )
    unknown = (
        "'transitions_of: there is no episode ' || coalesce(_episode::VARCHAR, 'NULL') || ' here; "
        f"FROM {EPISODES} has the ids'"
    )
    return f"""
        SELECT * FROM (
            SELECT {shown} FROM (
                SELECT * FROM {STEPS} WHERE episode_id = {id_given}
                UNION ALL
                SELECT _nothing.* FROM (SELECT 1) LEFT JOIN (FROM {STEPS} WHERE false) AS _nothing ON true
                WHERE CASE WHEN {known} THEN false ELSE error({unknown})::BOOLEAN END
            ) WINDOW following AS (PARTITION BY {keys} ORDER BY t)
        ) WHERE terminated IS NOT NULL ORDER BY {keys}, t"""


def _first_hit(keys: list[str]) -> str:
    columns = ", ".join(keys)
    return f"SELECT {columns}, min(t) FILTER (WHERE _condition) AS t FROM {STEPS} GROUP BY {columns}"


_WHOLE_STEP = f"""
    CASE WHEN {is_whole("_step")} AND try_cast(_step AS BIGINT) >= 0 THEN try_cast(_step AS BIGINT)
    ELSE error('step is ' || coalesce(_step::VARCHAR, 'NULL') ||
        '; expected a whole number of at least 0')::BIGINT END"""

_STEP_AT = f"""
    SELECT run_id, episode_id, number, wanted - steps_before AS t FROM (
        SELECT run_id, episode_id, number, length, {_WHOLE_STEP} AS wanted,
            (sum(length) OVER (PARTITION BY run_id ORDER BY number) - length)::BIGINT AS steps_before
        FROM (SELECT run_id, episode_id, number, length FROM {EPISODES})
    ) WHERE wanted >= steps_before AND wanted < steps_before + length"""

_STEP_PERCENTILES = f"""
    SELECT t, count AS episodes, mean, quantiles[1] AS minimum, quantiles[2] AS p10, quantiles[3] AS p25,
        quantiles[4] AS median, quantiles[5] AS p75, quantiles[6] AS p90, quantiles[7] AS maximum
    FROM (
        SELECT t, count(*) AS count, avg(found) AS mean,
            quantile_cont(found, [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1]) AS quantiles
        FROM (SELECT t, (_value)::DOUBLE AS found FROM {STEPS}) WHERE found IS NOT NULL GROUP BY t
    )"""

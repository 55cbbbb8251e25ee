"""Episodes of a context: by position, by id, drawn at random, one after the other, or replayed.

Iterating reads each row group once, and the next ones ahead.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from ..store.common.arguments import flag, whole_number
from ..store.errors import CorruptStoreError, EpisodeNotFoundError, InvalidArgumentError
from ..store.rewrite.episode_set import EpisodeSet
from .blocks import Block, BlockPart, BlockReader
from .context import ContextView, EpisodeRowReader, ReadContext, refresh_hint
from .episode import Episode, MultiAgentEpisode
from .formatting import counted
from .frames import collect_episodes, episodes_frame, positions_of_ids

if TYPE_CHECKING:
    import gymnasium

    from .replaying.replay import ReplayReport


def make_episode(rows: EpisodeRowReader, position: int, block: Block, start: int, count: int) -> Episode:
    """Return the episode at a position, whose `count` rows begin at row `start` of a block."""
    if rows.snapshot.schema.groups:
        return MultiAgentEpisode(rows, position, block, start, count)
    return Episode(rows, position, block, start, count - 1)


def find_episode(context: ReadContext, key: int | str) -> Episode:
    """Return the episode at a position of the context (negative: from the end), or of an id.

    Raises:
        EpisodeNotFoundError: there is no such position or id.
        InvalidArgumentError: the key is of another kind.
    """
    position = _position_of(context, key)
    block, start = context.blocks.single(position)
    return make_episode(context.rows, position, block, start, context.snapshot.place(position)[2])


class _LostBlock:
    """Placeholder for the rows of a file that cannot be read; any access raises the reason."""

    def __init__(self, error: CorruptStoreError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        """Raise the error."""
        raise self._error


def describe_episode(context: ReadContext, key: int | str) -> Episode:
    """Return the same, also where its steps cannot be read; what needs them raises `CorruptStoreError`.

    Raises:
        as for `find_episode`.
    """
    try:
        return find_episode(context, key)
    except CorruptStoreError as error:
        position = _position_of(context, key)
        count = context.snapshot.place(position)[2]
        return make_episode(context.rows, position, cast(Block, _LostBlock(error)), 0, count)


def has_episode(context: ReadContext, key: object) -> bool:
    """Return whether an id is that of an episode of the context."""
    try:
        return isinstance(key, str) and _position_of(context, key) >= 0
    except EpisodeNotFoundError:
        return False


def _position_of(context: ReadContext, key: int | str) -> int:
    """Return the position of an episode in the snapshot."""
    if isinstance(key, str):
        return positions_of_ids(context, [key])[key]
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        raise InvalidArgumentError(
            f"{key!r:.200} is no position; expected an int, a slice or an episode id; or a list or array of "
            "positions, or a mask with True for each episode to keep."
        )
    index, count = int(key), len(context)
    if not -count <= index < count:
        raise EpisodeNotFoundError(
            f"There is no episode at position {index} of {counted(count, 'episode')}. "
            f"Positions go from {-count} to {count - 1}."
            if count
            else f"There is no episode at position {index}: there are no episodes."
            + refresh_hint(context.snapshot)
        )
    index %= count
    return index if context.positions is None else int(context.positions[index])


def sample_episodes(
    view: ContextView, n: int, seed: int | None = None, replace: bool = False
) -> list[Episode]:
    """Draw `n` episodes, each with the same probability.

    Args:
        n: how many.
        seed: the same seed and the same view give the same episodes.
        replace: allow an episode to be drawn more than once.

    Raises:
        InvalidArgumentError: `n` is no number of episodes, or more than there are (without `replace`);
            `seed` is none.
    """
    replace, context = flag("replace", replace), view.context
    count = len(context)
    n = whole_number("n", n, 0)
    if n > count and not (replace and count):
        raise InvalidArgumentError(
            f"Cannot draw {counted(n, 'episode')} from {count:,}. Draw fewer, or draw with replace=True."
        )
    seed = None if seed is None else whole_number("seed", seed, 0)
    drawn = np.random.default_rng(seed).choice(count, n, replace) if n else []
    return [find_episode(context, int(index)) for index in drawn]


def checked_slice(key: slice) -> slice:
    """Return a slice of positions, as it is.

    Raises:
        InvalidArgumentError: it has other parts than whole numbers, or a step of 0.
    """
    parts = (key.start, key.stop, key.step)
    whole = all(part is None or isinstance(part, int | np.integer) for part in parts)
    if not whole or (key.step is not None and not key.step):
        raise InvalidArgumentError(
            f"{key!r} is no slice of positions; expected whole numbers, as [10:20], and no step of 0."
        )
    return key


def checked_positions(given: Sequence[int] | np.ndarray | pl.Series, count: int) -> np.ndarray:
    """Positions among `count` episodes, those from the end as others, or those where a mask is true.

    Raises:
        InvalidArgumentError: it holds other things than positions, or one of them twice; a mask has another
            length.
        EpisodeNotFoundError: there is no such position.
    """
    try:
        key = np.asarray(given)
    except ValueError as error:
        raise InvalidArgumentError(f"{given!r:.200} is no list of positions: {error}") from error
    if (
        key.dtype != bool
        and isinstance(given, list)
        and any(isinstance(each, bool | np.bool_) for each in given)
    ):
        raise InvalidArgumentError(
            f"{given!r:.200} has flags among positions; expected positions only, or a mask of flags only."
        )
    if key.dtype == bool:
        if key.shape != (count,):
            raise InvalidArgumentError(
                f"A mask of shape {key.shape} was given; expected ({count},): one for each episode."
            )
        return np.flatnonzero(key)
    if key.ndim != 1 or not (np.issubdtype(key.dtype, np.integer) or not key.size):
        raise InvalidArgumentError(
            f"An array of dtype {key.dtype} and shape {key.shape} is no list of positions; expected whole "
            "numbers in one dimension."
        )
    wrong = key[(key < -count) | (key >= count)]
    if len(wrong):
        raise EpisodeNotFoundError(
            f"There is no episode at position {wrong[0]} of {counted(count, 'episode')}."
        )
    chosen = key.astype(np.int64) % max(count, 1)
    # A view holds an episode once; sorted ones, as of a filter, are checked without sorting them again.
    if (np.diff(chosen) <= 0).any() and len(np.unique(chosen)) < len(chosen):
        raise InvalidArgumentError("The positions name an episode twice; expected each at most once.")
    return chosen


def selection(view: ContextView) -> EpisodeSet:
    """Return these episodes as a merge takes them."""
    context = view.context
    if context.positions is None:
        return EpisodeSet(context.snapshot)
    frame = episodes_frame(context.snapshot, context.positions).select("episode_id")
    ids = collect_episodes(context.snapshot, frame)
    return EpisodeSet(context.snapshot, pa.array(ids["episode_id"].to_list(), pa.string()))


_READ_AHEAD = 2


#: A block, and the position, first row and number of rows of each consecutive episode in it.
_Stretch = tuple[Block, list[tuple[int, int, int]]]


def iterate_episodes(context: ReadContext) -> Iterator[Episode]:
    """Yield the episodes in their order.

    While one row group is looked at, the columns that were used of the ones before are read of the next ones,
    in background threads.
    """
    stretches = _stretches(context.blocks, context.all_positions)
    ahead: deque[tuple[_Stretch, Future[None] | None]] = deque()
    used: frozenset[str] = frozenset()
    pool = ThreadPoolExecutor(_READ_AHEAD, "episodelake read ahead")
    try:
        while True:
            depth = _READ_AHEAD if used else 0
            while len(ahead) <= depth and (following := next(stretches, None)) is not None:
                reading = pool.submit(following[0].load, used, threads=False) if used else None
                ahead.append((following, reading))
            if not ahead:
                return
            (block, members), reading = ahead.popleft()
            if reading is not None:
                reading.result()
            # A shared block may have columns that others asked for.
            before = frozenset(block.touched)
            for position, start, count in members:
                yield make_episode(context.rows, position, block, start, count)
            used |= block.touched - before
    finally:
        # The collector may close this generator inside a lock of `threading`, so no thread is joined here.
        pool.shutdown(wait=False, cancel_futures=True)


def iterate_blocks(context: ReadContext) -> Iterator[_Stretch]:
    """Yield blocks of rows in the order of the episodes, none of them read yet.

    Each comes with the position, first row in the block and number of rows of its episodes.
    """
    return _stretches(context.blocks, context.all_positions)


def _stretches(blocks: BlockReader, positions: np.ndarray) -> Iterator[_Stretch]:
    # In the order of the store no row group comes again, so none is kept.
    ascending = bool((np.diff(positions) > 0).all())
    current: _Stretch | None = None
    for position in positions.tolist():
        name, start, count = blocks.snapshot.place(position)
        if current is None or not _holds(current[0], blocks.file(name).path, start, count):
            if current is not None and current[1]:
                yield current
            current = (blocks.fresh(position) if ascending else blocks.shared(position))[0], []
        if blocks.snapshot.schema.encodings:
            # Decoded frames take many times the room of the row group: one episode at a time.
            low = start - current[0].first
            yield BlockPart(current[0], slice(low, low + count)), [(position, 0, count)]
        else:
            current[1].append((position, start - current[0].first, count))
    if current is not None and current[1]:
        yield current


def _holds(block: Block, path: object, start: int, count: int) -> bool:
    return block.file.path == path and block.first <= start and start + count <= block.first + block.count


def replay(view: ContextView, env: Any = None, *, rtol: float = 0.0, atol: float = 0.0) -> list[ReplayReport]:
    """Replay every episode of this view; see `Episode.replay`.

    Args:
        env: used for all of them; None to make the environment of each run again.
        rtol, atol: as for `Episode.replay`.
    """
    from .replaying.environment import remake_env
    from .replaying.run_envs import RunEnv, run_envs_of

    context = view.context
    if env is not None:
        return [episode.replay(env, rtol=rtol, atol=atol) for episode in iterate_episodes(context)]
    envs = run_envs_of(context)
    made: dict[str, gymnasium.Env] = {}
    reports = []
    with contextlib.ExitStack() as stack:
        for episode in iterate_episodes(context):
            run_id = episode.run_id
            if run_id not in made:
                again = remake_env(context.snapshot, RunEnv.chosen(envs, run_id), stacklevel=2)
                made[run_id] = stack.enter_context(contextlib.closing(again))
            reports.append(episode.replay(made[run_id], rtol=rtol, atol=atol))
    return reports


def make_env(
    view: ContextView,
    run: str | None = None,
    *,
    eval_env: bool = False,
    trust: bool = False,
    strict: bool = False,
    render_mode: str | None = None,
    **changes: Any,
) -> gymnasium.Env:
    """Make the environment of a run again, or a saved one, by `gymnasium.make`, with wrappers and files.

    Nothing is unpickled. Without trust only environments and wrappers of Gymnasium itself are made, with
    arguments that name no paths; see docs/environments.md. Files that the run kept are unpacked into a
    temporary folder, which goes with the environment. It shows nothing on the screen, and films nothing.

    Args:
        run: a run's id or name, or the name of a saved environment (`"pole"` for its newest version,
            `"pole@2"` for that one); None if all runs of these episodes have the same environment.
        eval_env: make the environment for evaluation that the card names (`eval_env_spec`), as Minari's
            datasets have one, in place of a run's.
        trust: you trust the author of the store: import the modules that the spec names.
        strict: packages of other versions are an error, not a warning.
        render_mode: another render mode than the recorded one ("human" is not taken over).
        changes: other arguments than the recorded ones, and `max_episode_steps` or
            `disable_env_checker`, as `gymnasium.make` takes them.

    Raises:
        EnvUnavailableError: something was not kept or is not installed; the message names it.
        UntrustedEnvError: it needs trust; the message says what for. Nothing was imported.
        InvalidArgumentError: there is no such run or saved environment, or several match; or both `run` and
            `eval_env` are given.
        CorruptStoreError: what the run kept is damaged.
    """
    from .replaying.environment import remake_env
    from .replaying.run_envs import chosen_env, evaluation_env, run_envs_of

    trust = flag("trust", trust)
    strict = flag("strict", strict)
    options = {"trust": trust, "strict": strict, "render_mode": render_mode, "changes": changes}
    snapshot = view.context.snapshot
    if flag("eval_env", eval_env):
        if run is not None:
            raise InvalidArgumentError(f"run={run!r} and eval_env=True name two environments: give one.")
        chosen = evaluation_env(snapshot)
    else:
        chosen = chosen_env(snapshot.layout, run_envs_of(view.context), run)
    return remake_env(snapshot, chosen, stacklevel=2, **options)

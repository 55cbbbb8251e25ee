"""`FollowingLoader`: a loader without end, over the newest episodes of a store that others write to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...store.errors import InvalidArgumentError, LoaderStateError
from .arguments import Asked, check_single_agents
from .batch_source import Batching
from .columns import choose_columns
from .follow_feed import FollowFeed
from .follow_window import Follow
from .loader import Loader
from .outputs import Output
from .priorities import check_beta, checked_update
from .prioritised import powers_of_state
from .units.unit import Batch

if TYPE_CHECKING:
    from .feeding import FeedingView


class FollowingLoader(Loader):
    """Batches of the units of a store's newest episodes, for ever, while writers add to it.

    Units are drawn with replacement. Between batches, once `refresh_seconds` have passed, it moves to the
    newest version of the store, and reads the rows of the episodes that are new to it. So a batch shows what
    was committed `refresh_seconds` before it was made. Episodes that were deleted, or that the filter no
    longer lets through, go with the next look.

    Args:
        feed: where units come from.
        batching, identity, transforms, output: as for `Loader`.
    """

    live = True

    def __init__(
        self,
        feed: FollowFeed,
        batching: Batching,
        identity: Mapping[str, Any],
        transforms: Sequence[Callable[[Batch], Batch]] = (),
        output: Output | None = None,
    ) -> None:
        super().__init__(feed, batching, identity, transforms, output)
        self._followed = feed

    def __repr__(self) -> str:
        """What it shows and where it stands, in one line."""
        return (
            f"FollowingLoader({len(self._followed.contents)} episodes with {self.units} units at version "
            f"{self.version}, batches of {self._batching.size}, position {self._position})"
        )

    def __bool__(self) -> bool:
        """True, though it has no length."""
        return True

    def __len__(self) -> int:
        """It has none.

        Raises:
            TypeError: always; this is no sequence.
        """
        raise TypeError("A loader that follows a store has no length: it never ends.")

    @property
    def units(self) -> int:
        """Units there are at the moment."""
        return self._followed.unit_count

    @property
    def epoch_units(self) -> None:
        """None: it has no end."""
        return None

    @property
    def version(self) -> int:
        """The version of the store that it shows at the moment."""
        return self._followed.contents.version

    @property
    def episodes(self) -> list[str]:
        """The ids of the episodes that it shows, in the order of their ends; `episode` counts these."""
        return self._followed.contents.ids.to_list()

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that it holds: at most about 1.5 times those of the window."""
        return self._followed.nbytes

    def refresh(self) -> None:
        """Move to the newest version of the store now.

        Raises:
            CorruptStoreError: a file is damaged; the loader shows what it showed.
        """
        self._followed.look()

    @property
    def beta(self) -> float:
        """How much the weights make up for the priorities: 0 to 1. May be set at any time.

        Raises:
            InvalidArgumentError: it does not draw by priority.
        """
        return self._priorities().beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._priorities().beta = check_beta(beta)

    def _priorities(self) -> Any:
        if self._followed.priorities is None:
            raise InvalidArgumentError(
                "This loader does not draw by priority. Make it with prioritised=Prioritised()."
            )
        return self._followed.priorities

    def update_priorities(self, units: Any, priorities: Any) -> None:
        """As for `PrioritisedLoader`; units whose episode has gone since the batch was made are passed over.

        Units keep their numbers as long as this loader lives; those of a loader before it mean nothing here.
        """
        self._priorities()
        self._followed.change(*checked_update(units, priorities, self._followed.numbered))

    def state_dict(self) -> dict[str, Any]:
        """How many units were drawn, and from which version; by priority, also the priorities.

        With priorities it holds 8 bytes for each unit, and for each episode its id and 8 bytes.
        """
        state = {**super().state_dict(), "version": self.version}
        if self._followed.priorities is None:
            return state
        contents = self._followed.contents
        return {
            **state,
            "priorities": self._followed.priorities.powers.astype("<f8").tobytes(),
            "beta": self.beta,
            "episodes": contents.ids.to_list(),
            "counts": self._followed.counts.astype("<i8").tobytes(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the next draw. If the store has still the version of the state, the same batches follow.

        In a newer version the draws are made from what is there now; episodes that are still there keep their
        priorities.

        Raises:
            LoaderStateError: the state is of another store, window, filter, kind of unit or order, or of a
                version that the store does not have; the loader stands where it stood.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if not isinstance(version, int):
            raise LoaderStateError(
                f"This is no state of a loader that follows a store: {state!r:.200}. Expected what its "
                "state_dict() gave."
            )
        self._followed.look()
        if version > self.version:
            raise LoaderStateError(
                f"The state is of version {version}; the newest version of the store is {self.version}. So "
                "this is an older copy of the store: bring the newer one here, or begin anew."
            )
        if self._followed.priorities is None:
            super().load_state_dict(state)
            return
        powers, beta = powers_of_state(state)
        ids, counts = _episodes_of_state(state, powers.size)
        super().load_state_dict(state)
        self._followed.restore(ids, counts, powers)
        self._followed.priorities.beta = beta


def _episodes_of_state(state: Mapping[str, Any], units: int) -> tuple[list[str], np.ndarray]:
    """The ids of a state's episodes, and how many units each has."""
    try:
        ids, counts = list(state["episodes"]), np.frombuffer(state["counts"], "<i8").astype(np.int64)
        if (
            len(set(ids)) != len(ids)
            or len(ids) != len(counts)
            or counts.sum() != units
            or (counts < 0).any()
        ):
            raise ValueError(f"{len(ids)} episodes with {counts.sum()} units, but {units} priorities")
        if not all(isinstance(name, str) for name in ids):
            raise ValueError("an id of an episode is no text")
    except (TypeError, KeyError, ValueError) as error:
        raise LoaderStateError(
            f"The priorities of this state belong to no episodes: {error!r:.200}. Expected what "
            "state_dict() gave."
        ) from error
    return ids, counts


def following_loader(view: FeedingView, follow: Follow, asked: Asked) -> FollowingLoader:
    """A loader that follows the store of a view.

    Raises:
        InvalidArgumentError: the view is a slice; there is no such column.
    """
    snapshot, units, stages, rule = view._reader.snapshot, asked.units, asked.stages, asked.prioritised
    check_single_agents(snapshot)
    if view._conditions is None:
        raise InvalidArgumentError(
            "A slice of a store has no newer version, so it cannot be followed. Follow the store or a filter "
            "of it: store.filter(...).loader(follow=True); newest_episodes=... keeps the last ones."
        )
    keys = stages.keys(units, asked.columns)
    # So that a column that is not there is told at once where that can be known.
    if snapshot.episode_count:
        choose_columns(snapshot, np.zeros(0, np.int64), stages.columns(units, keys))
    identity = {
        "store": snapshot.manifest.store_id,
        "followed": [str(condition) for condition in view._conditions],
        "newest": [follow.newest_steps, follow.newest_episodes],
        "units": repr(units),
        "order": repr(rule and (rule.alpha, rule.epsilon, rule.weights)),
        "weights": None if asked.weights is None else str(asked.weights),
        "seed": asked.seed,
    }
    feed = FollowFeed(view, follow, units, keys, stages, seed=asked.seed, weights=asked.weights, rule=rule)
    return FollowingLoader(feed, asked.batching, identity, stages.on_batch, asked.output)

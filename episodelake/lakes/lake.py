"""`Lake`: many stores below one folder or prefix, by name."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import polars as pl

from .. import EpisodeStore, create
from .. import open as open_store
from ..errors import CorruptStoreError, FormatVersionError, InvalidArgumentError, StoreNotFoundError
from ..plugin import Layout, QuerySession, counted, flag, suggest
from ..plugin.files import Place, check_free, read_manifest
from .listing import Entry, checked, lake_layout, look, stores_frame
from .moving import delete, rename
from .tables import LakeQueries, LakeSnapshot, lazy_table
from .walk import checked_name, find_stores, look_at, place_of

if TYPE_CHECKING:
    from ..types import Explorer, Parameters

_Answer = TypeVar("_Answer")


@dataclass
class _Look:
    """The stores as they were at one moment, and their tables.

    Attributes:
        entries: the stores by name.
        warned: warnings that were given already.
    """

    root: Place
    entries: dict[str, Entry]
    warned: set[str] = field(default_factory=set)

    @cached_property
    def lake(self) -> LakeSnapshot:
        """The tables of the stores that can be read."""
        self.entries = checked(self.root, self.entries)
        readable = {name: each.snapshot for name, each in self.entries.items() if each.snapshot is not None}
        lake = LakeSnapshot(lake_layout(self.root), readable)
        lake.stores_table = stores_frame(self.root, self.entries).to_arrow()
        return lake

    @cached_property
    def queries(self) -> LakeQueries:
        """Sessions of DuckDB over the tables."""
        return LakeQueries(self.lake)

    def answer(self, ask: Callable[[LakeQueries], _Answer]) -> _Answer:
        """Ask the stores; where a file turns out to be damaged, ask the others."""
        try:
            return ask(self.queries)
        except CorruptStoreError:
            entries = checked(self.root, self.entries, pages=True)
            if entries == self.entries:
                raise
            self.entries = entries
            for name in ("lake", "queries"):
                self.__dict__.pop(name, None)
            return ask(self.queries)

    def warn(self, columns: Sequence[str], stacklevel: int) -> None:
        """Warn, once, of stores that are left out, and of columns with different types among some."""
        lake = self.lake
        texts = [str(each) for (_, column), each in lake.conflicts.items() if column in columns]
        broken = [f"{name!r}: {each.error}" for name, each in self.entries.items() if each.error]
        if broken:
            texts.append(
                f"The answer leaves out {counted(len(broken), 'store')} of the lake {self.root} that cannot "
                f"be read; stores() says why. {broken[0]}"
            )
        for text in texts:
            if text not in self.warned:
                self.warned.add(text)
                warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)


class Lake:
    """Many stores below one folder or prefix, made by `episodelake.lake`.

    It shows the stores and their versions as they were when it first looked, until `refresh`. Only
    `lake[name]` and `name in lake` ask the folder itself. Iteration gives the names of the stores that can be
    read, and `len` counts them.
    """

    def __init__(self, root: Place, storage_options: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._options = storage_options
        self._seen: _Look | None = None
        #: Whether this object has changed something since it looked.
        self._changed = False

    @property
    def url(self) -> str:
        """The absolute path of its folder, or its URL."""
        return str(self._root)

    def explore(self, *, browser: bool = False, height: int = 760, write: bool = False) -> Explorer:
        """Start the explorer of these stores; arguments and errors are those of `EpisodeStore.explore`."""
        from ..types import Explorer

        browser, write = flag("browser", browser), flag("write", write)
        return Explorer.start(
            self.url, None, browser=browser, height=height, write=write, storage_options=self._options
        )

    @property
    def _look(self) -> _Look:
        if self._seen is None or self._changed:
            self.refresh()
        assert self._seen is not None
        return self._seen

    def session(self) -> QuerySession:
        """Return the calling thread's session of DuckDB, whose queries see nothing but the lake."""
        return self._look.queries.session(read_only=True)

    def new_session(self) -> QuerySession:
        """Return a session of its own for the versions that are shown now, as `session`; close it."""
        return self._look.queries.new_session()

    def refresh(self) -> Lake:
        """Look for stores again, read those that have changed since, and return this object.

        Raises:
            InvalidArgumentError: there are more folders, or deeper ones, than a lake may have.
            StoreAccessError: the folder cannot be listed.
            StoreUnavailableError: the system could not read a store, for now (no descriptors, a disk or a
                service in trouble). What was seen before stays; call again.
        """
        before = {} if self._seen is None else self._seen.entries
        entries = look(self._root, self._find(), self._url_of, self._options, before)
        self._seen, self._changed = _Look(self._root, entries), False
        return self

    def _find(self) -> Mapping[str, str | None]:
        """Return the names of the stores, each with what is wrong with its folder, or None."""
        return find_stores(self._root)

    def _url_of(self, name: str) -> str:
        """Return where the store of a name can be read."""
        return str(self._root / name)

    # Stores

    def stores(self) -> pl.DataFrame:
        """Return one row per store, ordered by name.

        Columns: store (its name), url, version, episodes, steps (transitions), env_ids (the ids of the
        environments of its runs), created, updated (when episodes or runs were last added; UTC), bytes (of
        the files of its tables) and error (why it cannot be read, or null).
        """
        return stores_frame(self._root, self._look.entries)

    def __len__(self) -> int:
        """Return the number of stores that can be read."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the stores that can be read, sorted."""
        return iter([name for name, entry in self._look.entries.items() if entry.snapshot is not None])

    def __contains__(self, name: object) -> bool:
        """Return whether there is a store of this name now."""
        try:
            place = place_of(self._root, name)
        except InvalidArgumentError:
            return False
        return (place / Layout.MANIFEST).exists()

    def __getitem__(self, name: str) -> EpisodeStore:
        """Open a store at its newest version.

        Raises:
            StoreNotFoundError: there is none of this name; the message lists the nearest names.
            InvalidArgumentError: it is no name of a store in a lake, or leads through a link.
            FormatVersionError, CorruptStoreError: as for `open`.
        """
        place = place_of(self._root, name)
        try:
            return open_store(str(place), storage_options=self._options)
        except StoreNotFoundError as error:
            if (place / Layout.MANIFEST).exists():
                raise
            raise self._missing(name) from error

    def _missing(self, name: str) -> StoreNotFoundError:
        known = list(self)
        listed = ", ".join([*map(repr, known[:8]), *(["..."] if len(known) > 8 else [])]) or "none"
        base, _, tag = name.rpartition("@")
        hint = f" Open it at {tag!r} with episodelake.open." if base in known else suggest(name, known)
        return StoreNotFoundError(f"The lake {self._root} has no store {name!r}.{hint} Its stores: {listed}.")

    def create(self, name: str, env: Any = None, **options: Any) -> EpisodeStore:
        """Create an empty store in the lake and open it; of several processes that do so, one succeeds.

        Args:
            name: its folder below the root, such as "cartpole/ppo"; none of its parts begins with a dot.
            env: as for `episodelake.create`.
            options: `observation_space`, `card`, `exist_ok` and others, as for `episodelake.create`.

        Raises:
            StoreExistsError: there is a store of this name already, or other files.
            InvalidArgumentError: it is no name of a store in a lake, or lies in another store.
        """
        place = self._free(name, exist_ok=options.get("exist_ok") is True)
        store = create(str(place), env, storage_options=self._options, **options)
        self._changed = True
        return store

    def _free(self, name: str, *, exist_ok: bool = False) -> Place:
        """Return the place for a new store outside all others; it may exist already."""
        place = place_of(self._root, name)
        parts = checked_name(name).split("/")
        for count in range(1, len(parts)):
            above = "/".join(parts[:count])
            if look_at(place_of(self._root, above))[1] is None:
                raise InvalidArgumentError(
                    f"{name!r} would be inside the store {above!r}. Choose another name."
                )
        if not exist_ok:
            check_free(Layout.at(str(place), self._options))
        return place

    def _layout_of(self, name: str) -> Layout:
        """Return the layout of a store, or of what is left of one.

        Raises:
            StoreNotFoundError: there is nothing of the kind.
        """
        layout = Layout.at(str(place_of(self._root, name)), self._options)
        try:
            return layout.of_store(read_manifest(layout).store_id)
        except (CorruptStoreError, FormatVersionError):
            return layout
        except StoreNotFoundError as error:
            self._changed = True
            if name in self._look.entries:
                return layout
            raise self._missing(name) from error

    def rename(self, name: str, new_name: str) -> None:
        """Give a store another name; its identity, versions and content stay.

        Raises:
            StoreNotFoundError: there is no store of this name.
            StoreExistsError: the new name is taken.
            StoreUnavailableError: it is being written or maintained; nothing was changed.
            StoreAccessError: it is on an object store, which has no rename: copy it, and delete it then.
        """
        layout = self._layout_of(name)
        rename(layout, self._free(new_name))
        self._changed = True

    def delete(self, name: str) -> None:
        """Delete a store with everything in its folder, for good.

        One that is damaged, or whose creation was cut short, goes too. On an object store only writers on
        this machine are noticed.

        Raises:
            StoreNotFoundError: there is no store of this name.
            StoreUnavailableError: it is being written or maintained; nothing was changed.
        """
        delete(self._layout_of(name))
        self._changed = True

    # Questions over all stores

    @property
    def episodes(self) -> pl.LazyFrame:
        """One row per episode of all stores, the name of its `store` in front; see `sql` for the columns."""
        return self._frame("episodes")

    @property
    def runs(self) -> pl.LazyFrame:
        """One row per run of all stores, with the name of its `store` in front."""
        return self._frame("runs")

    def _frame(self, table: str) -> pl.LazyFrame:
        look = self._look

        def read(text: str) -> pl.DataFrame:
            frame = look.answer(lambda each: each.read(text))
            look.warn(frame.columns, 1)
            return frame

        return lazy_table(read, table)

    def sql(
        self, text: str, parameters: Parameters | None = None, *, read_only: bool = False
    ) -> duckdb.DuckDBPyRelation:
        """Run a DuckDB query over `episodes` and `runs` of all stores, and `stores`.

        The tables have the column `store`, and all columns that some store has, NULL where one has not.
        Numbers of different types get the wider type. A column with types that have nothing in common is
        shown as text, and a warning names it, the stores, and how to choose. An annotation with the name
        `store` is `own_store`.

        Args:
            text, parameters, read_only: as for `EpisodeStore.sql`.

        Returns:
            A relation, computed when it is fetched; what goes wrong only then is a `duckdb.Error`.

        Raises:
            QueryError: the text is not valid, or no query; the message begins with the nearest names.
        """
        read_only = flag("read_only", read_only)
        relation = self._look.answer(lambda each: each.session(read_only=read_only).sql(text, parameters))
        self._look.warn([*relation.columns, *(c for _, c in self._look.lake.conflicts if c in text)], 2)
        return relation

    def find(self, condition: str, parameters: Parameters | None = None) -> pl.DataFrame:
        """Return the rows of `stores()` with episodes that fulfil a condition, and how many: `matches`.

        Args:
            condition: an SQL condition over `episodes`, such as "episode_return > 100".
            parameters: values of `?` or `$1` in it, in order, or of `$name`, by name.

        Raises:
            QueryError: the condition is not valid.
        """
        text = f"SELECT store, count(*) AS matches FROM episodes WHERE (\n{condition}\n) GROUP BY store"
        figures = self._look.answer(lambda each: each.session(read_only=False).query(text, parameters))
        self._look.warn([c for _, c in self._look.lake.conflicts if c in condition], 2)
        return self.stores().join(figures, on="store").sort("store")

    def _repr_html_(self) -> str:
        """Return a card for a notebook: its stores, without those of their columns that name folders."""
        stores = self.stores()
        errors = [] if stores["error"].is_null().all() else ["error"]
        shown = stores.select("store", "episodes", "steps", "env_ids", "updated", "bytes", *errors)
        with pl.Config(tbl_rows=40, tbl_cols=-1, fmt_str_lengths=80, tbl_hide_column_data_types=True):
            table = shown.with_columns(pl.col("env_ids").list.join(", "))._repr_html_()
        return (
            f"<p><code>{html.escape(repr(self))}</code></p>{table}"
            "<p><code>lake[name]</code> opens one, <code>lake.explore()</code> shows them all.</p>"
        )

    def __repr__(self) -> str:
        """Return where the lake is."""
        return f"Lake({self.url!r})"

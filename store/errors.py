"""The one tree of errors that Episodelake raises.

    EpisodelakeError
    ├── StoreNotFoundError      (FileNotFoundError)       no store at that path
    ├── StoreExistsError        (FileExistsError)         a store is already there
    ├── StoreAccessError        (OSError)                 no permission, a full disk
    │   └── StoreUnavailableError                         ... for now: no descriptors, EIO, a busy service
    ├── FormatVersionError                                a format that this version cannot read
    ├── CorruptStoreError                                 a file of the store is damaged or gone
    ├── VersionNotFoundError    (LookupError)             the store has no such version
    ├── EpisodeNotFoundError    (KeyError, IndexError)    the snapshot has no such episode
    ├── EpisodeTimeoutError     (TimeoutError)            no episode came in time
    ├── SpaceMismatchError      (ValueError)              a value does not fit its space
    ├── UnsupportedSpaceError   (TypeError)               a space has no columns
    ├── InvalidArgumentError    (ValueError)              an argument makes no sense
    ├── NothingToDrawError      (ValueError)              no picture can be made of this
    ├── QueryError              (ValueError)              a filter or an SQL text cannot be run
    ├── DatasetError            (ValueError)              a foreign dataset cannot be read, or not written
    ├── EnvUnavailableError     (RuntimeError)            a run's environment cannot be made again
    │   └── UntrustedEnvError                             ... without trusting the writer of the store
    ├── UnitNotFoundError       (IndexError)              a dataset has no unit of that number
    ├── MissingPackageError     (ImportError)             an optional package is not installed
    ├── LoaderStateError        (ValueError)              a loader's state belongs to another loader
    ├── RecorderStateError      (RuntimeError)            a call out of turn: a step before the reset
    ├── ComputationError        (RuntimeError)            a caller's function, or its process, failed
    └── ConcurrentCommitError                             another process won the race for a commit

Every error also is the built-in error in brackets, so that code which knows nothing of Episodelake
can catch it. A message says what was wrong, where and what was expected; what to do in Python is the
error's `hint`, with which its text ends.
This module stands below everything else and imports nothing.
"""

from __future__ import annotations


class EpisodelakeError(Exception):
    """The root of the tree: everything that Episodelake raises on purpose is one of these.

    Args:
        args: the message; a subclass of `OSError` may take more, as `OSError` does.
        hint: what to do in Python. The text of the error ends with it.
    """

    def __init__(self, *args: object, hint: str = "") -> None:
        super().__init__(*args)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem} {self.hint}" if self.hint else self.problem

    @property
    def problem(self) -> str:
        """The text without the hint, for programs that give advice of their own."""
        # KeyError shows the repr of its argument, which would put a sentence in quotes.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class StoreNotFoundError(EpisodelakeError, FileNotFoundError):
    """There is no store at the path that was given."""


class StoreExistsError(EpisodelakeError, FileExistsError):
    """The place for a new store already holds one; nothing was changed."""


class StoreAccessError(EpisodelakeError, OSError):
    """The system refused to read or write the store: permission, a full disk, a lost link."""

    #: Whether the change was made all the same, and could not be made durable.
    unsynced = False


class StoreUnavailableError(StoreAccessError):
    """The store cannot be reached for now: no free file descriptors or memory, a disk or connection in
    trouble, a busy service.

    Nothing is known to be damaged, and nothing was treated as damaged: call again. The error of the system,
    or of the library that met it, is its `__cause__`.
    """


class MissingFileError(StoreAccessError, FileNotFoundError):
    """A file is missing. It is not public: callers catch `StoreAccessError`."""


class FileTakenError(StoreAccessError, FileExistsError):
    """The name of a new file is taken. It is not public: callers catch `StoreAccessError`."""


class FormatVersionError(EpisodelakeError):
    """The store was written in a format that this version of Episodelake does not read."""


class CorruptStoreError(EpisodelakeError):
    """A file of the store is damaged, was changed by hand, or is gone; the message names the file.

    Damaged means that its bytes were read and contradict their checksum or format. What could not be read is
    a `StoreAccessError`.
    """


class VersionNotFoundError(EpisodelakeError, LookupError):
    """The store has no version of that number, or its files were vacuumed."""


class EpisodeNotFoundError(EpisodelakeError, KeyError, IndexError):
    """The snapshot shows no episode with that id or at that position.

    It is both a `KeyError` (for ids) and an `IndexError` (for positions), so a loop over positions
    that waits for `IndexError` ends as it should.
    """


class EpisodeTimeoutError(EpisodelakeError, TimeoutError):
    """A loader that follows a store waited for an episode, and none came in the time that it was given."""


class SpaceMismatchError(EpisodelakeError, ValueError):
    """A value does not fit its space; the message names the column, and the expected and got dtype and shape.

    It is raised before anything of the step is written; the episode up to there is kept.
    """


class UnsupportedSpaceError(EpisodelakeError, TypeError):
    """A space cannot be stored in columns, and no codec is registered for it."""


class InvalidArgumentError(EpisodelakeError, ValueError):
    """An argument is outside its range."""


class NothingToDrawError(EpisodelakeError, ValueError):
    """No picture can be drawn: there are no episodes, images instead of numbers, or no frames to show."""


class QueryError(EpisodelakeError, ValueError):
    """A filter or an SQL text cannot be run; the message names the columns that are available."""


class DatasetError(EpisodelakeError, ValueError):
    """A dataset of another library has no known format, is damaged, or cannot hold what was exported.

    The message names the file and the row or episode.
    """


class EnvUnavailableError(EpisodelakeError, RuntimeError):
    """The environment of a run cannot be made again here; the message names all that is missing."""


class UntrustedEnvError(EnvUnavailableError):
    """Making the environment of a run would let the store choose code or paths; the message says which."""


class UnitNotFoundError(EpisodelakeError, IndexError):
    """No unit of that number in a dataset."""


class MissingPackageError(EpisodelakeError, ImportError):
    """A package is not installed, or one that adds a format cannot be used; the message says what to do."""


class LoaderStateError(EpisodelakeError, ValueError):
    """Loader state of another store, version or configuration."""


class RecorderStateError(EpisodelakeError, RuntimeError):
    """A call came out of turn: a step before the first reset, or a step after the end of the episode."""


class ComputationError(EpisodelakeError, RuntimeError):
    """A function of the caller failed in an episode, or a process that ran it died; nothing was committed."""


class ConcurrentCommitError(EpisodelakeError):
    """Other processes won the race for a commit too many times; nothing of this commit is visible."""


class DamagedJournalError(CorruptStoreError):
    """Journal bytes that contradict the format: the only reason to set a journal aside."""


def replaced_error(root: object) -> StoreNotFoundError:
    """Return the error for a place that holds another store than the one that was opened, or none."""
    return StoreNotFoundError(
        f"{root} no longer holds the store that was opened there: it was deleted, replaced by another store, "
        "or restored from an older copy. Nothing was committed. Open it again to use what is there now."
    )

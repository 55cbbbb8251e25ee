"""The errors that Episodelake raises; each is an `EpisodelakeError` and the matching built-in error."""

from .store.errors import ComputationError as ComputationError
from .store.errors import ConcurrentCommitError as ConcurrentCommitError
from .store.errors import CorruptStoreError as CorruptStoreError
from .store.errors import DatasetError as DatasetError
from .store.errors import EnvUnavailableError as EnvUnavailableError
from .store.errors import EpisodelakeError as EpisodelakeError
from .store.errors import EpisodeNotFoundError as EpisodeNotFoundError
from .store.errors import EpisodeTimeoutError as EpisodeTimeoutError
from .store.errors import FormatVersionError as FormatVersionError
from .store.errors import InvalidArgumentError as InvalidArgumentError
from .store.errors import LoaderStateError as LoaderStateError
from .store.errors import MissingPackageError as MissingPackageError
from .store.errors import NothingToDrawError as NothingToDrawError
from .store.errors import QueryError as QueryError
from .store.errors import RecorderStateError as RecorderStateError
from .store.errors import SpaceMismatchError as SpaceMismatchError
from .store.errors import StoreAccessError as StoreAccessError
from .store.errors import StoreExistsError as StoreExistsError
from .store.errors import StoreNotFoundError as StoreNotFoundError
from .store.errors import StoreUnavailableError as StoreUnavailableError
from .store.errors import UnitNotFoundError as UnitNotFoundError
from .store.errors import UnsupportedSpaceError as UnsupportedSpaceError
from .store.errors import UntrustedEnvError as UntrustedEnvError
from .store.errors import VersionNotFoundError as VersionNotFoundError

__all__ = sorted(name for name in globals() if name.endswith("Error"))  # pyright: ignore[reportUnsupportedDunderAll]

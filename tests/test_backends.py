"""The same tests for every kind of place that a store can lie in."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import episodelake as el
from conformance import (
    Backend,
    Conformance,
    DetailsConformance,
    FolderBackend,
    MaintenanceConformance,
    ObjectBackend,
)
from object_server import shared_server
from real_environments import NUMBERED_SPACES

_names = itertools.count()


class Local:
    """A folder of the file system."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        """An empty folder."""
        return FolderBackend(tmp_path)


class Memory:
    """A folder in memory."""

    @pytest.fixture
    def backend(self) -> Backend:
        """A name that no other test uses."""
        url = f"memory://conformance-{next(_names)}"
        probe = el.create(f"{url}/probe", **NUMBERED_SPACES)
        return FolderBackend(probe.path.parent, url)


class Objects:
    """A bucket of an S3 server."""

    @pytest.fixture
    def backend(self) -> Backend:
        """A prefix that no other test uses."""
        return ObjectBackend(shared_server())


class TestLocal(Local, Conformance):
    """A folder of the file system."""


class TestMemory(Memory, Conformance):
    """A folder in memory."""


class TestObjects(Objects, Conformance):
    """A bucket of an S3 server."""


@pytest.mark.further
class TestLocalMaintenance(Local, MaintenanceConformance):
    """A folder of the file system."""


@pytest.mark.slow
class TestMemoryMaintenance(Memory, MaintenanceConformance):
    """A folder in memory, which is kept as a local one is."""


@pytest.mark.slow
class TestObjectsMaintenance(Objects, MaintenanceConformance):
    """A bucket of an S3 server."""


@pytest.mark.further
class TestLocalDetails(Local, DetailsConformance):
    """A folder of the file system."""


@pytest.mark.slow
class TestMemoryDetails(Memory, DetailsConformance):
    """A folder in memory."""


@pytest.mark.slow
class TestObjectsDetails(Objects, DetailsConformance):
    """A bucket of an S3 server."""

"""Files that are written, damaged and read again, in memory."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults import FaultyDisk
from tests.in_memory import tmp_path
from tests.storage import logs

__all__ = ["every_file_closed", "tmp_path"]


@pytest.fixture
def every_file_closed(tmp_path: Path) -> Iterator[None]:
    """A test that asks for this leaves no file open in its directory, once its logs are closed."""
    logs.opened.clear()
    yield
    for wal in logs.opened:
        if isinstance(wal.disk, FaultyDisk):
            wal.disk.heal()
        wal.close()
    logs.opened.clear()
    assert [path for path in _open_files() if path.startswith(str(tmp_path))] == []


def _open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        # The list itself was one of them.
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{number}")

"""Databases for the tests of the embedded API, closed when their test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics
from topics.model.settings import Settings

OpenDatabase = Callable[..., topics.Database]


@pytest.fixture
def open_db(tmp_path: Path) -> Iterator[OpenDatabase]:
    """Opens (again) the database in the test's directory, by settings."""
    opened: list[topics.Database] = []

    def open_one(name: str = "data", **settings: Any) -> topics.Database:
        settings.setdefault("wal_file_bytes", 1 << 20)
        opened.append(topics.open(str(tmp_path / name), Settings(**settings)))
        return opened[-1]

    yield open_one
    for db in opened:
        db.close()


@pytest.fixture
def db(open_db: OpenDatabase) -> topics.Database:
    return open_db()

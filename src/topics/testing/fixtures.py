"""Fixtures for pytest. In a conftest.py: `from topics.testing.fixtures import topics_client, topics_engine`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topics.client import Client
from topics.testing.engine import Engine, engine


@pytest.fixture
def topics_engine() -> Iterator[Engine]:
    """A new engine for each test."""
    with engine() as opened:
        yield opened


@pytest.fixture
def topics_client(topics_engine: Engine) -> Client:
    return topics_engine.client()

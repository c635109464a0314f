"""A server whose clock stands still, and a topic in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topics.client import Client
from topics.testing import Engine, engine


@pytest.fixture
def rig() -> Iterator[Engine]:
    with engine() as rig:
        yield rig


@pytest.fixture
def client(rig: Engine) -> Client:
    client = rig.client()
    client.create("t")
    return client

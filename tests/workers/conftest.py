"""A client of the common server, and a queue of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.serving import ServerProcess
from topics.client import Client
from topics.testing.fixtures import topics_client, topics_engine

__all__ = ["topics_client", "topics_engine"]

_numbers = itertools.count(1)


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    name = f"w{next(_numbers)}"
    client.create(name, type="queue")
    return name

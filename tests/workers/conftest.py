"""A live server for the tests of this folder, a client of it, and a queue of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.serving import ServerProcess, serving
from topics.client import Client
from topics.testing.fixtures import topics_client, topics_engine

__all__ = ["topics_client", "topics_engine"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    name = f"q{next(_numbers)}"
    client.create(name, type="queue")
    return name

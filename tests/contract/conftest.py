"""A connection to the common server, and a topic name of its own for each test."""

import itertools
from collections.abc import Iterator

import pytest

from tests.serving import Client, ServerProcess

_numbers = itertools.count(1)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t{next(_numbers)}"

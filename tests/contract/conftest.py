"""One server for all tests that need nothing special, and a topic name of its own for each."""

import itertools
from collections.abc import Iterator

import pytest

from tests.serving import Client, ServerProcess, serving

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """No keys, on loopback, all defaults."""
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t{next(_numbers)}"

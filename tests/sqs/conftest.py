"""A wire to the shared server, which has no keys."""

from collections.abc import Iterator

import pytest

from tests.serving import Client, ServerProcess
from tests.sqs.wire import Wire


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def wire(client: Client) -> Wire:
    return Wire(client)

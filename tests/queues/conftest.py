"""Hand-driven queues for the tests of this folder, each put away when its test is over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.in_memory import tmp_path
from tests.queues.queue_rig import QueueRig
from tests.serving import Client, ServerProcess

__all__ = ["tmp_path"]

OpenRig = Callable[..., QueueRig]


@pytest.fixture
def open_rig(tmp_path: Path) -> Iterator[OpenRig]:
    """Opens a rig by settings; every one gets a directory of its own."""
    rigs: list[QueueRig] = []

    def open_one(**settings: object) -> QueueRig:
        rigs.append(QueueRig(tmp_path / f"data{len(rigs)}", **{"wal_file_bytes": 1 << 16, **settings}))
        return rigs[-1]

    yield open_one
    for rig in rigs:
        rig.abandon()


@pytest.fixture
def rig(open_rig: OpenRig) -> QueueRig:
    return open_rig()


_numbers = itertools.count(1)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def queue(client: Client) -> str:
    """A queue of its own for each test."""
    name = f"q{next(_numbers)}"
    assert client.put(f"/v0/topics/{name}", {"type": "queue"}).status == 201
    return name

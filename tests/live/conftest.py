"""A watcher of the common server, and names that no other test uses."""

import itertools
from collections.abc import Iterator

import pytest

from tests.live.rig import Watcher, watching
from tests.serving import Client, ServerProcess


@pytest.fixture
def watcher(server: ServerProcess) -> Iterator[Watcher]:
    with watching(server) as watcher:
        yield watcher


@pytest.fixture
def client(watcher: Watcher) -> Client:
    return watcher.client


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def topic(numbers: Iterator[int]) -> str:
    return f"live-{next(numbers)}"


@pytest.fixture
def other(numbers: Iterator[int]) -> str:
    return f"live-{next(numbers)}"

"""A live server, clients of either half, and an embedded database: a test that takes `client` runs for all three.

Tests that make clients by themselves, or are marked `needs_server`, run for the two halves only.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import topics
from tests.client.driving import Loop, driven
from tests.groups.consumers import quick_hash
from tests.serving import ServerProcess, serving
from topics.client import Client

_numbers = itertools.count(1)
SECRET = "a secret of at least thirty-two characters"
Connect = Callable[..., Any]


@pytest.fixture(scope="session")
def users() -> str:
    hashed = quick_hash("opensesame")
    return f"ada:service:{hashed},root:system:{hashed}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, users: str) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), jwt_secret=SECRET, users=users) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that asks for keys, and has room for two topics."""
    keys = "full,reader:read"
    with serving(tmp_path_factory.mktemp("data"), api_keys=keys, max_topics=2) as server:
        yield server


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[topics.Database]:
    with topics.open(str(tmp_path_factory.mktemp("embedded"))) as database:
        yield database


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "half" not in metafunc.fixturenames:
        return
    halves = ["sync", "async"]
    own_clients = {"connect", "url", "server"} & set(inspect.signature(metafunc.function).parameters)
    marked = metafunc.definition.get_closest_marker("needs_server") is not None
    if "client" in metafunc.fixturenames and not own_clients and not marked:
        halves.append("embedded")
    metafunc.parametrize("half", halves)


@pytest.fixture
def connect(half: str) -> Iterator[Connect]:
    """Makes clients of one half; they are closed when the test ends."""
    loop = Loop() if half == "async" else None
    opened: list[Any] = []

    def connected(url: str, *given: Any, **named: Any) -> Any:
        opened.append(Client(url, *given, **named) if loop is None else driven(loop, url, *given, **named))
        return opened[-1]

    yield connected
    for client in opened:
        client.close()
    if loop is not None:
        loop.close()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried at once."""

    async def at_once(seconds: float) -> None:
        pass

    monkeypatch.setattr("topics.client.aio.wire.primitives.sleep", at_once)
    monkeypatch.setattr("topics.client.sync.wire.primitives.sleep", lambda seconds: None)


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(half: str, connect: Connect, request: pytest.FixtureRequest) -> Any:
    if half == "embedded":
        return request.getfixturevalue("database")
    return connect(request.getfixturevalue("url"))


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"

"""A server that takes tokens, with a user to log in, and consumers with a topic of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.engine.conftest import open_rig, rig  # noqa: F401 - fixtures
from tests.groups.consumers import SECRET, Consumer, quick_hash, token
from tests.serving import Client, ServerProcess, serving

_numbers = itertools.count(1)

NewConsumer = Callable[..., Consumer]


@pytest.fixture(scope="session")
def users() -> str:
    hashed = quick_hash("opensesame")
    return f"ada:service:{hashed},root:system:{hashed},guest:user:{hashed},tenant:service:{hashed}:acme."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, users: str) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), jwt_secret=SECRET, users=users) as server:
        yield server


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Claims last a second here."""
    with serving(tmp_path_factory.mktemp("data"), jwt_secret=SECRET, visibility_timeout_secs=1) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    """Without any token: /v0 is open."""
    return server.stranger()


@pytest.fixture
def topic() -> str:
    return f"app.events{next(_numbers)}"


@pytest.fixture
def consumer(server: ServerProcess, topic: str) -> Consumer:
    return Consumer(server.client(token()), topic)


@pytest.fixture
def another(server: ServerProcess, topic: str) -> Consumer:
    return Consumer(server.client(token()), topic)

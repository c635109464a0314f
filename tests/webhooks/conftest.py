"""A receiver for a test, an engine whose messages the test answers, and a server that may send to this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.serving import ServerProcess, serving
from tests.webhooks.receiver import Receiver, receiving
from topics.client import Client
from topics.engine.webhooks.messages import Message, Outcome
from topics.testing import Engine, engine

URL = "https://hooks.example.org/in?a=1"


class Hand:
    """The hand that answers: messages wait in `waiting` until the test says what came of them."""

    def __init__(self, rig: Engine) -> None:
        self.rig = rig
        self.sent: list[Message] = []
        self.waiting: list[tuple[Message, Callable[[Outcome], None]]] = []
        self.start()

    def start(self) -> None:
        """Also after each start of the engine."""
        self.waiting.clear()
        self.rig._server.store.dispatcher.start(self._post)
        self.rig.advance(0)

    def _post(self, message: Message, done: Callable[[Outcome], None]) -> None:
        self.sent.append(message)
        self.waiting.append((message, done))

    def answer(self, status: int = 200, *, index: int = 0, **outcome: Any) -> Message:
        message, done = self.waiting.pop(index)
        done(Outcome(5, status, **outcome))
        self.rig.advance(0)
        return message

    def answer_all(self) -> None:
        while self.waiting:
            self.answer()

    @property
    def ids(self) -> list[str]:
        """Of the messages that wait."""
        return [seq_of(message) for message, _ in self.waiting]


def seq_of(message: Message) -> Any:
    return int(dict(message.headers)["webhook-id"].rpartition("-")[2])


@pytest.fixture
def rig() -> Iterator[Engine]:
    with engine() as found:
        yield found


@pytest.fixture
def client(rig: Engine) -> Client:
    client = rig.client()
    client.create("t")
    return client


@pytest.fixture
def hand(rig: Engine) -> Hand:
    return Hand(rig)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose webhooks may reach this machine."""
    with serving(tmp_path_factory.mktemp("data"), webhooks_allow="127.0.0.0/8") as server:
        yield server

"""A server with its client, and an embedded database: a test that takes `verbs` runs against both."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import topics
from tests.patience import PATIENCE_S

_numbers = itertools.count(1)
WAIT_S = PATIENCE_S


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[topics.Database]:
    with topics.open(str(tmp_path_factory.mktemp("embedded"))) as database:
        yield database


@pytest.fixture(params=["server", "embedded"])
def verbs(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Typed as Any: that both have the same verbs is what is tested."""
    if request.param == "embedded":
        yield request.getfixturevalue("database")
        return
    with topics.Client(f"http://127.0.0.1:{request.getfixturevalue('server').port}") as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Any]], Future]]:
    """Runs something in a thread of its own."""
    running: list[Future] = []

    def start(work: Callable[[], Any]) -> Future:
        running.append(Future(work))
        return running[-1]

    yield start
    for future in running:
        future.join()


class Future:
    """What a thread is doing; an exception in it is raised where its result is asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it still waits"

    def result(self) -> Any:
        self.join()
        if self._error is not None:
            raise self._error
        return self._result

"""Apps in a thread of their own, and what tests ask of them and of their queues."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from tests.patience import PATIENCE_S
from topics.client import Client
from topics.client.values import QueueCounters
from topics.workers import App

# Only a failure takes that long: no test depends on the machine being quick.
WAIT_S_MAX = PATIENCE_S


class Running:
    """`app.serve()` in a thread, from the moment it claims."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(WAIT_S_MAX)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # noqa: BLE001 - raised again in `end`
            self._error = error

    async def _main(self) -> None:
        serving = asyncio.ensure_future(self._app.serve())
        await asyncio.sleep(0)
        self._started.set()
        await serving

    def stop(self) -> None:
        self._app.stop()

    def end(self) -> None:
        """Wait for the end; what ended it, if it was an error."""
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive(), "the app did not end"
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def running(app: App) -> Iterator[Running]:
    one = Running(app)
    try:
        yield one
    finally:
        one.stop()
        one.end()


def counters(client: Client, queue: str) -> QueueCounters:
    found = client.state(queue).queue
    assert found is not None
    return found


def eventually(condition: Callable[[], bool], what: object = "") -> None:
    give_up_s = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.005)


def empty(client: Client, queue: str) -> None:
    """Until every job of the queue is done."""
    eventually(lambda: client.state(queue).count == 0, "jobs are left")


def wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S_MAX)

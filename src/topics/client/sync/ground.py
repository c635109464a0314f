"""What the synchronous half stands on: sleeping, waiting, and running beside. `aio/ground.py` is its twin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.client.errors import Timeout

if TYPE_CHECKING:
    import httpx2

Condition = threading.Condition
Event = threading.Event
Lock = threading.Lock


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def open_http(base_url: str, timeout: httpx2.Timeout, limits: httpx2.Limits) -> httpx2.Client:
    import httpx2

    headers = {"Accept-Encoding": "identity"}
    return httpx2.Client(
        base_url=base_url, timeout=timeout, limits=limits, headers=headers, trust_env=False, follow_redirects=False
    )


def wait(condition: Condition, seconds: float | None) -> None:
    """Until the condition is notified or the time is over; the caller holds it."""
    condition.wait(seconds)


def wait_event(event: Event, seconds: float | None) -> None:
    """Until it is set; raises Timeout if that takes longer."""
    if not event.wait(seconds):
        raise Timeout(f"not done within {seconds:g} s")


class Runner:
    """Something that runs beside the caller until it ends by itself."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="topics-client", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

"""The sender: posts the messages of webhooks, a task for each that is under way, and tells what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import time
from collections.abc import Callable
from typing import Final

from topics.api.lifecycle import VERSION
from topics.engine.webhooks.dispatcher import Dispatcher
from topics.engine.webhooks.messages import Message, Outcome
from topics.http.outgoing.post_client import NotSent, Place, PostClient, Resolve
from topics.model.webhooks.addresses import AddressPolicy

ERROR_CHARS_MAX: Final = 300
# How long the log may take for the last outcomes at the end.
NOTED_S_MAX: Final = 5.0


class Sender:
    def __init__(self, loop: asyncio.AbstractEventLoop, policy: AddressPolicy, resolve: Resolve | None = None) -> None:
        self._loop = loop
        self._client = PostClient(policy.allows, resolve)
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, message: Message, done: Callable[[Outcome], None]) -> None:
        task = self._loop.create_task(self._post(message, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, grace_s: float, dispatcher: Dispatcher) -> None:
        """Send nothing more, wait for what is under way, end it if it takes too long, and have it noted in the log."""
        noted = asyncio.Event()
        dispatcher.stop(noted.set)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NOTED_S_MAX):
                await noted.wait()
        self._client.close()

    async def _post(self, message: Message, done: Callable[[Outcome], None]) -> None:
        started_s = time.monotonic()
        status, error, retry_after_ms, start = 0, "", 0, b""
        try:
            target = message.target
            place = Place(target.tls, target.host, target.port)
            answer = await self._client.post(place, _request(message), message.timeout_ms / 1000)
            status, start = answer.status, answer.start
            retry_after_ms = _retry_after_ms(answer.retry_after)
        except NotSent as failure:
            error = str(failure)[:ERROR_CHARS_MAX]
        except asyncio.CancelledError:
            done(Outcome(0, cancelled=True))
            return
        except Exception as failure:  # noqa: BLE001 - whatever is wrong with one receiver must not stop the others
            error = f"{type(failure).__name__}: {failure}"[:ERROR_CHARS_MAX]
        done(Outcome(round((time.monotonic() - started_s) * 1000), status, error, retry_after_ms, start))


def _request(message: Message) -> bytes:
    headers = {
        "host": message.target.authority,
        "user-agent": f"topics/{VERSION}",
        "accept": "*/*",
        "content-length": str(len(message.body)),
        **{name.lower(): value for name, value in message.headers},
    }
    lines = [f"POST {message.target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + message.body


def _retry_after_ms(text: str) -> int:
    """Seconds, or a date; 0 if it is neither, or is over."""
    if text.isascii() and text.isdigit():
        return int(text[:9]) * 1000
    try:
        at_s = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0
    return max(0, round((at_s - time.time()) * 1000))

"""The health endpoint of an app: whether it is alive, whether it gets jobs, and what it has done.

GET /healthz   200 while the process runs its loop
GET /readyz    200 if every queue was reached by its last claim; 503 before that, without a server, and while stopping
GET /metrics   counters in the text format of Prometheus
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from topics.workers.job import Counts

REQUEST_BYTES_MAX: Final = 8 * 1024
REQUEST_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 64
_ADDRESS: Final = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[^\]]+\]):)?(?P<port>\d{1,5})")
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class QueueHealth(NamedTuple):
    """One queue of the app: slots, running handlers, finished deliveries and their time, whether the server answers."""

    queue: str
    slots: int
    running: int
    handled: int
    handler_s: float
    reached: bool


class AppHealth(NamedTuple):
    stopping: bool
    counts: Counts
    queues: list[QueueHealth]

    @property
    def problem(self) -> str:
        """Why it is not ready; empty if it is."""
        if self.stopping:
            return "stopping"
        away = [each.queue for each in self.queues if not each.reached]
        return f"not reached: {', '.join(away)}" if away else ""


def address_of(text: str) -> tuple[str, int]:
    """`port` or `host:port`; without a host only this machine can ask."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError(f"health must be a port or host:port, not {text!r}")
    return (found["host"] or "127.0.0.1").strip("[]"), int(found["port"])


class HealthServer:
    """Answers one small request per connection; anything else is refused."""

    def __init__(self, look: Callable[[], AppHealth]) -> None:
        self._look = look
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._answer, host, port, limit=REQUEST_BYTES_MAX)
        return self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S_MAX):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._reply(head))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _reply(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path not in (b"/healthz", b"/readyz", b"/metrics"):
            return _rendered(404, "not found\n", method)
        if method not in (b"GET", b"HEAD"):
            return _rendered(405, "only GET and HEAD\n", method)
        found = self._look()
        if path == b"/metrics":
            return _rendered(200, "".join(f"{line}\n" for line in _metrics(found)), method)
        problem = found.problem if path == b"/readyz" else ""
        return _rendered(503 if problem else 200, f"{problem or 'ok'}\n", method)


def _rendered(status: int, text: str, method: bytes) -> bytes:
    reason = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}[status]
    body = text.encode()
    lines = (
        f"HTTP/1.1 {status} {reason}",
        f"Content-Type: {_TEXT}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    head = "\r\n".join((*lines, "", ""))
    return head.encode() + (b"" if method == b"HEAD" else body)


def _metrics(found: AppHealth) -> Iterator[str]:
    counts = found.counts
    yield "# HELP topics_worker_jobs_total Outcomes that the server has accepted."
    yield "# TYPE topics_worker_jobs_total counter"
    for outcome in Counts.__slots__:
        yield f'topics_worker_jobs_total{{outcome="{outcome}"}} {getattr(counts, outcome)}'
    families: tuple[tuple[str, str, str, Callable[[QueueHealth], float]], ...] = (
        ("topics_worker_ready", "gauge", "1 if the last claim reached the queue.", lambda one: int(one.reached)),
        ("topics_worker_slots", "gauge", "Handlers that may run at a time.", lambda one: one.slots),
        ("topics_worker_running", "gauge", "Handlers that run.", lambda one: one.running),
        ("topics_worker_deliveries_total", "counter", "Deliveries that were handled.", lambda one: one.handled),
        ("topics_worker_handler_seconds_total", "counter", "Time in handlers.", lambda one: round(one.handler_s, 6)),
    )
    for name, kind, text, value in families:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        for one in found.queues:
            yield f'{name}{{queue="{one.queue}"}} {value(one)}'

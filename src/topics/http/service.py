"""What all connections of a listener share: limits, handler, tick, the list of them, memory budget, gzip thread."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from topics.http.budget import MemoryBudget
from topics.http.closing import Closing
from topics.http.connections import Connections
from topics.http.limits import HttpLimits
from topics.http.loop.pace import Pace
from topics.http.loop.slices import Slices
from topics.http.loop.tick import Tick
from topics.http.loop.watchdog import Watchdog
from topics.http.refusal import Detail, Refusal
from topics.http.reply_head import Heads
from topics.http.request import Body, Header, Request

log = logging.getLogger("topics.http")

Handle = Callable[[Request], None]
# Called with each reply before it is sent: status, body (None: a stream), headers; returns the headers to send.
OnReply = Callable[[Request, int, Body | None, Sequence[Header]], Sequence[Header]]
RenderError = Callable[[int, str, str, Detail | None], bytes]
OnBug = Callable[[Request, BaseException], str]


def log_bug(request: Request, exc: BaseException) -> str:
    """The line that an operator looks for when a client reports a trace id."""
    trace_id = secrets.token_hex(8)
    log.error("bug %s in %s %r", trace_id, request.method, request.raw_path, exc_info=exc)
    return trace_id


class Service:
    """Collaborators of a connection, in one object because thousands of connections refer to it."""

    __slots__ = (
        "_gzip_thread",
        "_stopped",
        "_work_clock",
        "budget",
        "closing",
        "connections",
        "digest_key",
        "draining",
        "handle",
        "handled_s",
        "handled_total",
        "heads",
        "limits",
        "loop",
        "on_bug",
        "on_empty",
        "on_head",
        "on_reply",
        "pace",
        "refused_total",
        "render_error",
        "slices",
        "tick",
        "watchdog",
    )

    def __init__(
        self,
        handle: Handle,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: HttpLimits,
        clock: Callable[[], float],
        render_error: RenderError,
        on_bug: OnBug,
        on_head: Handle | None,
        on_reply: OnReply | None = None,
        work_clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`clock` is for time limits of clients, `work_clock` for how long handlers take."""
        self.handle = handle
        self.loop = loop
        self.limits = limits
        self.render_error = render_error
        self.on_bug = on_bug
        self.on_head = on_head
        self.on_reply = on_reply
        self.watchdog = Watchdog()
        self.pace = Pace(loop)
        self.slices = Slices(loop, clock, self.watchdog)
        self.tick = Tick(loop, self.watchdog, self.pace, work_clock)
        self._work_clock = work_clock
        self.closing = Closing(loop)
        self.connections = Connections(loop, clock)
        self.heads = Heads(time.time)
        self.connections.on_turn(self.heads.refresh)
        self.budget = MemoryBudget(limits.large_bodies_bytes_max)
        # for digests of secrets that must not be kept
        self.digest_key = secrets.token_bytes(32)
        self.draining = False
        # connections refused because too many were open
        self.refused_total = 0
        # requests that a handler has seen, and the time that handlers took
        self.handled_total = 0
        self.handled_s = 0.0
        self.on_empty: Callable[[], None] | None = None
        self._gzip_thread: ThreadPoolExecutor | None = None
        self._stopped = False

    def run_handler(self, request: Request) -> None:
        """Call the handler; an error that it raises becomes a reply, never a lost connection."""
        began_s = request.received_s = self._work_clock()
        try:
            self.handle(request)
        except Exception as exc:  # noqa: BLE001  (a handler's bug must not reach other requests)
            self._reply_failure(request, exc)
        ended_s = self._work_clock()
        took_s = ended_s - began_s
        if ended_s >= self.tick.full_s:
            self.tick.crowded = True
        self.handled_total += 1
        self.handled_s += took_s
        if took_s > self.watchdog.slowest_s:
            self.watchdog.ran(request, took_s)

    def check_head(self, request: Request) -> bool:
        """Let the server refuse by the head alone; False if it has replied: the body must not be read."""
        if self.on_head is not None:
            try:
                self.on_head(request)
            except Exception as exc:  # noqa: BLE001  (a handler's bug must not reach other requests)
                self._reply_failure(request, exc)
        return not request.answered

    def connection_left(self) -> None:
        if self.on_empty is not None and not len(self.connections):
            self.on_empty()

    def stop(self) -> None:
        self._stopped = True
        self.connections.stop()
        if self._gzip_thread is not None:
            self._gzip_thread.shutdown(wait=False, cancel_futures=True)

    def _reply_failure(self, request: Request, exc: Exception) -> None:
        if isinstance(exc, Refusal) and not request.answered:
            request.reply_refusal(exc)
            return
        trace_id = self.on_bug(request, exc)
        if not request.answered:
            request.reply_error(
                500,
                "internal",
                "a bug in the server, see its log",
                {"trace_id": trace_id},
            )

    def in_thread(self, work: Callable[[], bytes], done: Callable[[bytes | Refusal], None]) -> None:
        """Run gzip work on the thread and return to the loop; not after `stop`, when every connection is aborted."""
        if self._stopped:
            return
        if self._gzip_thread is None:
            self._gzip_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="topics-gzip")

        def back(future: asyncio.Future[bytes]) -> None:
            if future.cancelled():
                return
            failure = future.exception()
            if failure is None:
                done(future.result())
            elif isinstance(failure, Refusal):
                done(failure)
            else:
                raise failure

        self.loop.run_in_executor(self._gzip_thread, work).add_done_callback(back)

"""Requests as the log shows them: one line each, or one of many, slow ones always; never a payload, never a key.

request ─▶ ObservedApi: its call is noted ─▶ handler ─▶ reply ─▶ RequestLog: a line, `X-Request-Id` for the client
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

from topics.api.app import Api
from topics.api.call import Call
from topics.api.cors import Cors
from topics.api.logs.lines import BufferedLines
from topics.api.logs.spans import RequestSpans
from topics.http.reply_head import as_parts, body_length
from topics.http.request import Body, Header, Request
from topics.http.service import OnReply
from topics.model.requests.groups import wait_ms

LOGGER: Final = "topics.access"
PATH_CHARS_MAX = 256


class ObservedApi(Api):
    """Notes with a request which call it has become. The usual API does not, and spends no time on it."""

    spans: RequestSpans | None = None

    def _call(self, request: Request) -> Call:
        call = super()._call(request)
        request.observed = Observed(call, None if self.spans is None else self.spans.begin(request, call))
        return call


class Observed(NamedTuple):
    """A request under way: its call, and its span if requests are traced."""

    call: Call
    span: Any


class RequestLog:
    """One line for each reply, as far as settings ask for it."""

    def __init__(self, lines: BufferedLines, *, every: int, slow_ms: int, spans: RequestSpans | None = None) -> None:
        """`every`: log one request of that many, 0 for none; `slow_ms`: log requests that take longer, 0 for none."""
        self._lines = lines
        self._every = every
        self._slow_ms = slow_ms
        self._spans = spans
        self._count = 0
        # Ids of requests whose clients gave none: unique beyond this process.
        self._prefix = os.urandom(4).hex()

    def replied(self, request: Request, status: int, body: Body | None, headers: Sequence[Header]) -> Sequence[Header]:
        observed, request.observed = request.observed, None
        asked, span = observed if isinstance(observed, Observed) else (None, None)
        if span is not None and self._spans is not None:
            self._spans.end(span, status)
        self._count += 1
        given = request.ids.request_id.decode() if request.ids is not None else ""
        request_id = given or f"{self._prefix}-{self._count:x}"
        took_ms = (perf_counter() - request.received_s) * 1000 if request.received_s else 0.0
        slow = 0 < self._slow_ms <= took_ms - _asked_wait_ms(asked) and (asked is None or not asked.bound.long_lived)
        if slow or (self._every and (status >= 500 or self._count % self._every == 0)):
            self._log(request, asked, status, body, took_ms, request_id, slow=slow)
        return headers if given else ((b"X-Request-Id", request_id.encode()), *headers)

    def _log(
        self,
        request: Request,
        call: Call | None,
        status: int,
        body: Body | None,
        took_ms: float,
        request_id: str,
        *,
        slow: bool,
    ) -> None:
        route = call.bound.route.path if call is not None else ""
        fields: dict[str, object] = {
            "method": request.method,
            "route": route or None,
            "path": request.raw_path[:PATH_CHARS_MAX].decode("ascii", "backslashreplace"),
            "status": status,
            "bytes_in": len(request.body),
            # of a stream, its opening is logged
            "bytes_out": None if body is None else body_length(as_parts(body)),
            "ms": round(took_ms, 3),
            "key": _who(call),
            "request_id": request_id,
        }
        if request.ids is not None and request.ids.traceparent:
            fields["trace_id"] = request.ids.traceparent.split(b"-")[1].decode()
        sent = "stream" if body is None else f"{fields['bytes_out']} B"
        message = (
            f"{'slow: ' if slow else ''}{request.method} {fields['path']} {status} {sent} {took_ms:.1f} ms "
            f"key={fields['key'] or '-'} id={request_id}"
        )
        self._lines.add(logging.WARNING if slow else logging.INFO, LOGGER, message, fields)


def _who(call: Call | None) -> str | None:
    """The number of the key in `TOPICS_API_KEYS`, or the user of a token; never the secret."""
    if call is None:
        return None
    principal = call.principal
    subject = str(principal.number) if principal.number else getattr(principal, "subject", None)
    # Whoever issues tokens may let users choose their names: none of them breaks a line, or moves a terminal's cursor.
    return subject if subject is None or subject.isprintable() else repr(subject)[1:-1]


def _asked_wait_ms(call: Call | None) -> float:
    """How long the client has asked the server to wait for something to happen."""
    if call is None:
        return 0
    return getattr(call.params, "wait_ms", 0) or wait_ms(getattr(call.params, "timeout_seconds", None))


def on_reply(cors: Cors, log: RequestLog | None, age_ms: Callable[[], int | None] | None = None) -> OnReply | None:
    """What is done with every reply; None if that is nothing. `age_ms` tells how old the state is that was read."""
    if not cors and age_ms is None:
        return log.replied if log is not None else None

    def all_of_it(request: Request, status: int, body: Body | None, headers: Sequence[Header]) -> Sequence[Header]:
        if cors:
            headers = (*cors.reply_headers(request), *headers)
        age = age_ms() if age_ms is not None else None
        if age is not None:
            headers = (*headers, (b"Topics-Age-Ms", b"%d" % age))
        return headers if log is None else log.replied(request, status, body, headers)

    return all_of_it

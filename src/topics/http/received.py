"""A request between its connection and its handler: memory for its body, gzip, the reason to refuse it.

large body in parts ─▶ thread joins them ─▶ one of the following
compressed body ─▶ 64 KiB at once ─ not enough ─▶ memory from the budget ─▶ thread ─┐
body ───────────────────────────────────────────────────────────────────────────────┴▶ large: a tick of its own ─▶ ready
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from topics.http.budget import Reservation
from topics.http.content_coding import Decompression
from topics.http.refusal import Refusal, UnsupportedEncoding
from topics.http.request import Header, ReplyStream, ReplyWriter, Request
from topics.http.service import Service

# The status that logs show for a request whose client left before its reply.
CLIENT_GONE = 499


class ReceivedRequest(Request):
    """What a connection, of any version of HTTP, records about a request. Handlers see only the `Request`."""

    __slots__ = ("body_parts", "compressed", "held", "memory", "refusal", "reply_stream")

    def __init__(self, writer: ReplyWriter, method: str, http_version: str, headers: list[Header]) -> None:
        # super() is slower, and this runs for each request
        Request.__init__(self, writer, method, http_version, headers)
        self.body_parts: list[bytes] | None = None  # of a large body that is not joined yet
        self.compressed = False  # the body is gzip and not decompressed yet
        self.held = False  # complete, but its body is not ready for the handler
        self.memory: Reservation | None = None  # for a large body
        self.refusal: Refusal | None = None  # the reply, instead of a handler's
        self.reply_stream: ReplyStream | None = None  # a reply that has not ended

    @property
    def awaits_memory(self) -> bool:
        return self.memory is not None and not self.memory.granted

    def release_memory(self) -> None:
        if self.memory is not None:
            self.memory.release()
            self.memory = None

    def read_content_encoding(self) -> None:
        """gzip is decompressed before the handler sees the body; anything else is refused."""
        encoding = b",".join(self.header_values(b"content-encoding")).lower()
        if encoding in (b"", b"identity"):
            return
        if encoding not in (b"gzip", b"x-gzip"):
            raise UnsupportedEncoding(encoding.decode("latin-1"))
        self.compressed = self.has_body


def prepare(service: Service, request: ReceivedRequest, ready: Callable[[], None]) -> None:
    """Clear `request.held`: now, or later and then call `ready`. An invalid body leaves a refusal."""
    if request.refusal is None and request.body_parts is not None:
        _join(service, request, request.body_parts, ready)
    elif request.refusal is None and request.compressed:
        request.compressed = False
        _decompress(service, request, ready)
    elif request.refusal is None and len(request.body) > service.limits.turn_body_bytes:
        request.held = True

        def take_turn() -> None:
            request.held = False
            ready()

        service.tick.queue_large(take_turn)
    else:
        request.held = False


def _join(service: Service, request: ReceivedRequest, parts: list[bytes], ready: Callable[[], None]) -> None:
    """Fresh memory for a large body takes tens of milliseconds; joining releases the GIL."""
    request.body_parts = None
    request.held = True

    def join() -> bytes:
        body = b"".join(parts)
        parts.clear()
        return body

    def joined(result: bytes | Refusal) -> None:
        if request.gone:
            return
        assert isinstance(result, bytes), "joining cannot be refused"
        request.body = result
        prepare(service, request, ready)
        if not request.held:
            ready()

    service.in_thread(join, joined)


def _decompress(service: Service, request: ReceivedRequest, ready: Callable[[], None]) -> None:
    limits = service.limits
    decompression = Decompression(request.body, limits.body_bytes_max)
    try:
        decompression.run(limits.gzip_inline_bytes_max)
    except Refusal as refusal:
        request.refusal = refusal.without_trace()
        request.held = False
        return
    if decompression.done:
        request.body = decompression.finish()
        request.held = False
        return
    request.held = True

    def decompressed(result: bytes | Refusal) -> None:
        if request.gone:
            return
        if isinstance(result, Refusal):
            request.refusal = result.without_trace()
        else:
            request.body = result
        _shrink_memory(request, service.limits.large_body_bytes)
        prepare(service, request, ready)
        if not request.held:
            ready()

    start = partial(service.in_thread, decompression.finish, decompressed)
    if request.awaits_memory:
        request.release_memory()
    if request.memory is None:
        request.memory = service.budget.reserve(limits.body_bytes_max, start)
    if request.memory.granted:
        start()


def _shrink_memory(request: ReceivedRequest, large_body_bytes: int) -> None:
    """The size of the body is known now; small bodies are not counted at all."""
    if len(request.body) <= large_body_bytes:
        request.release_memory()
    elif request.memory is not None:
        request.memory.shrink(len(request.body))


def abandon_all(service: Service, requests: Iterable[ReceivedRequest]) -> None:
    for request in requests:
        abandon(service, request)


def abandon(service: Service, request: ReceivedRequest) -> None:
    """The client disconnected before its reply was complete: free what is held for it and notify the handler."""
    if service.on_reply is not None and not request.gone and not request.answered and request.received_s:
        service.on_reply(request, CLIENT_GONE, b"", ())
    request.gone = True
    request.release_memory()
    callback, request.on_disconnect = request.on_disconnect, None
    stream, request.reply_stream = request.reply_stream, None
    try:
        if stream is not None:
            stream.client_gone()
        elif callback is not None and not request.answered:
            callback()
    except Exception as exc:  # noqa: BLE001  (a handler's bug must not reach other requests)
        service.on_bug(request, exc)

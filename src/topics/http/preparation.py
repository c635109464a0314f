"""What happens between a complete request and its handler, and between a reply and its bytes: gzip, and memory for it.

packed body ─▶ 64 KiB at once ─ not enough ─▶ a share of the budget ─▶ thread ─┐
body ──────────────────────────────────────────────────────────────────────────┴▶ large: a tick of its own ─▶ ready
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topics.http.coding import Inflation, deflate
from topics.http.message import Bytes, Header, Request
from topics.http.refusal import Refusal
from topics.http.reply import accepts_gzip, body_length
from topics.http.service import Service

GZIPPED: Header = (b"Content-Encoding", b"gzip")
VARY: Header = (b"Vary", b"Accept-Encoding")


def prepare(service: Service, request: Request, ready: Callable[[], None]) -> None:
    """Clear `request.held`: now, or later and then call `ready`. A body that turns out bad leaves a refusal."""
    if request.refusal is None and request.packed:
        request.packed = False
        _unpack(service, request, ready)
    elif request.refusal is None and len(request.body) > service.limits.large_body_bytes:
        request.held = True

        def take_turn() -> None:
            request.held = False
            ready()

        service.tick.queue_large(take_turn)
    else:
        request.held = False


def pack_reply(
    service: Service,
    request: Request,
    parts: Sequence[Bytes],
    send: Callable[[Sequence[Bytes], tuple[Header, ...]], None],
) -> None:
    """Call `send` with the body to send and the headers its coding needs; above 64 KiB in a later tick."""
    limits = service.limits
    body_bytes = body_length(parts)
    if body_bytes < limits.gzip_reply_bytes_min:
        send(parts, ())
        return
    if not accepts_gzip(request.header(b"accept-encoding")):
        # A cache must not hand this one to clients that would have got the other.
        send(parts, (VARY,))
        return

    def packed(result: bytes | Refusal) -> None:
        assert not isinstance(result, Refusal), "packing cannot be refused"
        send((result,), (GZIPPED, VARY))

    if body_bytes <= limits.gzip_inline_bytes_max:
        packed(deflate(parts))
    else:
        service.in_thread(lambda: deflate(parts), packed)


def _unpack(service: Service, request: Request, ready: Callable[[], None]) -> None:
    limits = service.limits
    inflation = Inflation(request.body, limits.body_bytes_max)
    try:
        inflation.run(limits.gzip_inline_bytes_max)
    except Refusal as refusal:
        request.refusal = refusal.without_trace()
        request.held = False
        return
    if inflation.done:
        request.body = inflation.finish()
        request.held = False
        return
    request.held = True

    def unpacked(result: bytes | Refusal) -> None:
        if request.gone:
            return
        if isinstance(result, Refusal):
            request.refusal = result.without_trace()
        else:
            request.body = result
        service.shrink_reservation(request, len(request.body))
        prepare(service, request, ready)
        if not request.held:
            ready()

    def start() -> None:
        service.in_thread(inflation.finish, unpacked)

    if request.reserved_bytes or service.budget.take(request, limits.body_bytes_max, start):
        start()

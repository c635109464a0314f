"""What happens between a complete request and its handler: gzip, memory for it, and a tick of its own for a large body.

packed body ─▶ 64 KiB at once ─ not enough ─▶ a share of the budget ─▶ thread ─┐
body ──────────────────────────────────────────────────────────────────────────┴▶ large: a tick of its own ─▶ ready
"""

from __future__ import annotations

from collections.abc import Callable

from topics.http.content_coding import Decompression
from topics.http.refusal import Refusal
from topics.http.request import Request
from topics.http.service import Service


def prepare(service: Service, request: Request, ready: Callable[[], None]) -> None:
    """Clear `request.held`: now, or later and then call `ready`. A body that turns out bad leaves a refusal."""
    if request.refusal is None and request.packed:
        request.packed = False
        _decompress(service, request, ready)
    elif request.refusal is None and len(request.body) > service.limits.large_body_bytes:
        request.held = True

        def take_turn() -> None:
            request.held = False
            ready()

        service.tick.queue_large(take_turn)
    else:
        request.held = False


def _decompress(service: Service, request: Request, ready: Callable[[], None]) -> None:
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
        service.shrink_reservation(request, len(request.body))
        prepare(service, request, ready)
        if not request.held:
            ready()

    def start() -> None:
        service.in_thread(decompression.finish, decompressed)

    if request.reserved_bytes or service.budget.take(request, limits.body_bytes_max, start):
        start()

"""Live delivery: watch over HTTP, and a WebSocket that can also publish."""

from __future__ import annotations

from typing import Literal

from topics.client.aio.watch import AsyncWatch
from topics.client.aio.wire.socket import AsyncSocket
from topics.client.aio.wire.transport import AsyncTransport
from topics.client.errors import InvalidRequest
from topics.client.live import Starts, starts_of

RECONNECT_S_MAX = 600.0
HEARTBEAT_MS = 15_000


class AsyncStreaming:
    _transport: AsyncTransport

    def watch(
        self,
        topics: Starts,
        *,
        tail: bool = False,
        cursor: str | None = None,
        node: str | list[str] | None = None,
        limit: int | None = None,
        max_batch_bytes: int | None = None,
        include_tags: bool = True,
        include_meta: bool | None = None,
        include_data: bool = True,
        consistency: Literal["eventual", "strong"] | None = None,
        lenient: bool = False,
        heartbeat_ms: int = HEARTBEAT_MS,
        reconnect_s_max: float = RECONNECT_S_MAX,
    ) -> AsyncWatch:
        """Follow topics: names, or a map from a name to a seq, `"tail"` or `{"from_ts": ms}`; see AsyncWatch.

        Names alone start at the beginning, or at the end with `tail`. `cursor` is that of an earlier watch. `lenient`
        skips topics that do not exist. `node` leaves out records of these nodes.
        """
        request = {
            "node": node,
            "limit": limit,
            "max_batch_bytes": max_batch_bytes,
            "include_tags": include_tags,
            "include_meta": include_meta,
            "include_data": include_data,
            "consistency": consistency,
        }
        return AsyncWatch(
            self._transport,
            starts_of(topics, tail=tail),
            request,
            lenient=lenient,
            cursor=cursor,
            heartbeat_ms=heartbeat_ms,
            reconnect_s_max=reconnect_s_max,
        )

    def socket(self, *, reconnect_s_max: float = RECONNECT_S_MAX) -> AsyncSocket:
        """A WebSocket to publish and subscribe with; it opens with the first command. See AsyncSocket."""
        if self._transport.plugged:
            raise InvalidRequest("a WebSocket needs a server; this client was given a transport instead")
        return AsyncSocket(self._transport, reconnect_s_max)

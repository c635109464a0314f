"""The server itself: health, metrics, its API description, and a backup."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.client.aio.backup import AsyncBackup
from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import Request
from topics.client.values import Health, Readiness

_health = msgspec.json.Decoder(Health)
_ready = msgspec.json.Decoder(Readiness)
_anything = msgspec.json.Decoder()


class AsyncAdmin:
    _transport: AsyncTransport

    async def health(self) -> Health:
        """Whether the process replies, and its version."""
        return await self._transport.call(Request(method="GET", path="/v0/health", decoder=_health, safe=True))

    async def ready(self) -> Readiness:
        """Whether it accepts requests; waits (within the limits of a retry) while it does not yet."""
        return await self._transport.call(Request(method="GET", path="/v0/ready", decoder=_ready, safe=True))

    async def metrics(self) -> str:
        """Counters and gauges as Prometheus text."""
        return (await self._transport.read("/v0/metrics", accept="text/plain")).decode("utf-8", "replace")

    async def openapi(self) -> dict[str, Any]:
        """The OpenAPI description of the server."""
        return await self._transport.call(Request(method="GET", path="/v0/openapi.json", decoder=_anything, safe=True))

    def backup(self) -> AsyncBackup:
        """A consistent copy of the running server as pieces of a tar file: enter it, then iterate."""
        return AsyncBackup(self._transport)

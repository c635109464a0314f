"""The server itself: health, metrics, its API description, and a backup."""

# Made by tools/sync_half.py from aio/admin.py: change that one.
from __future__ import annotations

from typing import Any

import msgspec

from topics.client.request import Request
from topics.client.sync.backup import Backup
from topics.client.sync.wire.transport import Transport
from topics.client.values import Health, Readiness

_health = msgspec.json.Decoder(Health)
_ready = msgspec.json.Decoder(Readiness)
_anything = msgspec.json.Decoder()


class Admin:
    _transport: Transport

    def health(self) -> Health:
        """Whether the process replies, and its version."""
        return self._transport.call(Request(method="GET", path="/v0/health", decoder=_health, safe=True))

    def ready(self) -> Readiness:
        """Whether it accepts requests; waits (within the limits of a retry) while it does not yet."""
        return self._transport.call(Request(method="GET", path="/v0/ready", decoder=_ready, safe=True))

    def metrics(self) -> str:
        """Counters and gauges as Prometheus text."""
        return (self._transport.read("/v0/metrics", accept="text/plain")).decode("utf-8", "replace")

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description of the server."""
        return self._transport.call(Request(method="GET", path="/v0/openapi.json", decoder=_anything, safe=True))

    def backup(self) -> Backup:
        """A consistent copy of the running server as pieces of a tar file: enter it, then iterate."""
        return Backup(self._transport)

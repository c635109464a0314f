"""The server itself: health, metrics, its API description, and a backup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from topics.client.aio.wire.backup import AsyncBackup
from topics.client.aio.wire.transport import AsyncTransport
from topics.client.errors import InvalidRequest, TopicsError
from topics.client.request import Request, body_of, topic_path, with_query
from topics.client.values import Health, Promoted, Readiness

_health = msgspec.json.Decoder(Health)
_ready = msgspec.json.Decoder(Readiness)
_promoted = msgspec.json.Decoder(Promoted)
_anything = msgspec.json.Decoder()
_HEALTH = Request(method="GET", path="/v0/health", decoder=_health, safe=True)
COMPACT_WAIT_MS = 600_000
# The rest of the log is read from the bucket first.
PROMOTE_WAIT_MS = 60_000


class AsyncAdmin:
    _transport: AsyncTransport

    async def health(self) -> Health:
        """Whether the process replies, and its version."""
        return await self._transport.call(_HEALTH)

    async def ready(self) -> Readiness:
        """Whether it accepts requests; waits (within the limits of a retry) while it does not yet."""
        return await self._transport.call(Request(method="GET", path="/v0/ready", decoder=_ready, safe=True))

    async def roles(self) -> dict[str, str | None]:
        """The role of each of the given servers, `primary` or `standby`, by URL; None: it does not reply."""
        roles: dict[str, str | None] = {}
        for url in self._transport.options.urls:
            try:
                roles[url] = (await self._transport.attempt(replace(_HEALTH, at=url))).role
            except TopicsError:
                roles[url] = None
        return roles

    async def promote(self, *, force: bool = False) -> Promoted:
        """Make the standby the primary, at once. Of several servers given, it is the one that is a standby.

        It is refused while the primary renews its lease; `force` takes over nevertheless, and the old primary becomes
        a standby when it notices.
        """
        transport = self._transport
        url = transport.options.url if transport.servers.others == 0 else _only_standby(await self.roles())
        body = body_of(force=force or None)
        promoted = await transport.attempt(
            Request(method="POST", path="/v0/promote", decoder=_promoted, body=body, wait_ms=PROMOTE_WAIT_MS, at=url)
        )
        transport.servers.current = url
        return promoted

    async def metrics(self) -> str:
        """Counters and gauges as Prometheus text."""
        return (await self._transport.read("/v0/metrics", accept="text/plain")).decode("utf-8", "replace")

    async def openapi(self) -> dict[str, Any]:
        """The machine-readable description of everything the server answers."""
        return await self._look("/v0/openapi.json")

    async def me(self) -> dict[str, Any]:
        """What the key of this client may do: scopes and prefixes."""
        return await self._look("/v0/me")

    async def overview(self) -> dict[str, Any]:
        """Totals of the topics that the key may see, and what needs attention, in words."""
        return await self._look("/v0/overview")

    async def server(self, *, log_lines: int | None = None) -> dict[str, Any]:
        """Settings and where they come from, keys, files, the end of the log."""
        return await self._look(with_query("/v0/server", {"log_lines": log_lines}))

    async def history(self, *, since: int | None = None) -> dict[str, Any]:
        """The last hour of the server's own metrics, a point every 5 s, or what is newer than `since`."""
        return await self._look(with_query("/v0/history", {"since": since}))

    async def queue_history(self, name: str, *, since: int | None = None) -> dict[str, Any]:
        """The last hour of a queue, a point every 10 s, or what is newer than `since`."""
        return await self._look(with_query(topic_path(name, "/history"), {"since": since}))

    async def readers(self, name: str) -> dict[str, Any]:
        """Who reads a topic: followers, groups, routers, workers."""
        return await self._look(topic_path(name, "/readers"))

    async def _look(self, path: str) -> dict[str, Any]:
        return await self._transport.call(Request(method="GET", path=path, decoder=_anything, safe=True))

    async def compact(self) -> dict[str, Any]:
        """Free disk space now: `bytes_before` and `bytes_after`. It waits for a whole checkpoint."""
        return await self._transport.call(
            Request(method="POST", path="/v0/compact", decoder=_anything, safe=True, wait_ms=COMPACT_WAIT_MS)
        )

    def backup(self) -> AsyncBackup:
        """A consistent copy of the running server as pieces of a tar file: enter it, then iterate."""
        return AsyncBackup(self._transport)


def _only_standby(roles: dict[str, str | None]) -> str:
    standbys = [url for url, role in roles.items() if role == "standby"]
    if len(standbys) == 1:
        return standbys[0]
    shown = ", ".join(f"{url} is {role}" if role else f"{url} does not reply" for url, role in roles.items())
    raise InvalidRequest(f"give the URL of the one standby that is to take over: {shown}", field="url")

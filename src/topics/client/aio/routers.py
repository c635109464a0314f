"""Routers: copy every record of one topic into another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import QueryValue, Request, body_of
from topics.client.values import Removed, Router, RouterPage

PAGE_SIZE: Final = 1_000
_router = msgspec.json.Decoder(Router)
_page = msgspec.json.Decoder(RouterPage)
_removed = msgspec.json.Decoder(Removed)


class AsyncRouters:
    _transport: AsyncTransport

    async def route(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        filter: str | tuple[str, str, str] | None = None,
        guarantee: Literal["at_least_once", "exactly_once"] | None = None,
        preserve_node: bool | None = None,
        preserve_tag: bool | None = None,
        create_dest: bool | None = None,
        allow_cycle: bool | None = None,
        backfill: bool | None = None,
    ) -> Router:
        """Create a router, or change it. `filter` is a tag, or `("tag", "Glob", "x*")`."""
        body = body_of(
            source=source,
            dest=dest,
            filter=filter,
            guarantee=guarantee,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            allow_cycle=allow_cycle,
            backfill=backfill,
        )
        request = Request(method="PUT", path=_path(name), decoder=_router, body=body, safe=True)
        return await self._transport.call(request)

    async def router(self, name: str) -> Router:
        """A router and its progress."""
        return await self._transport.call(Request(method="GET", path=_path(name), decoder=_router, safe=True))

    async def routers(
        self,
        source: str | None = None,
        dest: str | None = None,
        *,
        prefix: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[Router]:
        """Routers by name; pages are fetched as needed. Only the totals are given, not the lag."""
        query: dict[str, QueryValue] = {"source": source, "dest": dest, "prefix": prefix, "page_size": page_size}
        async for page in self._transport.pages("/v0/routers", query, _page):
            for router in page.routers:
                yield router

    async def unroute(self, name: str) -> bool:
        """Stop forwarding; what was copied stays. False: there was no such router."""
        request = Request(method="DELETE", path=_path(name), decoder=_removed, safe=True)
        return (await self._transport.call(request)).deleted


def _path(name: str) -> str:
    return f"/v0/routers/{quote(name, safe=':')}"

"""Topics: create, change, look, list, drop, and delete records from one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Literal, Unpack

import msgspec

from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import QueryValue, Request, body_of, encode, topic_path, with_query
from topics.client.values import Configured, Deleted, Dropped, Edited, TopicFields, TopicItem, TopicPage, TopicState
from topics.model.names import TopicOrder

PAGE_SIZE: Final = 1_000
_configured = msgspec.json.Decoder(Configured)
_edited = msgspec.json.Decoder(Edited)
_state = msgspec.json.Decoder(TopicState)
_page = msgspec.json.Decoder(TopicPage)
_dropped = msgspec.json.Decoder(Dropped)
_deleted = msgspec.json.Decoder(Deleted)


class AsyncTopics:
    _transport: AsyncTransport

    async def create(self, name: str, *, replace: bool = False, **config: Unpack[TopicFields]) -> Configured:
        """Create a topic, or confirm that it is configured like this; absent fields have their defaults.

        For a topic with another configuration it raises TopicExistsIncompatible, which shows the difference. `replace`
        gives it this configuration instead, and `edit` changes single fields.
        """
        path = with_query(topic_path(name), {"replace": None if replace else False})
        return await self._transport.call(
            Request(method="PUT", path=path, decoder=_configured, body=encode(config), safe=True)
        )

    async def edit(self, name: str, *, dry_run: bool = False, **config: Unpack[TopicFields]) -> Edited:
        """Change the given fields of a topic's configuration. A dry run only reports changes and evictions."""
        path = with_query(topic_path(name), {"dry_run": True if dry_run else None})
        return await self._transport.call(
            Request(method="PATCH", path=path, decoder=_edited, body=encode(config), safe=True)
        )

    async def state(self, name: str, *, touch: bool = True) -> TopicState:
        """The state of a topic. It counts as a read for the topic's priority unless `touch` is false."""
        path = with_query(topic_path(name), {"touch": None if touch else False})
        return await self._transport.call(Request(method="GET", path=path, decoder=_state, safe=True))

    async def drop(self, name: str, *, if_empty: bool = False, dry_run: bool = False) -> bool:
        """Remove a topic with all it has, and its routers. False: there was none. A dry run removes nothing."""
        path = with_query(
            topic_path(name), {"if_empty": True if if_empty else None, "dry_run": True if dry_run else None}
        )
        dropped = await self._transport.call(Request(method="DELETE", path=path, decoder=_dropped, safe=True))
        return dropped.deleted

    async def delete(
        self,
        name: str,
        before_seq: int | None = None,
        match: str | tuple[str, str, str] | None = None,
        *,
        dry_run: bool = False,
    ) -> int:
        """Delete records below a seq, or whose tag matches (`"x"`, `("tag", "Glob", "x*")`), or both; how many.

        A dry run only counts them.
        """
        body = body_of(before_seq=before_seq, match=match, dry_run=dry_run or None)
        # Without a bound, asking again would also meet what was appended in between.
        request = Request(
            method="POST",
            path=topic_path(name, "/delete"),
            decoder=_deleted,
            body=body,
            safe=dry_run or before_seq is not None,
        )
        return (await self._transport.call(request)).deleted

    async def list(
        self,
        prefix: str = "",
        *,
        contains: str = "",
        type: Literal["log", "queue"] | None = None,
        sort: TopicOrder = "name",
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[TopicItem]:
        """Topics whose name starts with `prefix` and contains `contains`, in any case of letters; of one type.

        They are sorted by name, or by records, bytes or last write; with a minus, the most or latest first. Pages are
        fetched as needed.
        """
        query: dict[str, QueryValue] = {
            "prefix": prefix or None,
            "contains": contains or None,
            "type": type,
            "sort": None if sort == "name" else sort,
            "page_size": page_size,
        }
        async for page in self._transport.pages("/v0/topics", query, _page):
            for item in page.topics:
                yield item

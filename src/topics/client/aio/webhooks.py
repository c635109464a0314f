"""Webhooks: topics that the server delivers to URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import QueryValue, Request, body_of
from topics.client.values import Removed, Webhook, WebhookPage, WebhookTest

PAGE_SIZE: Final = 1_000
_webhook = msgspec.json.Decoder(Webhook)
_page = msgspec.json.Decoder(WebhookPage)
_test = msgspec.json.Decoder(WebhookTest)
_removed = msgspec.json.Decoder(Removed)


class AsyncWebhooks:
    _transport: AsyncTransport

    async def put_webhook(
        self,
        name: str,
        topic: str,
        url: str,
        *,
        start: Literal["head", "earliest"] | int | None = None,
        tag: str | None = None,
        format: Literal["record", "data", "cloudevents"] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        concurrency: int | None = None,
        order: Literal["topic", "tag", "none"] | None = None,
        max_attempts: int | None = None,
        backoff_ms: int | None = None,
        backoff_ms_max: int | None = None,
        dead_letter: str | None = None,
        pause_after: int | None = None,
        paused: bool | None = None,
        secret: str | None = None,
    ) -> Webhook:
        """Deliver the records of a topic to a URL, or change how.

        A new webhook begins at `start`: the head, the earliest record, or after a seq. Without a `secret` the server
        makes one: it is in the result of the call that creates the webhook, and never again.
        """
        fields: dict[str, object] = {
            "topic": topic,
            "url": url,
            "from": start,
            "tag": tag,
            "format": format,
            "headers": headers,
            "timeout_ms": timeout_ms,
            "concurrency": concurrency,
            "order": order,
            "max_attempts": max_attempts,
            "backoff_ms": backoff_ms,
            "backoff_ms_max": backoff_ms_max,
            "dead_letter": dead_letter,
            "pause_after": pause_after,
            "paused": paused,
            "secret": secret,
        }
        request = Request(method="PUT", path=_path(name), decoder=_webhook, body=body_of(**fields), safe=True)
        return await self._transport.call(request)

    async def webhook(self, name: str) -> Webhook:
        """A webhook, its position and its last attempts."""
        return await self._transport.call(Request(method="GET", path=_path(name), decoder=_webhook, safe=True))

    async def webhooks(
        self, topic: str | None = None, *, prefix: str | None = None, page_size: int = PAGE_SIZE
    ) -> AsyncIterator[Webhook]:
        """Webhooks by name; pages are fetched as needed."""
        query: dict[str, QueryValue] = {"topic": topic, "prefix": prefix, "page_size": page_size}
        async for page in self._transport.pages("/v0/webhooks", query, _page):
            for webhook in page.webhooks:
                yield webhook

    async def rotate_webhook(self, name: str, *, secret: str | None = None, grace_ms: int | None = None) -> Webhook:
        """Sign with a new secret, and until the grace period is over with the one before it as well."""
        body = body_of(secret=secret, grace_ms=grace_ms)
        return await self._transport.call(
            Request(method="POST", path=f"{_path(name)}/rotate", decoder=_webhook, body=body)
        )

    async def resume_webhook(self, name: str) -> Webhook:
        """Continue after a pause; what has failed is tried at once."""
        request = Request(method="POST", path=f"{_path(name)}/resume", decoder=_webhook, safe=True)
        return await self._transport.call(request)

    async def test_webhook(self, name: str) -> WebhookTest:
        """Send one message that is not a record, and wait for what comes of it."""
        return await self._transport.call(Request(method="POST", path=f"{_path(name)}/test", decoder=_test))

    async def drop_webhook(self, name: str) -> bool:
        """Remove a webhook; its topic stays. False: there was none."""
        request = Request(method="DELETE", path=_path(name), decoder=_removed, safe=True)
        return (await self._transport.call(request)).deleted


def _path(name: str) -> str:
    return f"/v0/webhooks/{quote(name, safe=':')}"

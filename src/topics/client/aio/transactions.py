"""Transactions: stage records in parts, then commit all of them under a version, once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final
from urllib.parse import quote

import msgspec

from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import QueryValue, Request, body_of
from topics.client.transactions import Aborted, CommittedTxn, Fence, Forgotten, Staged, Txn, TxnItem, TxnPage
from topics.client.values import Outgoings, records_json

_staged = msgspec.json.Decoder(Staged)
_committed = msgspec.json.Decoder(CommittedTxn)
_aborted = msgspec.json.Decoder(Aborted)
_fence = msgspec.json.Decoder(Fence)
_txn = msgspec.json.Decoder(Txn)
_page = msgspec.json.Decoder(TxnPage)
_forgotten = msgspec.json.Decoder(Forgotten)
PAGE_SIZE: Final = 1_000


class AsyncTransactions:
    _transport: AsyncTransport

    async def take_fence(self, app: str, owner: str | None = None) -> int:
        """A new, higher token: from now on, holders of a lower one are refused with Fenced.

        An `owner` that asks again gets the same token, and is refused with Fenced once another owner has taken one.
        """
        path, body = f"{_app(app)}/fence", body_of(owner=owner)
        return (
            await self._transport.call(Request(method="POST", path=path, decoder=_fence, body=body, safe=True))
        ).fence

    async def stage(
        self,
        app: str,
        version: int,
        stage: str,
        part: int,
        records: Outgoings,
        topic: str | None = None,
        fence: int | None = None,
    ) -> Staged:
        """Stage records for a version. Repeating a part changes nothing.

        Each record is an Outgoing or plain data for `topic`; or all of them are a JSON array in bytes, in which a
        record may name its own `topic`.
        """
        fields = body_of(stage=stage, part=part, topic=topic, fence=fence)
        body = b'{"records":%b,%b' % (records_json(records), fields[1:])
        path = f"{_app(app)}/{version}/stage"
        return await self._transport.call(Request(method="POST", path=path, decoder=_staged, body=body, safe=True))

    async def commit_txn(self, app: str, version: int, stages: Iterable[str], fence: int | None = None) -> CommittedTxn:
        """Make all records in these stages visible, once: a version that was committed before stays unchanged."""
        body = body_of(stages=list(stages), fence=fence)
        path = f"{_app(app)}/{version}/commit"
        return await self._transport.call(Request(method="POST", path=path, decoder=_committed, body=body, safe=True))

    async def abort_txn(self, app: str, version: int, stages: Iterable[str], fence: int | None = None) -> int:
        """Drop stages; how many there were."""
        body = body_of(stages=list(stages), fence=fence)
        path = f"{_app(app)}/{version}/abort"
        request = Request(method="POST", path=path, decoder=_aborted, body=body, safe=True)
        return (await self._transport.call(request)).aborted

    async def txn(self, app: str) -> Txn:
        """What an app has committed and staged."""
        return await self._transport.call(Request(method="GET", path=_app(app), decoder=_txn, safe=True))

    async def txns(self, *, page_size: int = PAGE_SIZE) -> AsyncIterator[TxnItem]:
        """Apps that have transactions, by name; pages are fetched as needed."""
        query: dict[str, QueryValue] = {"page_size": page_size}
        async for page in self._transport.pages("/v0/txns", query, _page):
            for item in page.apps:
                yield item

    async def forget_txn(self, app: str) -> bool:
        """Forget an app: its version, its token and its stages. Committed records stay."""
        request = Request(method="DELETE", path=_app(app), decoder=_forgotten, safe=True)
        return (await self._transport.call(request)).forgotten


def _app(app: str) -> str:
    return f"/v0/txns/{quote(app, safe=':')}"

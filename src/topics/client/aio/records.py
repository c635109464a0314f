"""Records: append them so that a retry never duplicates, read them page by page, or all at once as bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from topics.client.aio.export import AsyncArrowExport, AsyncExport
from topics.client.aio.producer import AsyncProducer
from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import QueryValue, Request, body_of, topic_path, with_query
from topics.client.values import (
    Appended,
    AppendedAll,
    Diff,
    JobGroup,
    Outgoing,
    Outgoings,
    Record,
    Tombstone,
    TopicBatch,
    records_json,
    topics_json,
)
from topics.model.cloudevents.mappings import one_event_key, to_records
from topics.model.cloudevents.mappings import records_json as events_json

FOLLOW_WAIT_MS: Final = 20_000
PAGE_RECORDS: Final = 1_000
_appended = msgspec.json.Decoder(Appended)
_appended_all = msgspec.json.Decoder(AppendedAll)
_diff = msgspec.json.Decoder(Diff)

Node = str | Sequence[str] | None


class AsyncRecords:
    _transport: AsyncTransport

    # --- writing ---

    async def append(
        self,
        name: str,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int = 0,
        unique_key: str | None = None,
        job_priority: int = 0,
        group: JobGroup | None = None,
        idempotency_key: str | None = None,
        create: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> Appended:
        """Append one record. `data` is any JSON value; `Json(text)` is sent unchanged."""
        record = Outgoing(data, tag, None, meta, delay_ms, unique_key, job_priority=job_priority, group=group)
        return await self.append_many(
            name, [record], node=node, idempotency_key=idempotency_key, create=create, config=config
        )

    async def append_many(
        self,
        name: str,
        records: Outgoings,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool = True,
        config: Mapping[str, Any] | None = None,
        return_seqs: bool = True,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append all of them, with contiguous seqs, or none. `records` may be a JSON array in bytes.

        Without an `idempotency_key` one is made, so that a retry within the topic's window never appends twice.
        """
        fields = body_of(
            node=node or self._transport.options.node,
            idempotency_key=idempotency_key or uuid4().hex,
            create=None if create else False,
            config=config,
            disable_backpressure=disable_backpressure or None,
        )
        path = with_query(topic_path(name), {"return_seqs": None if return_seqs else False})
        with self._transport.appending(name) as traceparent:
            body = b'{"records":%b,%b' % (records_json(records, traceparent), fields[1:])
            request = Request(method="POST", path=path, decoder=_appended, body=body, safe=True)
            return await self._transport.call(request)

    async def append_events(
        self,
        name: str,
        events: Iterable[Mapping[str, Any]],
        *,
        tag: str | None = None,
        node: str | None = None,
        delay_ms: int = 0,
        dedupe: bool = False,
        idempotency_key: str | None = None,
        create: bool = True,
        return_seqs: bool = True,
    ) -> Appended:
        """Append CloudEvents: mappings of attributes and `data`, which is any JSON value, or bytes.

        `dedupe`: append a single event once within the topic's window, by its source and id.
        """
        records = to_records(events)
        return await self.append_many(
            name,
            events_json(records, tag, delay_ms),
            node=node,
            idempotency_key=one_event_key(records) if dedupe else idempotency_key,
            create=create,
            return_seqs=return_seqs,
        )

    async def append_all(
        self,
        topics: Mapping[str, Outgoings | TopicBatch],
        *,
        idempotency_key: str | None = None,
        return_seqs: bool = True,
        disable_backpressure: bool = False,
    ) -> AppendedAll:
        """Append to several topics, to all of them or to none; each gets records, or a TopicBatch.

        Without an `idempotency_key` one is made, so that a retry within their shortest window never appends twice.
        """
        body = body_of(
            topics=topics_json(topics, self._transport.options.node),
            idempotency_key=idempotency_key or uuid4().hex,
            disable_backpressure=disable_backpressure or None,
        )
        path = with_query("/v0/append", {"return_seqs": None if return_seqs else False})
        request = Request(method="POST", path=path, decoder=_appended_all, body=body, safe=True)
        return await self._transport.call(request)

    def producer(
        self,
        name: str,
        *,
        linger_ms: float = 5,
        batch_records_max: int = 1_000,
        batch_bytes_max: int = 1024 * 1024,
        buffer_records_max: int = 100_000,
        buffer_bytes_max: int = 64 * 1024 * 1024,
        partitions: int = 1,
        node: str | None = None,
        create: bool = True,
    ) -> AsyncProducer:
        """Appends that are collected into batches in the background; see AsyncProducer."""
        return AsyncProducer(
            self,
            name,
            linger_s=linger_ms / 1000,
            batch_records_max=batch_records_max,
            batch_bytes_max=batch_bytes_max,
            buffer_records_max=buffer_records_max,
            buffer_bytes_max=buffer_bytes_max,
            partitions=partitions,
            node=node,
            create=create,
        )

    # --- reading ---

    async def diff(
        self,
        name: str,
        from_seq: int = 0,
        *,
        limit: int | None = None,
        from_ts: int | None = None,
        node: Node = None,
        include_tags: bool = True,
        include_meta: bool = True,
        wait_ms: int = 0,
        max_batch_bytes: int | None = None,
    ) -> Diff:
        """One page of records after `from_seq`; with `wait_ms` (at most 30000) it waits for the first one."""
        body = body_of(
            from_seq=from_seq,
            limit=limit,
            from_ts=from_ts,
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            wait_ms=wait_ms,
            max_batch_bytes=max_batch_bytes,
        )
        path = topic_path(name, "/diff")
        return await self._transport.call(
            Request(method="POST", path=path, decoder=_diff, body=body, safe=True, wait_ms=wait_ms)
        )

    async def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        to_seq: int | None = None,
        follow: bool = False,
        from_ts: int | None = None,
        node: Node = None,
        include_tags: bool = True,
        include_meta: bool = True,
        page_records: int = PAGE_RECORDS,
    ) -> AsyncIterator[Record | Tombstone]:
        """Every record after `from_seq`, up to the current head, or without end with `follow`.

        Lost records are reported as a Tombstone in their place. `to_seq` ends the reading there.
        """
        while True:
            page = await self.diff(
                name,
                from_seq,
                limit=page_records,
                from_ts=from_ts,
                node=node,
                include_tags=include_tags,
                include_meta=include_meta,
                wait_ms=FOLLOW_WAIT_MS if follow else 0,
            )
            from_ts = None
            if page.tombstone is not None:
                yield page.tombstone
            for record in page.records:
                if to_seq is not None and record.seq > to_seq:
                    return
                yield record
            from_seq = page.next_from_seq
            if (page.caught_up and not follow) or (to_seq is not None and from_seq >= to_seq):
                return

    def export(
        self,
        name: str,
        from_seq: int = 0,
        to_seq: int | None = None,
        *,
        from_ts: int | None = None,
        node: Node = None,
        include_tags: bool = True,
        include_meta: bool | None = None,
        include_data: bool = True,
        chunk_bytes: int = 1024 * 1024,
    ) -> AsyncExport:
        """Everything after `from_seq` up to `to_seq` (or the end) as chunks of whole JSON lines; see AsyncExport."""
        query = _export_query(from_ts, node, include_tags, include_meta, include_data)
        return AsyncExport(self._transport, name, from_seq, to_seq, query, chunk_bytes)

    def export_arrow(
        self,
        name: str,
        from_seq: int = 0,
        to_seq: int | None = None,
        *,
        from_ts: int | None = None,
        node: Node = None,
        include_tags: bool = True,
        include_meta: bool | None = None,
        include_data: bool = True,
    ) -> AsyncArrowExport:
        """The same as the bytes of an Arrow stream, if pyarrow is installed beside the server; see AsyncArrowExport."""
        query = _export_query(from_ts, node, include_tags, include_meta, include_data)
        return AsyncArrowExport(self._transport, name, from_seq, to_seq, query)


def _export_query(
    from_ts: int | None, node: Node, include_tags: bool, include_meta: bool | None, include_data: bool
) -> dict[str, QueryValue]:
    return {
        "from_ts": from_ts,
        "node": node,
        "include_tags": include_tags,
        "include_meta": include_meta,
        "include_data": None if include_data else False,
    }

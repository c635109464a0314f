"""Records: append them; read them page by page, as they arrive, or all at once as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from topics.client.request import body_of
from topics.client.sync.producer import Producer
from topics.client.values import AppendedAll, AppendedTo, JobGroup, Outgoing, Outgoings, TopicBatch, topics_json
from topics.embedded.export import Export
from topics.embedded.host import Host
from topics.embedded.requests import check_nesting, converted, decoded, request_of, warn
from topics.embedded.values import Appended, Diff, Record, Tombstone, encoded, readable
from topics.engine.core.multi_append import Landed
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.long_poll import long_poll
from topics.engine.log.topic import Topic
from topics.model.cloudevents.mappings import one_event_key, to_records
from topics.model.cloudevents.mappings import records_json as events_json
from topics.model.errors import ShuttingDown
from topics.model.requests.config import ConfigRequest, resolve
from topics.model.requests.multi_append import MultiAppendRequest
from topics.model.requests.nesting import SHALLOW_BYTES_MAX
from topics.model.requests.records import AppendRequest, DiffRequest, append_decoder
from topics.model.requests.warnings import config_warnings

FOLLOW_WAIT_MS: Final = 20_000
PAGE_RECORDS: Final = 1_000
_multi_decoder = msgspec.json.Decoder(MultiAppendRequest)

Node = str | Sequence[str] | None


class Records:
    _host: Host
    _node: str | None

    # --- writing ---

    def append(
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
        create: bool | None = True,
        config: Mapping[str, Any] | None = None,
    ) -> Appended:
        """Append one record; it is as durable as its topic requires when this returns."""
        record = Outgoing(data, tag, None, meta, delay_ms, unique_key, job_priority=job_priority, group=group)
        return self.append_many(
            name, [record], node=node, idempotency_key=idempotency_key, create=create, config=config
        )

    def append_many(
        self,
        name: str,
        records: Outgoings,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = True,
        config: Mapping[str, Any] | None = None,
        return_seqs: bool = True,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append all of them, with contiguous seqs, or none. `records` may be a JSON array in bytes.

        No request can be lost here, so no `idempotency_key` is made if none is given. `disable_backpressure` has no
        effect, because there is no backpressure.
        """
        del disable_backpressure
        body = b'{"records":%b}' % encoded(records)
        params = decoded(append_decoder, body)
        if len(body) > SHALLOW_BYTES_MAX:
            check_nesting(params.records)
        params.node = node or self._node
        params.idempotency_key = idempotency_key
        params.create = create
        params.config = None if config is None else converted(ConfigRequest, config)
        return self.append_request(name, params, return_seqs=return_seqs)

    def append_request(self, name: str, params: AppendRequest, *, return_seqs: bool = True) -> Appended:
        """Append a request that `topics.model.requests.records.append_decoder` has decoded."""
        change = self._host.commit(lambda: self._host.engine.append(name, params))
        warnings: list[str] = []
        if change.created and params.config is not None:
            warnings = config_warnings(resolve(params.config, name), params.config)
            warn(warnings)
        return Appended(
            topic=name,
            first_seq=change.first_seq,
            last_seq=change.last_seq if change.result is None else max(change.result),
            head_seq=change.head_seq,
            count=change.count if change.result is None else len(change.result),
            created=change.created,
            deduped=change.deduped,
            given_seqs=change.result if return_seqs else None,
            warnings=warnings,
            wal_append_ms=change.wal_append_ms,
            fsync_ms=change.fsync_ms,
        )

    # Its name in version 0.1.
    append_wish = append_request

    def append_events(
        self,
        name: str,
        events: Iterable[Mapping[str, Any]],
        *,
        tag: str | None = None,
        node: str | None = None,
        delay_ms: int = 0,
        dedupe: bool = False,
        idempotency_key: str | None = None,
        create: bool | None = True,
        return_seqs: bool = True,
    ) -> Appended:
        """Append CloudEvents: mappings of attributes and `data`, which is any JSON value, or bytes.

        `dedupe`: append a single event once within the topic's window, by its source and id.
        """
        records = to_records(events)
        return self.append_many(
            name,
            events_json(records, tag, delay_ms),
            node=node,
            idempotency_key=one_event_key(records) if dedupe else idempotency_key,
            create=create,
            return_seqs=return_seqs,
        )

    def append_all(
        self,
        topics: Mapping[str, Outgoings | TopicBatch],
        *,
        idempotency_key: str | None = None,
        return_seqs: bool = True,
        disable_backpressure: bool = False,
    ) -> AppendedAll:
        """Append to several topics, to all of them or to none; each gets records, or a TopicBatch."""
        del disable_backpressure
        ready = {name: _ready_made(given) for name, given in topics.items()}
        body = body_of(topics=topics_json(ready, self._node), idempotency_key=idempotency_key)
        params = decoded(_multi_decoder, body)
        for name, part in params.topics.items():
            check_nesting(part.records, f"topics.{name}.records")
        change = self._host.commit(lambda: self._host.store.multi_append.append(params))
        landed: dict[str, Landed] = change.result
        return AppendedAll(
            topics={name: _appended_to(part, change, return_seqs=return_seqs) for name, part in landed.items()},
            deduped=change.deduped,
        )

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
    ) -> Producer:
        """Appends that are collected into batches in the background; see `topics.client.Producer`."""
        return Producer(
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

    def diff(
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
        params = request_of(
            DiffRequest,
            from_seq=from_seq,
            limit=limit,
            from_ts=from_ts,
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            wait_ms=wait_ms,
            max_batch_bytes=max_batch_bytes,
        )
        host = self._host
        found = host.look(lambda: host.engine.diff(name, params))
        if params.wait_ms and not found.count and found.tombstone is None:
            try:
                found = host.run(long_poll(host.engine, host.runner, name, params, found))
            except ShuttingDown:
                pass
        return readable(name, found)

    def read(
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
    ) -> Iterator[Record | Tombstone]:
        """Every record after `from_seq`, up to the current head, or without end with `follow`.

        Lost records are reported as a Tombstone in their place. `to_seq` ends the reading there.
        """
        while True:
            page = self.diff(
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

    def tail(
        self,
        name: str,
        from_seq: int | None = None,
        *,
        node: Node = None,
        include_tags: bool = False,
        idle_s: float | None = None,
    ) -> Iterator[Record | Tombstone]:
        """Records as they are appended, after `from_seq` or from now on; a gap is a Tombstone.

        Ends when nothing came for `idle_s` seconds (None: never), or when the database is closed.
        """
        host = self._host
        state = host.look(lambda: host.engine.look(name, touch=False))
        cursor, epoch = state.head_seq if from_seq is None else from_seq, state.epoch
        limit = host.settings.max_limit
        params = request_of(DiffRequest, from_seq=cursor, limit=limit, node=node, include_tags=include_tags)
        while True:
            diff = self._look_or_wait(name, epoch, params, idle_s)
            if diff is None:
                return
            if diff.epoch != epoch:
                # Another topic of this name: the cursor is not valid for it.
                epoch, params.from_seq = diff.epoch, 0
                yield Tombstone(
                    gap_from=1,
                    gap_to=diff.head_seq,
                    reason="recreated",
                    missed_estimate=diff.head_seq,
                    earliest_seq=diff.earliest_seq,
                    head_seq=diff.head_seq,
                )
                continue
            if diff.tombstone is not None:
                yield diff.tombstone
            yield from diff.records
            params.from_seq = diff.next_from_seq

    def _look_or_wait(self, name: str, epoch: int, params: DiffRequest, idle_s: float | None) -> Diff | None:
        """The next record or gap; None if there was none in time or the database was closed."""
        host = self._host
        while not host.closed:
            try:
                diff = host.look(lambda: host.engine.diff(name, params))
            except ShuttingDown:
                return None
            if diff.count or diff.tombstone is not None or diff.epoch != epoch:
                return readable(name, diff)
            params.from_seq = diff.next_from_seq
            if not diff.caught_up:
                continue
            topic = host.store.state.by_name.get(name)
            if topic is not None and topic.epoch == epoch and not self._wait_after(topic, params.from_seq, idle_s):
                return None
        return None

    def _wait_after(self, topic: Topic, from_seq: int, timeout_s: float | None) -> bool:
        """Whether there was something to read, or the topic was deleted, before the time was up."""
        host = self._host

        def is_over() -> bool:
            gone = host.store.state.by_id.get(topic.id) is not topic
            return gone or topic.head_seq != from_seq

        with host.lock:
            waiter = host.engine.waiters.add(topic, host.moved.notify_all)
        try:
            return host.wait_until(is_over, timeout_s)
        finally:
            with host.lock:
                host.engine.waiters.remove(waiter)

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
    ) -> Export:
        """Everything after `from_seq` up to `to_seq` (or the end) as chunks of whole JSON lines; see Export."""
        start = request_of(DiffRequest, from_seq=from_seq, from_ts=from_ts, node=node)
        meta = include_data if include_meta is None else include_meta
        return Export(
            self._host, name, start, to_seq, tags=include_tags, meta=meta, data=include_data, chunk_bytes=chunk_bytes
        )


def _ready_made(given: Outgoings | TopicBatch) -> TopicBatch:
    batch = given if isinstance(given, TopicBatch) else TopicBatch(given)
    return msgspec.structs.replace(batch, records=encoded(batch.records))


def _appended_to(landed: Landed, change: PendingChange, *, return_seqs: bool) -> AppendedTo:
    return AppendedTo(
        first_seq=landed.first_seq,
        last_seq=landed.last_seq,
        head_seq=landed.head_seq,
        # A repeated write created nothing.
        created=landed.created and not change.deduped,
        given_seqs=landed.all_seqs() if return_seqs else None,
    )

"""A topic as bytes: chunks of JSON lines, read slice by slice."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import msgspec
from msgspec import UNSET

from topics.client.exporting import ExportEnd
from topics.embedded.host import Host
from topics.engine.log.bulk import SLICE_BYTES, BulkRead
from topics.engine.log.reading import View
from topics.model.errors import TopicNotFound
from topics.model.names import check_topic_name
from topics.model.requests.records import DiffRequest, check_u64

_end_decoder = msgspec.json.Decoder(ExportEnd)


class Export:
    """Iterate to get chunks of whole lines, each line one record as in `diff`, `{"$seq":…` first.

    A gap is a line `{"tombstone":…}` in its place. Afterwards `end` says where the next export continues.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        start: DiffRequest,
        to_seq: int | None,
        *,
        tags: bool,
        meta: bool,
        data: bool,
        chunk_bytes: int,
    ) -> None:
        self._host = host
        self._name = name
        self._start = start
        self._to_seq = to_seq
        self._view = View(start.nodes(host.settings.max_node_bytes), tags=tags, meta=meta, data=data, lines=True)
        self._chunk_bytes = chunk_bytes
        self._closed = False
        self._chunks = self._read()
        # its position, and, once it is complete, where it ended
        self.from_seq = start.from_seq
        self.end: ExportEnd | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def _begin(self) -> BulkRead:
        host, start = self._host, self._start
        topic = host.store.state.by_name.get(self._name)
        if topic is None:
            check_topic_name(self._name)
            raise TopicNotFound(self._name)
        from_seq = check_u64(start.from_seq, "from_seq")
        if start.from_ts is not UNSET:
            from_seq = max(from_seq, host.engine.seq_before(topic, start.from_ts))
        view = self._view if topic.config.dedupe_node else self._view._replace(nodes=frozenset[str]())
        to_seq = topic.head_seq if self._to_seq is None else self._to_seq
        topic.last_read_ts = host.live.now_ms()
        slice_bytes = min(SLICE_BYTES, max(1, self._chunk_bytes))
        return BulkRead(topic, view, from_seq, to_seq, host.store.state.cold.load, host.live.expire, slice_bytes)

    def _lines(self, bulk: BulkRead) -> bytes:
        if self._host.store.state.by_id.get(bulk.topic.id) is not bulk.topic:
            raise TopicNotFound(self._name)
        diff = bulk.read()
        return b"" if diff is None else bytes(bulk.lines(diff))

    def _read(self) -> Iterator[bytes]:
        bulk = self._host.look(self._begin)
        while True:
            chunk: list[bytes] = []
            size = 0
            while size < self._chunk_bytes and not bulk.is_over:
                chunk.append(self._host.look(lambda: self._lines(bulk)))
                size += len(chunk[-1])
            if bulk.is_over:
                self.end = self._host.look(lambda: _end_decoder.decode(bulk.end()))
            self.from_seq = bulk.seq
            if size:
                yield b"".join(chunk)
            if self._closed or self.end is not None:
                return

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Export:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

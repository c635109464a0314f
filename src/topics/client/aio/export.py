"""A topic as bytes: large chunks of JSON lines, or an Arrow stream, as fast as the connection delivers them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType

from topics.client.aio.wire.transport import AsyncStream, AsyncTransport
from topics.client.errors import ConnectionFailed, NotAcceptable, TopicsError
from topics.client.exporting import ARROW, Cutter, ExportEnd, last_seq
from topics.client.request import QueryValue, topic_path, with_query


class AsyncExport:
    """Iterate to get chunks of whole lines, each line one record as in `diff`, `{"$seq":…` first.

    A gap is a line `{"tombstone":…}` in its place. A connection that breaks is reopened where the last chunk ended.
    Afterwards `end` says where the next export continues.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        name: str,
        from_seq: int,
        to_seq: int | None,
        query: Mapping[str, QueryValue],
        chunk_bytes: int,
    ) -> None:
        self._transport = transport
        self._path = topic_path(name, "/export")
        self._to_seq = to_seq
        self._query = query
        self._chunk_bytes = chunk_bytes
        self._stream: AsyncStream | None = None
        self._chunks = self._read()
        # its position, and, once it is complete, what the last line says
        self._first_seq = from_seq
        self.from_seq = from_seq
        self.end: ExportEnd | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def _read(self) -> AsyncIterator[bytes]:
        retrying = self._transport.retrying(safe=True)
        while True:
            try:
                async for chunk in self._attempt():
                    yield chunk
                    retrying = self._transport.retrying(safe=True)
                return
            except TopicsError as error:
                await self._transport.pause(retrying, error)

    async def _attempt(self) -> AsyncIterator[bytes]:
        query: dict[str, QueryValue] = {**self._query, "from_seq": self.from_seq, "to_seq": self._to_seq}
        if self.from_seq > self._first_seq:
            query["from_ts"] = None
        stream = self._stream = await self._transport.open(
            with_query(self._path, query), accept="application/x-ndjson, application/json"
        )
        cutter = Cutter(self._chunk_bytes)
        # One chunk is held back: only the next one shows whether it has the last line.
        held: bytes | None = None
        try:
            async for piece in stream.pieces():
                chunk = cutter.feed(piece)
                if chunk is not None:
                    if held is not None:
                        self.from_seq = last_seq(held)
                        yield held
                    held = chunk
        finally:
            await stream.close()
        rest = cutter.finish(held)
        if cutter.end is None:
            raise ConnectionFailed(f"the export of {self._path} is truncated: its last line is missing")
        self.end = cutter.end
        self.from_seq = cutter.end.next_from_seq
        if rest:
            yield rest

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()

    async def __aenter__(self) -> AsyncExport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncArrowExport:
    """The bytes of an Arrow IPC stream, to be read like a file; the request is sent by the first read.

    The metadata of its schema has `topic` and `epoch`. A gap is a batch without rows with the metadata `tombstone`, and
    the last batch has no rows and the metadata `end`: JSON, as in the lines of an export. A broken connection is an
    exception; read again after the last seq.
    """

    def __init__(
        self, transport: AsyncTransport, name: str, from_seq: int, to_seq: int | None, query: Mapping[str, QueryValue]
    ) -> None:
        self._transport = transport
        self._path = with_query(topic_path(name, "/export"), {**query, "from_seq": from_seq, "to_seq": to_seq})
        self._stream: AsyncStream | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._parts: list[bytes] = []
        self._bytes = 0
        self.closed = False

    async def read(self, size: int = -1) -> bytes:
        """This many bytes, fewer only at the end; without a size all that remain."""
        pieces = await self._opened()
        while size < 0 or self._bytes < size:
            piece = await anext(pieces, None)
            if piece is None:
                break
            self._parts.append(piece)
            self._bytes += len(piece)
        whole = b"".join(self._parts)
        found = whole if size < 0 else whole[:size]
        rest = whole[len(found) :]
        self._parts, self._bytes = ([rest], len(rest)) if rest else ([], 0)
        return found

    async def _opened(self) -> AsyncIterator[bytes]:
        if self._pieces is None:
            stream = self._stream = await self._transport.open(self._path, accept=f"{ARROW}, application/json;q=0.1")
            media_type = str(stream.headers.get("content-type", ""))
            if media_type != ARROW:
                await self.close()
                raise NotAcceptable(f"the server sends {media_type} instead of Arrow: it is older than this client")
            self._pieces = stream.pieces()
        return self._pieces

    def readable(self) -> bool:
        return True

    async def close(self) -> None:
        self.closed = True
        if self._stream is not None:
            await self._stream.close()

    async def __aenter__(self) -> AsyncArrowExport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

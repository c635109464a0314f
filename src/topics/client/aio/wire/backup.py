"""A copy of the whole server as bytes, in pieces as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType

from topics.client.aio.wire.transport import AsyncStream, AsyncTransport
from topics.client.errors import TopicsError

BACKUP_PATH = "/v0/backup"
BYTES_TOTAL = "Topics-Backup-Bytes"


class AsyncBackup:
    """Enter it, then iterate: pieces of a tar whose last file is the manifest. A truncated reply raises.

    It is not retried once bytes have arrived: a second attempt would be another backup.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._stream: AsyncStream | None = None
        # the total length of all pieces; known once it is entered
        self.bytes_total = 0

    async def __aenter__(self) -> AsyncBackup:
        retrying = self._transport.retrying(safe=True)
        while self._stream is None:
            try:
                self._stream = await self._transport.open(BACKUP_PATH, accept="application/x-tar, application/json")
            except TopicsError as error:
                # Another backup may take hours: the caller decides whether to wait for it.
                if error.detail.get("limit") == "backups":
                    raise
                await self._transport.pause(retrying, error)
        self.bytes_total = int(self._stream.headers.get(BYTES_TOTAL, 0))
        return self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert self._stream is not None, "enter it first: `with client.backup() as pieces`"
        async for piece in self._stream.pieces():
            yield piece

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

"""A copy of the whole server as bytes, in pieces as they arrive."""

# Made by tools/sync_half.py from aio/wire/backup.py: change that one.
from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from topics.client.errors import TopicsError
from topics.client.sync.wire.transport import Stream, Transport

BACKUP_PATH = "/v0/backup"
BYTES_TOTAL = "Topics-Backup-Bytes"


class Backup:
    """Enter it, then iterate: pieces of a tar whose last file is the manifest. A truncated reply raises.

    It is not retried once bytes have arrived: a second attempt would be another backup.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stream: Stream | None = None
        # the total length of all pieces; known once it is entered
        self.bytes_total = 0

    def __enter__(self) -> Backup:
        retrying = self._transport.retrying(safe=True)
        while self._stream is None:
            try:
                self._stream = self._transport.open(BACKUP_PATH, accept="application/x-tar, application/json")
            except TopicsError as error:
                # Another backup may take hours: the caller decides whether to wait for it.
                if error.detail.get("limit") == "backups":
                    raise
                self._transport.pause(retrying, error)
        self.bytes_total = int(self._stream.headers.get(BYTES_TOTAL, 0))
        return self

    def __iter__(self) -> Iterator[bytes]:
        assert self._stream is not None, "enter it first: `with client.backup() as pieces`"
        yield from self._stream.pieces()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

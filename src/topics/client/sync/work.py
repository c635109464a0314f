"""Jobs pushed by the server over a stream that is reopened when it breaks."""

# Made by tools/sync_half.py from aio/work.py: change that one.
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType

import msgspec

from topics.client.errors import BadAnswer, ConnectionFailed, ShuttingDown, TopicsError, error_of
from topics.client.jobs import Job
from topics.client.live import fault_decoder
from topics.client.retrying import Retrying
from topics.client.sse import Event, EventParser
from topics.client.sync.wire.transport import Stream, Transport
from topics.model.requests.nesting import decode_deep

SILENCE_S_MAX = 35.0
_job = msgspec.json.Decoder(Job)


class Work:
    """Iterate to get jobs, at most `max` of them unacked; ack them with `ack` as usual.

    When the stream ends, for whatever reason, its unacked jobs go back to the queue at once; it reconnects for up to
    `reconnect_s_max` seconds.
    """

    def __init__(self, transport: Transport, path: str, reconnect_s_max: float) -> None:
        self._transport = transport
        self._path = path
        self._reconnect_s_max = reconnect_s_max
        self._stream: Stream | None = None
        self._pieces: Iterator[bytes] | None = None
        self._parser = EventParser()
        self._jobs: deque[Job] = deque()
        self._retrying: Retrying | None = None
        self._closed = False
        # how often a stream was opened
        self.connections = 0

    def __iter__(self) -> Work:
        return self

    def __next__(self) -> Job:
        while not self._closed:
            if self._jobs:
                return self._jobs.popleft()
            try:
                self._receive()
            except TopicsError as error:
                self._lose()
                if self._closed:
                    break
                self._retrying = self._retrying or self._transport.reconnecting(self._reconnect_s_max)
                self._transport.pause(self._retrying, error)
        raise StopIteration

    def _receive(self) -> None:
        if self._pieces is None:
            stream = self._stream = self._transport.open(self._path, accept="text/event-stream", read_s=SILENCE_S_MAX)
            self._parser = EventParser()
            self._pieces = stream.pieces()
            self.connections += 1
        for piece in self._pieces:
            self._retrying = None
            for event in self._parser.feed(piece):
                self._take(event)
            return
        raise ConnectionFailed("the server ended the work stream")

    def _take(self, event: Event) -> None:
        try:
            if event.name == "job":
                self._jobs.append(decode_deep(_job.decode, event.data))
            elif event.name == "error":
                fault = fault_decoder.decode(event.data)
                if fault.code == 503:
                    raise ShuttingDown(fault.error, status=503)
                if fault.code in (404, 409):
                    raise error_of("topic_not_found" if fault.code == 404 else "not_a_queue", fault.error, fault.code)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"an event of the work stream cannot be read: {error}") from None

    def _lose(self) -> None:
        """Jobs that were not returned yet go back to the queue."""
        self._jobs.clear()
        self._pieces = None
        if self._stream is not None:
            self._stream.close()

    def close(self) -> None:
        """End the stream: its unacked jobs go back to the queue. May be called during the iteration."""
        self._closed = True
        self._lose()

    def __enter__(self) -> Work:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Event streams: bytes in pieces of any size become events."""

from __future__ import annotations

from typing import NamedTuple

from topics.client.errors import BadAnswer

LINE_BYTES_MAX = 64 * 1024 * 1024


class Event(NamedTuple):
    name: str
    data: bytes
    # None: this event does not move the position
    id: str | None


class EventParser:
    """Lines end with a newline, as this server writes them; comments and unknown fields are skipped."""

    __slots__ = ("_data", "_id", "_name", "_rest", "_rest_bytes")

    def __init__(self) -> None:
        # a line that is not complete yet, in pieces
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._name = "message"
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, piece: bytes) -> list[Event]:
        """The events that are complete with this piece."""
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if b"\n" not in piece:
            if self._rest_bytes > LINE_BYTES_MAX:
                raise BadAnswer(f"a line of the event stream is longer than {LINE_BYTES_MAX} bytes")
            return []
        events: list[Event] = []
        lines = b"".join(self._rest).split(b"\n")
        self._rest = [lines.pop()]
        self._rest_bytes = len(self._rest[0])
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._take(line)
                continue
            if self._data:
                events.append(Event(self._name, b"\n".join(self._data), self._id))
            self._name, self._data, self._id = "message", [], None
        return events

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._name = value.decode("utf-8", "replace")
            case b"id":
                self._id = value.decode("utf-8", "replace")
            case _:
                pass

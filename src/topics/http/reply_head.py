"""Reply heads as bytes: status lines rendered once, dates once per second, the rest only where it is needed.

| HTTP/1.1 200 OK | Date | Content-Type | Content-Length: |  12 CRLF CRLF body
'------------- one cached prefix per status -------------'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, cast

from topics.http.request import JSON, Bytes, Header

BODILESS = frozenset((204, 304))
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_reasons: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_forbidden_in_value = (b"\r", b"\n", b"\0")


class Heads(dict[int, bytes]):
    """Prefixes of JSON replies by status, up to and including `Content-Length: `; cleared when the date changes."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        super().__init__()
        self._wall_clock = wall_clock
        self._date_s: int = -1
        self._date = b""
        self.refresh()

    def __missing__(self, status: int) -> bytes:
        head = b"%bContent-Type: %b\r\nContent-Length: " % (self.opening(status), JSON)
        self[status] = head
        return head

    @property
    def date(self) -> bytes:
        return self._date

    def refresh(self) -> None:
        now_s = int(self._wall_clock())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = formatdate(now_s, usegmt=True).encode()
            self.clear()

    def opening(self, status: int) -> bytes:
        """Status line and date."""
        return b"HTTP/1.1 %d %b\r\nDate: %b\r\n" % (status, _reasons.get(status, b"Unknown"), self._date)


def check_headers(headers: Sequence[Header]) -> None:
    """A line break in a handler's header would start another header: a bug."""
    for name, value in headers:
        for byte in _forbidden_in_value:
            if byte in name or byte in value:
                raise ValueError(f"header {name!r} holds a line break or NUL")


def header_lines(headers: Sequence[Header]) -> bytes:
    """Headers of a handler as lines."""
    if not headers:
        return b""
    check_headers(headers)
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def body_length(parts: Sequence[Bytes]) -> int:
    return sum([len(part) for part in parts])


def as_parts(body: Bytes | Sequence[Bytes]) -> Sequence[Bytes]:
    if isinstance(body, bytes | bytearray):
        return (body,) if body else ()
    if isinstance(body, memoryview):
        return (cast("memoryview", body),)
    return body

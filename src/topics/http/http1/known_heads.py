"""Heads that a connection repeats: recognised by their bytes, so that each is parsed, routed and authorised once.

    POST /v0/topics/t HTTP/1.1 … Authorization: Bearer k3y … Content-Length: 75 … CRLF CRLF body
    '------------ compared --------------------''-digest--''--- compared ---''--- compared ----'  any

A head is kept if it arrived whole with all of its body and nothing else, if the parser has accepted it, and if the
handler has set its conclusions (`Request.judged`). It is recognised only if it arrives in the same way, between two
requests; all other bytes go through the parser. The value of `Authorization` is not kept.
"""

from __future__ import annotations

import hashlib
import re
from hmac import compare_digest
from typing import Final, TypeVar

from topics.http.content_coding import accepts_gzip
from topics.http.http1.request import Http1Request
from topics.http.request import Header, ReplyWriter

T = TypeVar("T")

# Per connection. A client that uses more targets than this in turn is served by the parser.
HEADS_MAX = 4
HEAD_BYTES_MAX = 1024
# After this many new heads in a row, only one in this many is checked: some clients repeat no head.
MISSED_MAX = 16

_length_line: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_secret_line: Final = re.compile(rb"\r\nauthorization:[ \t]*([^\r\n]+)\r\n", re.IGNORECASE)
# Headers that change how the request is read, or carry a secret that is not handled here.
_unkept: Final = frozenset(
    (
        *(b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"trailer", b"te"),
        *(b"cookie", b"proxy-authorization", b"sec-websocket-protocol"),
    )
)


def _digest(secret: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(secret, key=key, digest_size=16).digest()


class KnownHead:
    """One head with two gaps: the value of `Authorization`, and the digits of `Content-Length`.

    Of the former it keeps a digest, with a key of this process.
    """

    __slots__ = (
        "_after",
        "_before",
        "_body_bytes_max",
        "_digest_key",
        "_digits_at",
        "_fixed_bytes",
        "_headers",
        "_judged",
        "_length_place",
        "_method",
        "_path_segments",
        "_query",
        "_raw_path",
        "_secret_at",
        "_secret_bytes",
        "_secret_digest",
        "_secret_place",
        "_size",
        "_start",
        "_takes_gzip",
        "_text",
    )

    def __init__(self, raw: bytes, request: Http1Request, body_bytes_max: int, digest_key: bytes) -> None:
        """`raw` is the head as it arrived, with the empty line at its end."""
        self._digest_key = digest_key
        self._method = request.method
        self._raw_path = request.raw_path
        self._path_segments = request.path_segments
        self._query = request.query
        self._judged = request.judged
        self._takes_gzip = accepts_gzip(request.header(b"accept-encoding"))
        self._body_bytes_max = body_bytes_max
        # The text has no gaps: these are the positions where they are filled in. -1: there is none.
        secret, length = _secret_line.search(raw), _length_line.search(raw)
        gaps = sorted([match.span(1) for match in (secret, length) if match is not None], reverse=True)
        text = raw
        for start, stop in gaps:
            text = text[:start] + text[stop:]
        self._text = text
        self._secret_at = self._digits_at = -1
        self._secret_bytes = self._secret_place = 0
        self._secret_digest = b""
        self._headers = request.headers
        if secret is not None:
            self._secret_bytes = len(secret[1])
            self._secret_digest = _digest(secret[1], digest_key)
            self._secret_at = secret.start(1)
            self._secret_place = [name for name, _ in request.headers].index(b"authorization")
            self._headers = [header for header in request.headers if header[0] != b"authorization"]
        self._length_place = -1
        if length is not None:
            self._digits_at = length.start(1)
            self._length_place = [name for name, _ in self._headers].index(b"content-length")
        if secret is not None and length is not None:
            if self._secret_at < self._digits_at:
                self._digits_at -= self._secret_bytes
            else:
                self._secret_at -= len(length[1])
        self._fixed_bytes = len(text) + self._secret_bytes
        self._start = text[: gaps[-1][0]] if gaps else text
        # The two pieces around the secret, with the digits filled in, for requests of this size.
        self._size = -1
        self._before = self._after = b""
        if length is None:
            self._cut(text, 0)
            self._size = self._fixed_bytes

    def body_at(self, data: bytes) -> int:
        """Where the body begins, if these bytes are this head, its whole body and nothing more; otherwise 0."""
        if len(data) != self._size and not (data.startswith(self._start) and self._fit(len(data))):
            return 0
        before = self._before
        if not data.startswith(before):
            return 0
        at = len(before)
        if self._secret_bytes:
            stop = at + self._secret_bytes
            if not data.startswith(self._after, stop) or not compare_digest(
                _digest(data[at:stop], self._digest_key), self._secret_digest
            ):
                return 0
            at = stop + len(self._after)
        return at

    def request(self, writer: ReplyWriter, data: bytes, body_at: int) -> Http1Request:
        """The request in these bytes."""
        headers = self._headers
        if self._secret_bytes:
            at = len(self._before)
            headers = headers.copy()
            headers.insert(self._secret_place, (b"authorization", data[at : at + self._secret_bytes]))
        request = Http1Request(writer, self._method, headers)
        request.raw_path = self._raw_path
        request.path_segments = self._path_segments
        request.query = self._query
        request.judged = self._judged
        request.takes_gzip = self._takes_gzip
        if body_at < len(data):
            request.has_body = True
            request.body = data[body_at:]
        return request

    def _fit(self, size: int) -> bool:
        """Prepare for a request of `size` bytes in total: its body is what the head leaves."""
        rest = size - self._fixed_bytes
        if self._digits_at < 0 or rest <= 0:
            return False
        for width in (len(str(rest)), len(str(rest)) - 1):
            digits = b"%d" % (rest - width)
            if len(digits) == width and rest - width <= self._body_bytes_max:
                at = self._digits_at
                self._cut(b"%b%b%b" % (self._text[:at], digits, self._text[at:]), width)
                # A new list: earlier requests have the previous one.
                self._headers = self._headers.copy()
                self._headers[self._length_place] = (b"content-length", digits)
                self._size = size
                return True
        return False

    def _cut(self, text: bytes, digits: int) -> None:
        if not self._secret_bytes:
            self._before, self._after = text, b""
            return
        at = self._secret_at + (digits if self._digits_at < self._secret_at else 0)
        self._before, self._after = text[:at], text[at:]


class KnownHeads:
    """The heads of one connection."""

    __slots__ = ("_body_bytes_max", "_digest_key", "_heads", "_missed", "_seen", "_writer")

    def __init__(self, writer: ReplyWriter, body_bytes_max: int, digest_key: bytes) -> None:
        self._writer = writer
        self._body_bytes_max = body_bytes_max
        self._digest_key = digest_key
        self._heads: list[KnownHead] = []
        # Hashes of heads that came once, and how many heads have come since one was kept.
        self._seen: list[int] = []
        self._missed = 0

    def recognise(self, data: bytes) -> Http1Request | None:
        """The request in these bytes, if its head is known; only between two requests."""
        for head in self._heads:
            body_at = head.body_at(data)
            if body_at:
                return head.request(self._writer, data, body_at)
        return None

    def note(self, data: bytes, request: Http1Request) -> None:
        """The parser has read this request from these bytes, which began between two requests."""
        self._missed += 1
        if self._missed > MISSED_MAX and self._missed % MISSED_MAX:
            return
        head_bytes = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
        if head_bytes < 4 or len(data) - head_bytes != len(request.body):
            return
        headers = [header for header in request.headers if header[0] != b"content-length"]
        key = hash((request.method, request.raw_path, request.query, *headers))
        if key not in self._seen:
            _push(self._seen, key)
        elif is_repeatable(data[:head_bytes], request):
            _push(self._heads, KnownHead(data[:head_bytes], request, self._body_bytes_max, self._digest_key))
            self._missed = 0


def _push(latest: list[T], item: T) -> None:
    if len(latest) == HEADS_MAX:
        del latest[0]
    latest.append(item)


def is_repeatable(raw: bytes, request: Http1Request) -> bool:
    """Whether the lines of this head are exactly the headers of its request, and none of them is special."""
    headers: list[Header] = request.headers
    lines = raw.count(b"\r\n")
    if lines != len(headers) + 2 or lines != raw.count(b"\n") or not raw.startswith(request.method.encode() + b" "):
        return False
    names = [name for name, _ in headers]
    if any(name in _unkept for name in names) or names.count(b"authorization") > 1:
        return False
    secret, length = _secret_line.search(raw), _length_line.search(raw)
    value = request.header(b"authorization")
    if value is not None and (secret is None or secret[1] != value):
        return False
    return (length is not None) == (b"content-length" in names)

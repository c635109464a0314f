"""HTTP/1 bytes in, complete requests out: refuses requests that llhttp accepts and this server does not.

bytes ─▶ llhttp ─▶ on_url, on_header* ─▶ on_headers_complete ─▶ on_body* ─▶ on_message_complete ─▶ Connection.accept
                     limits 414, 431       framing, Host, 413     413
"""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

import httptools

from topics.http.connections import Connections
from topics.http.http1.known_heads import KnownHeads
from topics.http.http1.request import Http1Request
from topics.http.limits import HttpLimits
from topics.http.refusal import (
    BadRequest,
    BodyTooLarge,
    HeadersTooLarge,
    Refusal,
    RequestTimeout,
    UriTooLong,
)
from topics.http.request import Header, ReplyWriter
from topics.http.request_ids import ID_NAMES, ids_in
from topics.http.target import SLASH, origin_form, split_target

FEED_BYTES_MAX = 8 * 1024  # fed to the parser at once, because the parser cannot be stopped in between
# A slice of input is a few milliseconds of work: a piece of a body weighs about a microsecond, a request 32 times that.
SLICE_WEIGHT_MAX = 2048
REQUEST_WEIGHT = 32
PARTS_MAX = 1024  # pieces of a body before they are joined, so that tiny chunks do not cost an object each

_methods: Final = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")}
_usual_names = (
    *(b"Host", b"User-Agent", b"Accept", b"Accept-Encoding", b"Authorization", b"Content-Type", b"Content-Length"),
    *(b"Connection", b"Idempotency-Key", b"Origin", b"Last-Event-ID", b"Content-Encoding", b"Transfer-Encoding"),
)
# one object per name: its hash is computed once and its comparisons are by identity
_names: Final = {
    spelling: name for usual, name in [(usual, usual.lower()) for usual in _usual_names] for spelling in (usual, name)
}
_weighed: Final = frozenset(
    (
        *(b"host", b"content-length", b"connection", b"transfer-encoding", b"content-encoding", b"expect", b"upgrade"),
        *ID_NAMES,
    )
)


class Connection(Protocol):
    """The connection, as far as arriving requests are concerned."""

    def accept(self, request: Http1Request) -> None: ...
    def refuse(self, refusal: Refusal, request: Http1Request | None) -> None: ...
    def offer_upgrade(self, request: Http1Request, early: bytes) -> None: ...
    def check_head(self, request: Http1Request) -> bool: ...
    def reserve_memory(self, request: Http1Request, size_bytes: int) -> None: ...
    def expect_continue(self, request: Http1Request) -> None: ...


class BodyUnread(Exception):
    """The head has a reply already: stop parsing."""


class RequestReader:
    """The parser of one connection and its unfinished request."""

    __slots__ = (
        "_begun",
        "_blocks",
        "_body_bytes",
        "_body_bytes_seen",
        "_body_bytes_stop",
        "_body_since_s",
        "_complete",
        "_connection",
        "_connections",
        "_content_length",
        "_fed_bytes",
        "_feed_bytes",
        "_head_checked",
        "_head_since_s",
        "_headers",
        "_known",
        "_limits",
        "_parser",
        "_parts",
        "_quiet_bytes",
        "_replaying",
        "_request",
        "_spans_feeds",
        "_upgrading",
        "_url",
        "_writer",
        "weight",
    )
    __deletable__: ClassVar = ["_parser"]

    def __init__(
        self,
        writer: ReplyWriter,
        connection: Connection,
        limits: HttpLimits,
        connections: Connections,
        digest_key: bytes,
    ) -> None:
        self._writer = writer
        self._connection = connection
        self._connections = connections
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        # After a known head the body goes to its handler at once: larger ones wait for their turn, or for memory.
        self._known = KnownHeads(writer, min(limits.turn_body_bytes, limits.large_body_bytes), digest_key)
        # the parser has read the first byte of a request and not its last one
        self._begun = False
        # the request that the current feed completed, if its head may be repeated
        self._complete: Http1Request | None = None
        # the work of the parser since this was last set to 0
        self.weight = 0
        # per request
        self._url = b""
        self._headers: list[Header] = []
        self._request: Http1Request | None = None
        self._content_length = -1
        self._head_checked = False
        self._upgrading = False
        self._replaying = False
        self._parts: list[bytes] = []
        self._blocks: list[bytes] = []
        self._body_bytes = 0
        self._body_bytes_stop = 0
        # per request that spans several feeds
        self._spans_feeds = False
        self._feed_bytes = 0
        self._fed_bytes = 0
        self._quiet_bytes = 0
        self._body_bytes_seen = 0
        self._head_since_s = 0.0
        self._body_since_s = 0.0

    @property
    def idle(self) -> bool:
        """Between two requests."""
        return not self._url

    @property
    def incoming(self) -> Http1Request | None:
        """The request whose body is being read."""
        return self._request

    def close(self) -> None:
        """Release the parser, which refers to this object."""
        del self._parser
        self._request = None

    def recognise(self, data: bytes) -> Http1Request | None:
        """The request in these bytes, if its head is known; None: feed them."""
        return None if self._begun else self._known.recognise(data)

    def feed_bytes_max(self) -> int:
        """How much may be fed at once: the rest of a body of known length holds no further request."""
        if self._request is not None and self._content_length > self._body_bytes:
            return max(FEED_BYTES_MAX, self._content_length - self._body_bytes)
        return FEED_BYTES_MAX

    def feed(self, data: bytes | memoryview) -> bytes | None:
        """Parse; returns bytes that have to be fed again (after an upgrade that is not offered), usually None."""
        self._feed_bytes = len(data)
        rest: bytes | None = None
        begun = self._begun
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = self._resolve_upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserCallbackError as failure:
            self._fail(failure.__context__ or failure)
        except httptools.HttpParserError as failure:
            self._connection.refuse(BadRequest(f"not a valid HTTP/1 request: {failure}"), self._request)
        complete, self._complete = self._complete, None
        if complete is not None and not begun and complete.judged is not None and isinstance(data, bytes):
            self._known.note(data, complete)
        if self._url:
            try:
                self._note_partial(self._connections.now_s)
            except Refusal as refusal:
                self._connection.refuse(refusal, self._request)
        return rest

    def check_deadline(self, now_s: float) -> None:
        """Raise if the request being read takes too long."""
        limits = self._limits
        if self._request is None:
            if self._head_since_s and now_s - self._head_since_s > limits.head_ms_max / 1000:
                raise RequestTimeout("the head of the request took too long")
        elif self._body_since_s:
            large = self._request.memory is not None
            bytes_per_s_min = limits.large_body_bytes_per_s_min if large else limits.body_bytes_per_s_min
            allowed_s = limits.body_ms_max / 1000 + self._body_bytes / bytes_per_s_min
            if now_s - self._body_since_s > allowed_s:
                raise RequestTimeout("the body of the request took too long")

    def restart_body_clock(self, now_s: float) -> None:
        """The server made the client wait: that time does not count."""
        self._body_since_s = now_s

    # called by the parser

    def on_message_begin(self) -> None:
        self._begun = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.uri_bytes_max:
            raise UriTooLong(self._limits.uri_bytes_max)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((_names.get(name) or name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        parser = self._parser
        limits = self._limits
        headers, self._headers = self._headers, []
        method = _methods.get(parser.get_method()) or parser.get_method().decode("ascii")
        request = self._request = Http1Request(self._writer, method, headers)
        if len(headers) > limits.header_count_max or self._fed_bytes + self._feed_bytes > limits.header_bytes_max:
            self._check_head_size(headers)
        hosts = 0
        length = -1
        rare = False
        keep_alive = versioned = parser.should_keep_alive()
        for name, value in headers:
            if name in _weighed:
                if name == b"host":
                    hosts += 1
                elif name == b"content-length":
                    length = int(value)
                elif name == b"connection":
                    versioned = False
                else:
                    rare = True
        url = self._url
        self._content_length = length
        if length > 0:
            request.has_body = True
            self._body_bytes = 0
            self._body_bytes_stop = length
        # without a Connection header only HTTP/1.1 is kept alive, so the version, which is slow to get, is not needed
        if not versioned or hosts != 1 or method == "HEAD" or url[0] != SLASH:
            url = self._read_unusual_head(request, keep_alive, hosts)
        request.raw_path, request.path_segments, request.query = split_target(url, method)
        self._head_checked = False
        if rare:
            self._read_rare_headers(request)
        if length > limits.large_body_bytes:
            self._admit_large(request, length)
        if rare:
            self._read_expectation(request)

    def on_body(self, data: bytes) -> None:
        body_bytes = self._body_bytes + len(data)
        if body_bytes > self._body_bytes_stop:
            self._body_grows_to(body_bytes)
        self._body_bytes = body_bytes
        self.weight += 1
        parts = self._parts
        parts.append(data)
        if len(parts) == PARTS_MAX:
            self._blocks.append(b"".join(parts))
            parts.clear()

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._begun = False
        request = self._request
        assert request is not None
        self.weight += REQUEST_WEIGHT
        parts = self._parts
        if parts or self._blocks:
            if self._body_bytes > self._limits.turn_body_bytes:
                request.is_plain = False
            if self._body_bytes > self._limits.large_body_bytes:
                request.is_plain = False
                request.body_parts = [*self._blocks, *parts]
                self._blocks.clear()
            elif self._blocks or len(parts) > 1:
                request.body = b"".join((*self._blocks, *parts))
                self._blocks.clear()
            else:
                request.body = parts[0]
            parts.clear()
        self._request = None
        self._url = b""
        if self._headers:
            self._headers = []  # trailers
        if self._spans_feeds:
            self._spans_feeds = False
            self._fed_bytes = self._quiet_bytes = self._body_bytes_seen = 0
            self._head_since_s = self._body_since_s = 0.0
        if request.is_plain:
            self._complete = request
        self._connection.accept(request)

    # head

    def _check_head_size(self, headers: list[Header]) -> None:
        limits = self._limits
        if len(headers) > limits.header_count_max:
            raise HeadersTooLarge(f"more than {limits.header_count_max} headers", limits.header_count_max)
        if sum([len(name) + len(value) + 4 for name, value in headers]) > limits.header_bytes_max:
            raise HeadersTooLarge(f"headers above {limits.header_bytes_max} bytes", limits.header_bytes_max)

    def _read_unusual_head(self, request: Http1Request, keep_alive: bool, hosts: int) -> bytes:
        """Checks that the usual request does not need: version, Host, HEAD; returns the target as a path."""
        http_version = request.http_version = self._parser.get_http_version()
        if http_version not in ("1.0", "1.1"):
            raise BadRequest(f"HTTP/{http_version} is not supported; use 1.0, 1.1 or 2")
        if hosts > 1 or (hosts == 0 and http_version == "1.1"):
            raise BadRequest("a request must have exactly one Host header")
        request.keep_alive = keep_alive
        request.is_last = not keep_alive
        request.is_plain = keep_alive and http_version == "1.1" and request.method != "HEAD"
        return origin_form(self._url, request.header(b"host") or b"")

    def _read_rare_headers(self, request: Http1Request) -> None:
        request.ids = ids_in(request.headers)
        if request.ids is not None:
            # Its reply has another head, and its own head is never kept: the next one has other ids.
            request.is_plain = False
        if self._parser.should_upgrade():
            self._upgrading = True
            if (request.header(b"upgrade") or b"").lower() == b"websocket" and request.method == "GET":
                request.upgrade_to = "websocket"
        transfer_encodings = request.header_values(b"transfer-encoding")
        if transfer_encodings:
            if request.http_version == "1.0" or [name.lower() for name in transfer_encodings] != [b"chunked"]:
                raise BadRequest("transfer-encoding must be chunked, and needs HTTP/1.1")
            request.has_body = True
            self._body_bytes = 0
            self._body_bytes_stop = self._limits.large_body_bytes
        if request.header(b"content-encoding") is not None:
            # Decompressing costs more than sending: the server may refuse before it.
            self._check_head(request)
        request.read_content_encoding()
        if request.compressed:
            request.is_plain = False

    def _read_expectation(self, request: Http1Request) -> None:
        expectation = request.header(b"expect")
        if expectation is None or expectation.lower() != b"100-continue":
            return
        if request.http_version == "1.1" and request.has_body:
            self._check_head(request)
            self._connection.expect_continue(request)

    def _check_head(self, request: Http1Request) -> None:
        """The server checks a head once; if it replies, the body stays unread."""
        if not self._head_checked and not self._connection.check_head(request):
            raise BodyUnread
        self._head_checked = True

    # body

    def _admit_large(self, request: Http1Request, body_bytes: int) -> None:
        """The server may refuse by the head, before memory is reserved or the size is checked."""
        self._check_head(request)
        body_bytes_max = self._limits.body_bytes_max
        if body_bytes > body_bytes_max:
            raise BodyTooLarge(body_bytes_max)
        # the size of a compressed or chunked body is not known: the largest allowed one is reserved
        self._connection.reserve_memory(
            request, body_bytes_max if request.compressed or self._content_length < 0 else body_bytes
        )

    def _body_grows_to(self, body_bytes: int) -> None:
        """A chunked body exceeds a limit: it needs memory from the budget, or is too large."""
        request = self._request
        assert request is not None
        limits = self._limits
        if body_bytes > limits.body_bytes_max:
            self._parts.clear()
            self._blocks.clear()
            raise BodyTooLarge(limits.body_bytes_max)
        self._body_bytes_stop = limits.body_bytes_max
        self._admit_large(request, body_bytes)

    # requests in several feeds, upgrades, failures

    def _note_partial(self, now_s: float) -> None:
        """The feed ended inside a request: start its timer and count the bytes kept for it."""
        limits = self._limits
        self._spans_feeds = True
        if self._request is None:
            self._head_since_s = self._head_since_s or now_s
            self._fed_bytes += self._feed_bytes
            if (
                self._fed_bytes > limits.header_bytes_max + FEED_BYTES_MAX
                or len(self._headers) > limits.header_count_max
            ):
                raise HeadersTooLarge(f"headers above {limits.header_bytes_max} bytes", limits.header_bytes_max)
            return
        self._body_since_s = self._body_since_s or now_s
        # chunk extensions and trailers can be endless without ever being a body
        self._quiet_bytes = self._quiet_bytes + self._feed_bytes if self._body_bytes == self._body_bytes_seen else 0
        self._body_bytes_seen = self._body_bytes
        if self._quiet_bytes > limits.header_bytes_max:
            raise HeadersTooLarge("chunk extensions or trailers are too large", limits.header_bytes_max)

    def _resolve_upgrade(self, rest: bytes) -> bytes | None:
        """llhttp stops at any upgrade. One that is not offered is ignored, as in the RFC; its body is read as usual."""
        request = self._request
        assert request is not None
        self._upgrading = False
        if request.method == "CONNECT":
            self._connection.refuse(BadRequest("this is not a proxy"), request)
            return None
        if request.upgrade_to and not request.has_body:
            self._request = None
            self._url = b""
            self._connection.offer_upgrade(request, rest)
            return None
        request.upgrade_to = ""
        framing = b"Transfer-Encoding: chunked"
        if self._content_length >= 0 or not request.has_body:
            framing = b"Content-Length: %d" % max(self._content_length, 0)
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._replaying = False
        return rest

    def _fail(self, cause: BaseException) -> None:
        request = self._request
        if isinstance(cause, BodyUnread):
            assert request is not None and request.answered
            self._connection.refuse(BadRequest("the reply was decided by the head"), request)
        elif isinstance(cause, Refusal):
            self._connection.refuse(cause, request)
        else:
            raise cause

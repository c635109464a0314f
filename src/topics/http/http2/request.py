"""A request of an HTTP/2 connection: its header list, under the same limits as the head of an HTTP/1 request."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topics.http.limits import HttpLimits
from topics.http.received import ReceivedRequest
from topics.http.refusal import BadRequest, HeadersTooLarge, UriTooLong
from topics.http.request import Header, ReplyWriter
from topics.http.request_ids import ID_NAMES, ids_in
from topics.http.target import check_visible, split_target

# HTTP/2 carries methods as opaque bytes, and they end up in logs.
_is_method = re.compile(rb"[A-Za-z-]{1,32}").fullmatch


class Http2Request(ReceivedRequest):
    __slots__ = ("stream_id",)

    def __init__(self, writer: ReplyWriter, stream_id: int) -> None:
        ReceivedRequest.__init__(self, writer, "GET", "2", [])
        self.stream_id = stream_id

    def read_head(self, fields: Iterable[tuple[bytes, bytes]], limits: HttpLimits) -> None:
        """Read the fields, which the h2 library has checked (order, case, no hop-by-hop headers)."""
        pseudo: dict[bytes, bytes] = {}
        headers: list[Header] = []
        header_bytes = 0
        named = False
        for name, value in fields:
            header_bytes += len(name) + len(value) + 4
            if name[:1] == b":":
                pseudo[bytes(name)] = bytes(value)
            else:
                headers.append((bytes(name), bytes(value)))
                named = named or name in ID_NAMES
        method = pseudo.get(b":method", b"")
        if _is_method(method) is None:
            raise BadRequest("the method must be at most 32 letters")
        self.method = method.decode("ascii")
        target = pseudo.get(b":path", b"")
        if len(target) > limits.uri_bytes_max:
            raise UriTooLong(limits.uri_bytes_max)
        if len(headers) > limits.header_count_max:
            raise HeadersTooLarge(f"more than {limits.header_count_max} headers", limits.header_count_max)
        if header_bytes > limits.header_bytes_max:
            raise HeadersTooLarge(f"headers above {limits.header_bytes_max} bytes", limits.header_bytes_max)
        hosts = [value for name, value in headers if name == b"host"]
        authority = pseudo.get(b":authority")
        if not hosts and authority is not None:
            headers.append((b"host", authority))
        elif len(hosts) != 1:
            raise BadRequest("a request must have exactly one host")
        self.headers = headers
        if named:
            self.ids = ids_in(headers)
        if self.method == "CONNECT":
            raise BadRequest("this is not a proxy")
        check_visible(target)
        self.raw_path, self.path_segments, self.query = split_target(target, self.method)

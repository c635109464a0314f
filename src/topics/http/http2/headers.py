"""An HTTP/2 header list made the same request, under the same limits, as an HTTP/1 head."""

from __future__ import annotations

from collections.abc import Iterable

from topics.http.limits import HttpLimits
from topics.http.refusal import BadRequest, HeadersTooLarge, UriTooLong
from topics.http.request import Header, Request
from topics.http.target import check_visible, split_target


def read_request(request: Request, fields: Iterable[tuple[bytes, bytes]], limits: HttpLimits) -> None:
    """Fill a request from checked fields (the h2 library has held them to the RFC: order, case, no hop-by-hop)."""
    pseudo: dict[bytes, bytes] = {}
    headers: list[Header] = []
    header_bytes = 0
    for name, value in fields:
        header_bytes += len(name) + len(value) + 4
        if name[:1] == b":":
            pseudo[bytes(name)] = bytes(value)
        else:
            headers.append((bytes(name), bytes(value)))
    request.method = pseudo.get(b":method", b"").decode("latin-1")
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
        raise BadRequest("exactly one host is needed")
    request.headers = headers
    if request.method == "CONNECT":
        raise BadRequest("this is not a proxy")
    check_visible(target)
    request.raw_path, request.path_segments, request.query = split_target(target, request.method)

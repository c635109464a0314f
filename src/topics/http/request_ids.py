"""What a client calls its request: `X-Request-Id` and the `traceparent` of W3C Trace Context, taken and sent back.

Values that are not of the right form are ignored: they end up in logs and in headers of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from topics.http.request import Header, RequestIds

REQUEST_ID, TRACEPARENT = b"x-request-id", b"traceparent"
ID_NAMES: Final = frozenset((REQUEST_ID, TRACEPARENT))

_request_id: Final = re.compile(rb"[\x21-\x7e]{1,128}")
# Version, trace, span, flags. Later versions may append fields to these.
_traceparent: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")


def ids_in(headers: Iterable[Header]) -> RequestIds | None:
    """The ids in these headers; None if there are none that can be used."""
    request_id = traceparent = b""
    for name, value in headers:
        value = value.strip(b" \t")
        if name == REQUEST_ID and not request_id and _request_id.fullmatch(value) is not None:
            request_id = value
        elif name == TRACEPARENT and not traceparent and _is_traceparent(value):
            traceparent = value
    return RequestIds(request_id, traceparent) if request_id or traceparent else None


def _is_traceparent(value: bytes) -> bool:
    found = _traceparent.fullmatch(value)
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return False
    return found[2].strip(b"0") != b"" and found[3].strip(b"0") != b""

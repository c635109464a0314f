"""The request target: percent-decoding happens here, once, so that routing and authentication see the same text."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_to_bytes

from topics.http.refusal import BadRequest

QUERY_FIELDS_MAX = 64
SLASH = 0x2F

_bad_escape = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_visible_ascii = re.compile(rb"[\x21-\x7e]+")
_absolute = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


def split_target(target: bytes, method: str) -> tuple[bytes, list[str], bytes]:
    """The raw path, its decoded segments, the raw query. Nothing is normalised: `..` and `//` stay as they are."""
    path, _, query = target.partition(b"?")
    if b"%" not in path and b"#" not in target and path and path[0] == SLASH:
        return path, path[1:].decode("ascii").split("/"), query
    if target == b"*" and method == "OPTIONS":
        return target, ["*"], b""
    if path[:1] != b"/" or b"#" in target:
        raise BadRequest("the request target is not a path")
    return path, [_decode_segment(segment) for segment in path[1:].split(b"/")], query


def origin_form(target: bytes, host: bytes) -> bytes:
    """`/path` of `http://host/path`, as it is sent to a proxy; its host and the Host header must agree."""
    match = _absolute.fullmatch(target)
    if match is None:
        return target
    if match[1].lower() != host.lower():
        raise BadRequest("the host of the target and the Host header differ")
    rest = match[2]
    return rest if rest[:1] == b"/" else b"/" + rest


def check_visible(target: bytes) -> None:
    """HTTP/2 carries targets as opaque bytes: allow only what the HTTP/1 parser allows."""
    if _visible_ascii.fullmatch(target) is None:
        raise BadRequest("the request target contains characters that must be percent-escaped")


def query_pairs(query: bytes) -> list[tuple[str, str]]:
    """The query as form fields, in order, blank values kept."""
    if _bad_escape.search(query) is not None:
        raise BadRequest("the query contains an invalid percent-escape")
    try:
        return parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:
        raise BadRequest(f"the query is not UTF-8 or has more than {QUERY_FIELDS_MAX} fields") from None


def _decode_segment(segment: bytes) -> str:
    if _bad_escape.search(segment) is not None:
        raise BadRequest("the path contains an invalid percent-escape")
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None
    if "\0" in text:
        raise BadRequest("the path contains a NUL")
    return text

"""Attributes of a CloudEvent: what they must look like, and how the `meta` of a record holds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from topics.model.errors import InvalidRequest

REQUIRED: Final = ("specversion", "id", "source", "type")
VERSION: Final = b'"1.0"'
# Members of the JSON format that are not attributes.
DATA, DATA_BASE64 = "data", "data_base64"
# A field of `meta` that no attribute can be called. Without it, `data` of the record is the event's, as it was sent.
DATA_ENCODING: Final = "data_encoding"
BASE64, NO_DATA = b'"base64"', b'"none"'
SHOWN_CHARS_MAX = 64
INTEGER_MAX = (1 << 31) - 1
UTF8_NAMES = frozenset(("utf-8", "utf8", "us-ascii"))

is_name = re.compile(r"[a-z0-9]+", re.ASCII).fullmatch
_INTEGER = re.compile(rb"-?[0-9]{1,10}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)
# The attributes that the specification names; except for these, a value may be empty, a number or a boolean.
_TEXTS: Final = frozenset((*REQUIRED, "datacontenttype", "dataschema", "subject", "time"))
_text = msgspec.json.Decoder(str)


def check_attributes(attributes: Mapping[str, bytes], prefix: str) -> None:
    """Refuse attributes, as JSON, that are not those of a CloudEvent 1.0. `prefix` comes before names in errors."""
    for name in REQUIRED:
        if name not in attributes:
            field = f"{prefix}{name}"
            message = f"{field} is missing; a CloudEvent needs specversion, id, source and type"
            raise InvalidRequest(message, field=field)
    for name, value in attributes.items():
        problem = _problem(name, value)
        if problem is not None:
            field = f"{prefix}{name[:SHOWN_CHARS_MAX]}"
            raise InvalidRequest(f"{field} {problem}", field=field)


def _problem(name: str, value: bytes) -> str | None:
    if value[:1] != b'"':
        if name in _TEXTS:
            return "must be a string"
        return None if is_scalar(value) else "must be a string, true, false, or a whole number of 32 bits"
    text = _text.decode(value)
    if _CONTROL.search(text) is not None:
        return "has a control character"
    if name not in _TEXTS:
        return None
    if not text:
        return "must not be empty"
    if name == "specversion" and text != "1.0":
        return f'must be "1.0", not "{text[:SHOWN_CHARS_MAX]}"'
    if name == "time" and _TIME.fullmatch(text) is None:
        return "must be a time like 2026-11-17T08:00:00Z (RFC 3339)"
    if name == "datacontenttype" and "/" not in text:
        return "must be a media type like application/json"
    return None


def is_scalar(value: bytes) -> bool:
    """Whether this JSON can be the value of an attribute: a string, a boolean, or a whole number of 32 bits."""
    if value[:1] == b'"' or value in (b"true", b"false"):
        return True
    return _INTEGER.fullmatch(value) is not None and -INTEGER_MAX - 1 <= int(value) <= INTEGER_MAX


def is_event(meta: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the `meta` of a record holds the attributes of a CloudEvent."""
    if not all(name in meta and bytes(meta[name])[:1] == b'"' for name in REQUIRED):
        return False
    return bytes(meta["specversion"]) == VERSION


def is_json(content_type: str) -> bool:
    """Whether data of this media type is a JSON text in UTF-8."""
    media_type, *parameters = content_type.lower().split(";")
    subtype = media_type.strip().partition("/")[2]
    if subtype != "json" and not subtype.endswith("+json"):
        return False
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name == "charset" and value.strip('"') not in UTF8_NAMES:
            return False
    return True

"""From records to CloudEvents in the JSON format: events as they were sent, other records as events of their topic."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from topics.model.cloudevents.attributes import (
    BASE64,
    DATA,
    DATA_BASE64,
    DATA_ENCODING,
    NO_DATA,
    is_event,
    is_name,
    is_scalar,
)
from topics.model.requests.nesting import decode_deep

RECORD_TYPE: Final = "topics.record"

_NONE = Raw(b"null")
_meta: Final = msgspec.json.Decoder(dict[str, Raw])
_encode: Final = msgspec.json.Encoder().encode
# Of an event that is made for a record: `meta` cannot replace them.
_MADE: Final = frozenset(
    ("specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "subject", DATA)
)


class StoredRecord(msgspec.Struct):
    """A record as it is rendered for readers."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: Raw = _NONE
    meta: Raw = _NONE


def render_event(topic: str, epoch: int, record: StoredRecord) -> bytes:
    """The event of a record. One that was not sent as an event gets its id, source, type and time here."""
    meta = meta_fields(bytes(record.meta))
    attributes = attributes_in(meta)
    if attributes is not None:
        parts = [_member(name, value) for name, value in attributes.items()]
        encoding = bytes(meta.get(DATA_ENCODING, _NONE))
        if encoding != NO_DATA:
            parts.append(_member(DATA_BASE64 if encoding == BASE64 else DATA, record.data))
        return b"{%b}" % b",".join(parts)
    made: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{epoch}-{record.seq}",
        "source": f"/v0/topics/{topic}",
        "type": RECORD_TYPE,
        "time": _rfc3339(record.ts),
        "datacontenttype": "application/json",
    }
    parts = [_member(n, v) for n, v in meta.items() if n not in _MADE and _is_attribute(n, v)]
    return b"%b,%b}" % (_encode(made)[:-1], b",".join([*parts, _member(DATA, record.data)]))


def attributes_in(meta: Mapping[str, Raw]) -> dict[str, Raw] | None:
    """The attributes that the `meta` of a record holds; None if the record was not sent as an event."""
    if not is_event(meta):
        return None
    return {name: value for name, value in meta.items() if _is_attribute(name, value)}


def meta_fields(meta: bytes) -> Mapping[str, Raw]:
    return {} if meta == b"null" else decode_deep(_meta.decode, meta)


def _is_attribute(name: str, value: Raw) -> bool:
    return name != DATA and is_name(name) is not None and is_scalar(bytes(value))


def _member(name: str, value: Raw) -> bytes:
    return b'"%b":%b' % (name.encode(), value)


def _rfc3339(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""CloudEvents as Python mappings: attributes, and `data` decoded, or bytes where it is not JSON."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from topics.model import encoding
from topics.model.cloudevents.attributes import BASE64, DATA, DATA_BASE64, DATA_ENCODING, NO_DATA
from topics.model.cloudevents.events_in import attributes_of, record_of
from topics.model.cloudevents.events_out import attributes_in, meta_fields
from topics.model.errors import InvalidRequest
from topics.model.requests.nesting import decode_deep
from topics.model.requests.records import RecordRequest

_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_value: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode


class EventName(msgspec.Struct):
    """What makes an event the same as another one."""

    source: str
    id: str


_named: Final = msgspec.json.Decoder(EventName)


def event_key(record: RecordRequest) -> str:
    """An idempotency key: the same for events that the specification calls duplicates, by source and id."""
    named = _named.decode(bytes(record.meta or b""))
    digest = hashlib.blake2b(_encode([named.source, named.id]), digest_size=16).hexdigest()
    return f"cloudevent:{digest}"


def one_event_key(records: list[RecordRequest]) -> str:
    if len(records) > 1:
        raise InvalidRequest("dedupe is for a request with one event, not for a batch", field="dedupe")
    return event_key(records[0])


def to_records(events: Iterable[Mapping[str, Any]]) -> list[RecordRequest]:
    """The records of events; their sizes are not checked."""
    kind = type(events)
    if isinstance(events, Mapping | str | bytes):
        raise InvalidRequest(f"events must be a list of events, not {kind.__name__}", field="events")
    records: list[RecordRequest] = []
    for number, event in enumerate(events):
        place = f"events[{number}]"
        fields = decode_deep(_fields.decode, _event_json(event, place))
        records.append(record_of(fields, attributes_of(fields), f"{place}."))
    if not records:
        raise InvalidRequest("events must hold at least one event", field="events")
    return records


def _event_json(event: Mapping[str, Any], place: str) -> bytes:
    if not isinstance(event, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"{place} must be a mapping, not {type(event).__name__}", field=place)
    members = dict(event)
    data = members.get(DATA)
    if isinstance(data, bytes | bytearray):
        del members[DATA]
        members[DATA_BASE64] = binascii.b2a_base64(data, newline=False).decode()
    try:
        return encoding.encode(members, place)
    except encoding.NotJson as error:
        raise InvalidRequest(str(error), field=place) from None


def records_json(records: Iterable[RecordRequest], tag: str | None, delay_ms: int) -> bytes:
    """The `records` of an append."""
    rest = b"}" if tag is None else b',"tag":%b}' % _encode(tag)
    if delay_ms:
        rest = b',"delay_ms":%d%b' % (delay_ms, rest)
    return b"[%b]" % b",".join(
        [b'{"data":%b,"meta":%b%b' % (each.data, each.meta or b"null", rest) for each in records]
    )


def stored_event(data: bytes, meta: bytes) -> dict[str, Any] | None:
    """The event that a record was sent as; None if it was not sent as one."""
    fields = meta_fields(meta)
    attributes = attributes_in(fields)
    if attributes is None:
        return None
    event: dict[str, Any] = {name: _value.decode(value) for name, value in attributes.items()}
    kept_as = bytes(fields.get(DATA_ENCODING, b""))
    if kept_as != NO_DATA:
        event[DATA] = _data(decode_deep(_value.decode, data), is_base64=kept_as == BASE64)
    return event


def _data(value: Any, *, is_base64: bool) -> Any:
    if not is_base64 or not isinstance(value, str):
        return value
    try:
        return binascii.a2b_base64(value)
    except ValueError:
        return value

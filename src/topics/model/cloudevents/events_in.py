"""From CloudEvents to records: attributes become `meta`, and JSON data stays the sender's own bytes.

binary       headers ce-id, ce-source, …; Content-Type; the body is the data
structured   {"specversion":"1.0","id":…,"source":…,"type":…, … ,"data":… or "data_base64":…}
batch        [ structured, structured, … ]

record       {"data":<data>,"meta":{"specversion":"1.0","id":…, … ,"data_encoding":"base64" or "none"}}
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Generator, Iterable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw

from topics.model.cloudevents.attributes import (
    BASE64,
    DATA,
    DATA_BASE64,
    DATA_ENCODING,
    NO_DATA,
    SHOWN_CHARS_MAX,
    VERSION,
    check_attributes,
    is_json,
    is_name,
)
from topics.model.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.model.requests.batch import META_KEYS_MAX, BatchLimits
from topics.model.requests.mistakes import BODY, nested_too_deeply
from topics.model.requests.records import RecordRequest, decode_body

HEADER_PREFIX: Final = b"ce-"
# Bytes of an event besides its data and its attributes: white space, fields that are ignored.
EVENT_EXTRA_BYTES: Final = 64 * 1024
# Members of an event, whether they are attributes or ignored: each costs time.
EVENT_MEMBERS_MAX: Final = 1_000
PIECE_BYTES: Final = 64 * 1024
PIECE_EVENTS: Final = 100

_NULL = Raw(b"null")
_SPACE = re.compile(rb"[ \t\r\n]*+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_payload: Final = msgspec.json.Decoder(Raw)
_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_text: Final = msgspec.json.Decoder(str)
_encode_string: Final = msgspec.json.Encoder().encode


# --- binary ---


def decode_binary(headers: Iterable[tuple[bytes, bytes]], body: bytes, limits: BatchLimits) -> RecordRequest:
    """One event: its attributes are headers, its data is the body."""
    attributes: dict[str, bytes] = {}
    content_type: str | None = None
    for header, value in headers:
        if header == b"content-type" and content_type is None:
            content_type = _header_text(value, "Content-Type", percent=False)
        if not header.startswith(HEADER_PREFIX):
            continue
        name = header[len(HEADER_PREFIX) :].decode("ascii", "replace")
        field = f"ce-{name[:SHOWN_CHARS_MAX]}"
        if name == "datacontenttype":
            raise InvalidRequest(f"{field} must not be sent: the header Content-Type is that attribute", field=field)
        if name == DATA:
            raise InvalidRequest(f"{field} must not be sent: the body is the data", field=field)
        if is_name(name) is None:
            continue
        if name in attributes:
            raise InvalidRequest(f"{field} is given twice", field=field)
        attributes[name] = _encode_string(_header_text(value, field, percent=True))
    encoding = None
    if content_type:
        attributes["datacontenttype"] = _encode_string(content_type)
    check_attributes(attributes, "ce-")
    # Refused before it is converted, which would take long.
    if len(body) > limits.max_record_bytes + EVENT_EXTRA_BYTES:
        raise _too_large("the event", len(body), limits)
    if not body:
        data, encoding = _NULL, NO_DATA
    elif not content_type or is_json(content_type):
        data = _json_payload(body)
    else:
        data, encoding = Raw(b'"%b"' % binascii.b2a_base64(body, newline=False)), BASE64
    record = RecordRequest(data, meta=_meta(attributes, encoding))
    check_sizes(record, attributes, "ce-", "the event", limits)
    return record


def _json_payload(body: bytes) -> Raw:
    try:
        return decode_body(_payload, body)
    except InvalidRequest as error:
        message = error.message.removeprefix(f"{BODY} ")
        raise InvalidRequest(
            f"the body {message}; data that is not JSON needs its own Content-Type", detail=error.detail
        ) from None


def _header_text(value: bytes, field: str, *, percent: bool) -> str:
    """The value of a header: quotes are removed, then percent-encoded bytes are decoded as UTF-8."""
    try:
        text = value.strip(b" \t").decode("ascii")
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"{field} has bytes that are not ASCII; they must be percent-encoded", field=field
        ) from None
    if not percent:
        return text
    if quoted := _QUOTED.fullmatch(text):
        text = re.sub(r"\\(.)", r"\1", quoted[1])
    try:
        return unquote_to_bytes(text).decode() if "%" in text else text
    except UnicodeDecodeError:
        raise InvalidRequest(f"{field} is not UTF-8 after percent-decoding", field=field) from None


# --- the JSON format ---


def decode_structured(body: bytes, limits: BatchLimits) -> RecordRequest:
    """One event in the JSON format."""
    bytes_max = limits.max_record_bytes + EVENT_EXTRA_BYTES
    if len(body) > bytes_max:
        raise _too_large("the event", len(body), limits)
    fields = decode_body(_fields, body)
    return _checked(fields, "", "the event", limits)


def event_record(text: bytes) -> RecordRequest:
    """The record of one event in the JSON format; its size is not checked."""
    fields = decode_body(_fields, text)
    return record_of(fields, attributes_of(fields), "")


def decode_batch(body: bytes, limits: BatchLimits) -> Generator[None, None, list[RecordRequest]]:
    """A JSON array of events; pauses after about each millisecond of work."""
    records: list[RecordRequest] = []
    at = _after_space(body, 0)
    if body[at : at + 1] != b"[":
        raise InvalidRequest("body must be a list of events", field=BODY)
    at = _after_space(body, at + 1)
    if body[at : at + 1] == b"]":
        raise InvalidRequest("the batch has no event", field=BODY)
    pause_at = at + PIECE_BYTES
    while True:
        if len(records) == limits.max_batch_records:
            raise _too_many(limits.max_batch_records)
        whole = f"events[{len(records)}]"
        end = _event_end(body, at, whole, limits)
        fields = _event_fields(body[at:end], whole)
        records.append(_checked(fields, f"{whole}.", whole, limits))
        at = _after_space(body, end)
        sign = body[at : at + 1]
        at = _after_space(body, at + 1)
        if sign == b"]":
            break
        if sign != b",":
            raise InvalidRequest(f"there must be a comma or the end of the list after {whole}", field=BODY)
        if at >= pause_at or not len(records) % PIECE_EVENTS:
            pause_at = at + PIECE_BYTES
            yield
    if at < len(body):
        raise InvalidRequest("the list of events must be the whole body", field=BODY)
    return records


def _after_space(body: bytes, at: int) -> int:
    found = _SPACE.match(body, at, at + EVENT_EXTRA_BYTES)
    end = at if found is None else found.end()
    if end - at == EVENT_EXTRA_BYTES:
        message = f"the list of events has {EVENT_EXTRA_BYTES} bytes of white space in a row, or more"
        raise InvalidRequest(message, field=BODY)
    return end


def _event_end(body: bytes, at: int, whole: str, limits: BatchLimits) -> int:
    """Where the value at this place ends: the decoder refuses what comes after it."""
    bytes_max = limits.max_record_bytes + EVENT_EXTRA_BYTES
    try:
        _payload.decode(memoryview(body)[at : at + bytes_max])
    except msgspec.DecodeError as error:
        found = _TRAILING.search(str(error))
        if found is not None:
            return at + int(found[1]) - 1
        if len(body) - at > bytes_max and "truncated" in str(error):
            raise _too_large(whole, bytes_max, limits) from None
        raise InvalidRequest(f"{whole} is not valid JSON: {error}", field=whole) from None
    except RecursionError:
        raise nested_too_deeply(whole) from None
    raise InvalidRequest(f"there must be a comma or the end of the list after {whole}", field=BODY)


def _event_fields(text: bytes, whole: str) -> dict[str, Raw]:
    try:
        return decode_body(_fields, text.rstrip())
    except InvalidRequest as error:
        field = str(error.detail["field"])
        place = whole if field == BODY else f"{whole}.{field}"
        raise InvalidRequest(
            place + error.message.removeprefix(field), detail={**error.detail, "field": place}
        ) from None


def _checked(fields: dict[str, Raw], prefix: str, whole: str, limits: BatchLimits) -> RecordRequest:
    if len(fields) > EVENT_MEMBERS_MAX:
        message = f"{whole} has {len(fields)} members; at most {EVENT_MEMBERS_MAX} are allowed"
        raise InvalidRequest(message, field=_field_of(whole), max=EVENT_MEMBERS_MAX)
    attributes = attributes_of(fields)
    record = record_of(fields, attributes, prefix)
    check_sizes(record, attributes, prefix, whole, limits)
    return record


def attributes_of(fields: Mapping[str, Raw]) -> dict[str, bytes]:
    """Those that are set: null means absent. Members that cannot be attributes are ignored."""
    found: dict[str, bytes] = {}
    for name, value in fields.items():
        if name != DATA and value != _NULL and is_name(name) is not None:
            found[name] = bytes(value)
    return found


def record_of(fields: Mapping[str, Raw], attributes: Mapping[str, bytes], prefix: str) -> RecordRequest:
    """The record of an event in the JSON format; sizes are not checked. `prefix` comes before names in errors."""
    check_attributes(attributes, prefix)
    data, encoded = fields.get(DATA), fields.get(DATA_BASE64, _NULL)
    if encoded != _NULL:
        field = f"{prefix}{DATA_BASE64}"
        if data is not None and data != _NULL:
            raise InvalidRequest(f"{field} and {prefix}{DATA} exclude each other", field=field)
        _check_base64(bytes(encoded), field)
        return RecordRequest(encoded, meta=_meta(attributes, BASE64))
    if data is None:
        return RecordRequest(_NULL, meta=_meta(attributes, NO_DATA))
    return RecordRequest(data, meta=_meta(attributes, None))


def _check_base64(value: bytes, field: str) -> None:
    try:
        binascii.a2b_base64(_text.decode(value), strict_mode=True)
    except (msgspec.DecodeError, ValueError):
        raise InvalidRequest(f"{field} must be a string in base64", field=field) from None


# --- meta and sizes ---


def _meta(attributes: Mapping[str, bytes], encoding: bytes | None) -> Raw:
    # An escaped 1.0 is one as well; readers compare the bytes.
    values = {**attributes, "specversion": VERSION}
    fields = [b'"%b":%b' % (name.encode(), value) for name, value in values.items()]
    if encoding is not None:
        fields.append(b'"%b":%b' % (DATA_ENCODING.encode(), encoding))
    return Raw(b"{%b}" % b",".join(fields))


def check_sizes(
    record: RecordRequest, attributes: Mapping[str, bytes], prefix: str, whole: str, limits: BatchLimits
) -> None:
    assert isinstance(record.meta, Raw)
    size = len(record.meta)
    if size > limits.max_meta_bytes:
        longest = max(attributes, key=lambda name: len(name) + len(attributes[name]))
        field = f"{prefix}{longest[:SHOWN_CHARS_MAX]}"
        message = f"{field} is too long: the attributes have {size} bytes; at most {limits.max_meta_bytes} are allowed"
        raise InvalidRequest(message, field=field, max=limits.max_meta_bytes)
    # one less: `data_encoding` may be among the fields of `meta`
    if len(attributes) >= META_KEYS_MAX:
        most = META_KEYS_MAX - 1
        message = f"{whole} has {len(attributes)} attributes; at most {most} are allowed"
        raise InvalidRequest(message, field="attributes", max=most)
    if len(record.data) + size > limits.max_record_bytes:
        raise _too_large(whole, len(record.data) + size, limits)


def _too_large(whole: str, size: int, limits: BatchLimits) -> TopicsError:
    most = limits.max_record_bytes
    message = f"{whole} has {size} bytes or more; at most {most} are allowed (max_record_bytes)"
    return RecordTooLarge(message, field=_field_of(whole), max=most)


def _field_of(whole: str) -> str:
    return BODY if whole == "the event" else whole


def _too_many(most: int) -> TopicsError:
    return BatchTooLarge(f"the batch holds more than {most} events; split it", field="events", max=most)

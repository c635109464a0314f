"""Messages and records: a body is the payload, attributes are in `meta`, and ids and handles come from seq and lease.

body that is a JSON object or array   ─▶ data, as it is          data that is a string       ─▶ body: the string
any other body                        ─▶ data, a JSON string     any other data              ─▶ body: its JSON text
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.api.sqs.attributes import choice_of, is_fifo, number_of
from topics.api.sqs.errors import SqsError, invalid_value, missing
from topics.api.sqs.requests import AttributeValue, Message, Outgoing
from topics.engine.log.topic import Topic
from topics.engine.queues.transfers import FROM
from topics.model.requests.nesting import is_too_deep
from topics.model.requests.records import RecordRequest

DELAY_S_MAX: Final = 900
# With it, a handle has a length that base64 does not pad.
CHECKSUM_BYTES: Final = 6
ATTRIBUTES_MAX: Final = 10
TRACE_HEADER: Final = "AWSTraceHeader"
ACCOUNT_AS_SENDER: Final = "000000000000"
# What SQS and XML cannot carry.
forbidden = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_attribute_name = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)", re.ASCII)
_data_type = re.compile(r"(String|Number|Binary)(\..{1,249})?", re.DOTALL)
_number = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_identifier = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}", re.ASCII)

_encode = msgspec.json.Encoder().encode
_handle = struct.Struct(">QQQ")
_length = struct.Struct(">I")


class SqsMeta(msgspec.Struct, rename="pascal", omit_defaults=True):
    """What a message has besides its body, as it is stored."""

    message_attributes: dict[str, AttributeValue] | UnsetType = UNSET
    message_deduplication_id: str | UnsetType = UNSET
    trace_header: str | UnsetType = msgspec.field(name=TRACE_HEADER, default=UNSET)


class StoredMeta(msgspec.Struct, omit_defaults=True):
    sqs: SqsMeta | UnsetType = UNSET
    dead_letter_from: str | UnsetType = msgspec.field(name=FROM, default=UNSET)


class ClaimedJob(msgspec.Struct):
    """A job as a claim renders it."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    lease_id: str
    deliveries: int
    data: Raw
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    meta: Raw | UnsetType = UNSET


class Handle(NamedTuple):
    """A receipt handle, taken apart."""

    seq: int
    lease_id: str


class Wanted(NamedTuple):
    """Which attributes a receiver wants of each message."""

    system: frozenset[str]
    named: tuple[str, ...]

    def chosen(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        return {name: value for name, value in sorted(attributes.items()) if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return any(
            want in ("All", ".*", name) or (want.endswith(".*") and name.startswith(want[:-2])) for want in self.named
        )


_decode_job = msgspec.json.Decoder(ClaimedJob).decode
_decode_meta = msgspec.json.Decoder(StoredMeta).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_text = msgspec.json.Decoder(str).decode


# --- sending ---


class Prepared(NamedTuple):
    """A message to send: the record, its size as SQS counts it, its digests, and the key that it is sent once by."""

    record: RecordRequest
    size: int
    body_md5: str
    attributes_md5: str | None
    system_md5: str | None
    dedupe_key: str | None


def prepare(topic: Topic, message: Outgoing) -> Prepared:
    """Checks a message for this queue, and makes it a record."""
    body = message.message_body
    if not body:
        raise missing("MessageBody")
    if forbidden.search(body) is not None:
        raise SqsError("InvalidMessageContents", "Message body contains characters that SQS does not allow.")
    encoded = body.encode()
    attributes, system = message.message_attributes, message.message_system_attributes
    size = len(encoded)
    if attributes:
        size += _check_attributes(attributes)
    size_max = number_of(topic.config, "MaximumMessageSize")
    if size > size_max:
        raise SqsError(
            "InvalidParameterValue",
            f"One or more parameters are invalid. Reason: Message must be shorter than {size_max} bytes.",
        )
    if system:
        if set(system) != {TRACE_HEADER}:
            raise SqsError("InvalidParameterValue", f"The only system attribute of a message is {TRACE_HEADER}.")
        _check_attributes(system)
    dedupe_id = _dedupe_id(topic, message, encoded)
    record = RecordRequest(data_of(body, encoded), message.message_group_id, delay_ms=_delay_s(topic, message) * 1000)
    if attributes or system or dedupe_id is not None:
        record.meta = _stored_meta(attributes, system, dedupe_id)
    key = dedupe_id
    if dedupe_id is not None and choice_of(topic.config, "DeduplicationScope") == "messageGroup":
        key = hashlib.sha256(f"{message.message_group_id}\n{dedupe_id}".encode()).hexdigest()
    return Prepared(
        record,
        size,
        _md5(encoded),
        attributes_md5(attributes) if attributes else None,
        attributes_md5(system) if system else None,
        key,
    )


def _stored_meta(
    attributes: dict[str, AttributeValue] | None, system: Mapping[str, AttributeValue] | None, dedupe_id: str | None
) -> Raw:
    stored = SqsMeta()
    if attributes:
        stored.message_attributes = attributes
    if dedupe_id is not None:
        stored.message_deduplication_id = dedupe_id
    if system:
        stored.trace_header = system[TRACE_HEADER].string_value or ""
    return Raw(_encode(StoredMeta(stored)))


def data_of(body: str, encoded: bytes) -> Raw:
    """A body that is a JSON object or array is stored as such, so that other readers get more than a string of JSON."""
    if encoded[:1] + encoded[-1:] in (b"{}", b"[]"):
        try:
            _decode_raw(encoded)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            if not is_too_deep(encoded):
                return Raw(encoded)
    return Raw(_encode(body))


def _delay_s(topic: Topic, message: Outgoing) -> int:
    delay_s = message.delay_seconds
    default_s = number_of(topic.config, "DelaySeconds")
    if delay_s is None:
        return default_s
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise invalid_value(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {DELAY_S_MAX}.")
    if is_fifo(topic.name) and delay_s:
        raise invalid_value(
            delay_s, "DelaySeconds", "The request includes a parameter that is not valid for this queue type."
        )
    return default_s if is_fifo(topic.name) else delay_s


def _dedupe_id(topic: Topic, message: Outgoing, body: bytes) -> str | None:
    group, dedupe_id = message.message_group_id, message.message_deduplication_id
    if group is None and dedupe_id is None and not is_fifo(topic.name):
        return None
    for field, text in (("MessageGroupId", group), ("MessageDeduplicationId", dedupe_id)):
        if text is not None and _identifier.fullmatch(text) is None:
            raise invalid_value(
                text[:64],
                field,
                f"{field} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
            )
    if not is_fifo(topic.name):
        if dedupe_id is not None:
            raise invalid_value(
                dedupe_id,
                "MessageDeduplicationId",
                "The request includes a parameter that is not valid for this queue type.",
            )
        return None
    if group is None:
        raise missing("MessageGroupId")
    if dedupe_id is not None:
        return dedupe_id
    if choice_of(topic.config, "ContentBasedDeduplication") != "true":
        raise SqsError(
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        )
    return hashlib.sha256(body).hexdigest()


def _check_attributes(attributes: Mapping[str, AttributeValue]) -> int:
    """Their size as SQS counts it: names, types and values."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise SqsError(
            "InvalidParameterValue",
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [10].",
        )
    size = 0
    for name, value in attributes.items():
        wrong = _wrong_attribute(name, value)
        if wrong is not None:
            raise SqsError("InvalidParameterValue", f"The message attribute '{name[:64]}' {wrong}")
        size += len(name.encode()) + len(value.data_type.encode()) + len(_attribute_bytes(value))
    return size


def _wrong_attribute(name: str, value: AttributeValue) -> str | None:
    if _attribute_name.fullmatch(name) is None or name.lower().startswith(("aws.", "amazon.")):
        return "has an invalid name."
    if _data_type.fullmatch(value.data_type) is None or forbidden.search(value.data_type) is not None:
        return "has an invalid type: it must be String, Number or Binary, and may go on with a dot and a label."
    if value.data_type.startswith("Binary"):
        if not value.binary_value:
            return "must contain a non-empty BinaryValue."
        try:
            base64.b64decode(value.binary_value, validate=True)
        except (binascii.Error, ValueError):
            return "has a BinaryValue that is not base64."
        return None
    if not value.string_value:
        return "must contain a non-empty StringValue."
    if value.data_type.startswith("Number") and _number.fullmatch(value.string_value) is None:
        return "has a StringValue that is not a number."
    return "contains characters that SQS does not allow." if forbidden.search(value.string_value) else None


def _attribute_bytes(value: AttributeValue) -> bytes:
    if value.data_type.startswith("Binary"):
        return base64.b64decode(value.binary_value or "")
    return (value.string_value or "").encode()


# --- digests, ids, handles ---


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def attributes_md5(attributes: Mapping[str, AttributeValue]) -> str:
    """The digest that SDKs compare: of names, types and values, each with its length, sorted by name."""
    hashed = hashlib.md5(usedforsecurity=False)
    for name, value in sorted(attributes.items()):
        content = _attribute_bytes(value)
        for part in (name.encode(), value.data_type.encode()):
            hashed.update(_length.pack(len(part)) + part)
        hashed.update(b"\2" if value.data_type.startswith("Binary") else b"\1")
        hashed.update(_length.pack(len(content)) + content)
    return hashed.hexdigest()


def message_id(topic: Topic, seq: int) -> str:
    """In the form of a UUID: the topic's epoch and the seq."""
    digits = f"{topic.epoch:016x}{seq:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def sequence_number(seq: int) -> str:
    return f"{seq:020d}"


def handle_of(topic: Topic, seq: int, lease_id: str) -> str:
    packed = _handle.pack(topic.epoch, seq, int(lease_id.removeprefix("lease_"), 16))
    return base64.urlsafe_b64encode(packed + _checksum(packed)).decode()


def _checksum(packed: bytes) -> bytes:
    """Against mistakes: a worker with the scope to delete jobs needs no handle."""
    return hashlib.blake2b(packed, digest_size=CHECKSUM_BYTES).digest()


def parse_handle(topic: Topic, text: str) -> Handle:
    try:
        packed = base64.b64decode(text, b"-_", validate=True)
        epoch, seq, lease = _handle.unpack(packed[: _handle.size])
    except (binascii.Error, struct.error, ValueError):
        packed, epoch, seq, lease = b"", -1, 0, 0
    if epoch != topic.epoch or packed[_handle.size :] != _checksum(packed[: _handle.size]):
        raise SqsError(
            "ReceiptHandleIsInvalid", f'The input receipt handle "{text[:64]}" is not a valid receipt handle.'
        )
    return Handle(seq, f"lease_{lease:x}")


# --- receiving ---


def wanted_of(system: Iterable[str], named: Iterable[str]) -> Wanted:
    return Wanted(frozenset(system), tuple(named))


def message_of(topic: Topic, rendered: bytes, wanted: Wanted, now_ms: int, arn_of: Any) -> Message:
    """A claimed job as a message."""
    job = _decode_job(rendered)
    body = body_of(job.data)
    meta = _meta_of(job)
    message = Message(
        message_id=message_id(topic, job.seq),
        receipt_handle=handle_of(topic, job.seq, job.lease_id),
        body_md5=_md5(body.encode()),
        body=body,
    )
    if wanted.system:
        shown = _system_attributes(topic, job, meta, now_ms, arn_of)
        everything = "All" in wanted.system
        message.attributes = {name: text for name, text in shown.items() if everything or name in wanted.system}
    if wanted.named and meta.sqs is not UNSET and meta.sqs.message_attributes is not UNSET:
        chosen = wanted.chosen(meta.sqs.message_attributes)
        if chosen:
            message.message_attributes, message.attributes_md5 = chosen, attributes_md5(chosen)
    return message


def body_of(data: Raw) -> str:
    """A string is the body itself, unless SQS could not carry it; anything else is given as JSON."""
    text = bytes(data)
    if text[:1] == b'"':
        body = _decode_text(text)
        if body and forbidden.search(body) is None:
            return body
    return text.decode()


def _meta_of(job: ClaimedJob) -> StoredMeta:
    """Other writers may have put anything into `meta`."""
    if job.meta is not UNSET:
        try:
            meta = _decode_meta(job.meta)
            if meta.sqs is not UNSET and meta.sqs.message_attributes is not UNSET:
                _check_attributes(meta.sqs.message_attributes)
        except (msgspec.DecodeError, RecursionError, SqsError):
            pass
        else:
            return meta
    return StoredMeta()


def _system_attributes(topic: Topic, job: ClaimedJob, meta: StoredMeta, now_ms: int, arn_of: Any) -> dict[str, str]:
    """When a job was received first is not stored: later deliveries report when it was sent."""
    shown = {
        "SenderId": ACCOUNT_AS_SENDER,
        "SentTimestamp": str(job.ts),
        "ApproximateReceiveCount": str(job.deliveries),
        "ApproximateFirstReceiveTimestamp": str(now_ms if job.deliveries == 1 else job.ts),
    }
    if job.tag is not UNSET:
        shown["MessageGroupId"] = job.tag
    if is_fifo(topic.name):
        shown["SequenceNumber"] = sequence_number(job.seq)
    if meta.sqs is not UNSET:
        if meta.sqs.message_deduplication_id is not UNSET:
            shown["MessageDeduplicationId"] = meta.sqs.message_deduplication_id
        if meta.sqs.trace_header is not UNSET:
            shown[TRACE_HEADER] = meta.sqs.trace_header
    if meta.dead_letter_from is not UNSET:
        shown["DeadLetterQueueSourceArn"] = arn_of(meta.dead_letter_from)
    return shown

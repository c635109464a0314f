"""CloudEvents over HTTP: bodies that become records, and a page of records that becomes a batch of events."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from topics.api.call import Call
from topics.api.replies import encode
from topics.api.routes import BodyForm
from topics.engine.core.waiting.runner import Steps
from topics.engine.log.reading import Diff
from topics.http.request import Header
from topics.model.cloudevents.events_in import decode_batch, decode_binary, decode_structured
from topics.model.cloudevents.events_out import StoredRecord, render_event
from topics.model.cloudevents.mappings import one_event_key
from topics.model.requests.batch import BatchLimits
from topics.model.requests.nesting import decode_deep
from topics.model.requests.records import AppendRequest, RecordRequest

EVENT, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
EVENTS_PER_STEP = 100

_stored = msgspec.json.Decoder(list[StoredRecord])

_ATTRIBUTE: Final[Mapping[str, Any]] = {"type": "string", "minLength": 1}
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "A CloudEvent 1.0 in the JSON format; further members are extension attributes.",
    "properties": {
        "specversion": {"const": "1.0"},
        "id": _ATTRIBUTE,
        "source": _ATTRIBUTE,
        "type": _ATTRIBUTE,
        "subject": _ATTRIBUTE,
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": _ATTRIBUTE,
        "dataschema": _ATTRIBUTE,
        "data": {},
        "data_base64": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["specversion", "id", "source", "type"],
}


class CloudEvent(msgspec.Struct):
    """An event as a reply shows it: with its extension attributes, and `data` or `data_base64` if it has data."""

    specversion: str
    id: str
    source: str
    type: str


class Envelope(NamedTuple):
    """What the query says about a body that holds only payloads or events."""

    request: AppendRequest
    tag: str | None
    delay_ms: int


class EventBodies:
    """The three forms of a request; `envelope` reads the query."""

    def __init__(self, limits: BatchLimits, envelope: Callable[[Call], Envelope]) -> None:
        self._limits = limits
        self._envelope = envelope

    def forms(self) -> dict[str, BodyForm]:
        return {
            EVENT: BodyForm(self._structured, _SCHEMA),
            BATCH: BodyForm(self._batch, {"type": "array", "minItems": 1, "items": _SCHEMA}),
        }

    def binary(self, call: Call) -> Generator[None, None, AppendRequest]:
        yield from ()
        envelope = self._envelope(call)
        return _filled(call, envelope, [decode_binary(call.request.headers, call.request.body, self._limits)])

    def _structured(self, call: Call) -> Generator[None, None, AppendRequest]:
        yield from ()
        envelope = self._envelope(call)
        return _filled(call, envelope, [decode_structured(call.request.body, self._limits)])

    def _batch(self, call: Call) -> Generator[None, None, AppendRequest]:
        envelope = self._envelope(call)
        records = yield from decode_batch(call.request.body, self._limits)
        return _filled(call, envelope, records)


def _filled(call: Call, envelope: Envelope, records: list[RecordRequest]) -> AppendRequest:
    request, tag, delay_ms = envelope
    if tag is not None or delay_ms:
        for record in records:
            record.tag, record.delay_ms = tag, delay_ms
    request.records = records
    if call.flag("dedupe", False):
        request.idempotency_key = one_event_key(records)
    return request


def wants_events(call: Call) -> bool:
    accept = call.headers.get(b"accept")
    return accept is not None and BATCH.encode() in accept.lower()


def reply_events(call: Call, diff: Diff) -> Steps[None]:
    """The records of a page as a batch of events. What else a page says is in headers."""
    records = decode_deep(_stored.decode, b"[%b]" % diff.records())
    events: list[bytes] = []
    for at in range(0, len(records), EVENTS_PER_STEP):
        if at:
            yield None
        some = records[at : at + EVENTS_PER_STEP]
        events += [render_event(call.name, diff.epoch, record) for record in some]
    headers: list[Header] = [
        (b"Topics-Next-From-Seq", b"%d" % diff.next_from_seq),
        (b"Topics-Head-Seq", b"%d" % diff.head_seq),
        (b"Topics-Earliest-Seq", b"%d" % diff.earliest_seq),
        (b"Topics-Epoch", b"%d" % diff.epoch),
    ]
    if diff.tombstone is not None:
        headers.append((b"Topics-Tombstone", encode(diff.tombstone.as_dict())))
    call.reply(200, b"[%b]" % b",".join(events), BATCH.encode(), headers=headers)

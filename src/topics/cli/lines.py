"""Records as lines: JSON as the server renders it, readable text, or the bare payload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from topics.cli.spans import shown_time

if TYPE_CHECKING:
    from topics.client import Job, Record, Tombstone

Form = Literal["json", "text", "raw", "cloudevents"]

_encode = msgspec.json.Encoder().encode
_NO_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class DeadLetter(NamedTuple):
    """Why a record is a dead letter, from the fields that the server adds when it moves a job there."""

    queue: str
    deliveries: int
    reason: str

    @classmethod
    def of(cls, record: Record) -> DeadLetter | None:
        meta: dict[str, Any] = record.meta or {}
        queue = meta.get("$dead_letter_from")
        if not isinstance(queue, str):
            return None
        deliveries, reason = meta.get("$dead_letter_deliveries", 0), meta.get("$dead_letter_error")
        return cls(queue, deliveries, " ".join(str(reason).split()) if reason else "was never acked")

    def __str__(self) -> str:
        after = "1 delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        return f"dead letter of {self.queue} after {after}: {self.reason}"


def record_line(record: Record, form: Form, topic: str | None) -> bytes:
    """One record as one line; `topic` is given only if several topics are mixed."""
    match form:
        case "json":
            return _json(record, topic)
        case "text":
            where = f"{topic} {record.seq}" if topic is not None else str(record.seq)
            tag = f" [{record.tag}]" if record.tag is not None else ""
            letter = DeadLetter.of(record)
            why = f" ({letter})" if letter is not None else ""
            return f"{shown_time(record.ts)} {where}{tag}{why} ".encode() + bare(record.raw)
        case "raw":
            return bare(record.raw)
        case "cloudevents":
            raise AssertionError("an event is printed by event_line, which knows its topic")


def event_line(record: Record, topic: str, epoch: int) -> bytes:
    """The record as a CloudEvent on one line, as the server shows it."""
    from topics.model.cloudevents.events_out import StoredRecord, render_event

    meta = record.raw_meta
    stored = StoredRecord(record.seq, record.ts, msgspec.Raw(record.raw), msgspec.Raw(meta or b"null"))
    return render_event(topic, epoch, stored).translate(_NO_BREAKS)


def bare(payload: bytes) -> bytes:
    """A payload on one line: a text without its quotes, anything else byte for byte except for line breaks."""
    if payload.startswith(b'"'):
        text = msgspec.json.decode(payload, type=str)
        return text.encode("utf-8", "surrogatepass").translate(_NO_BREAKS)
    return payload.translate(_NO_BREAKS)


def tombstone_json(gap: Tombstone, topic: str | None) -> bytes:
    """A gap as a line of data, so that programs that read records see it."""
    shown = {
        "gap_from": gap.gap_from,
        "gap_to": gap.gap_to,
        "reason": gap.reason,
        "missed_estimate": gap.missed_estimate,
    }
    return _encode({"$topic": topic, "tombstone": shown} if topic is not None else {"tombstone": shown})


def tombstone_sentence(gap: Tombstone, topic: str) -> str:
    return (
        f"{topic}: records {gap.gap_from} to {gap.gap_to} are lost ({gap.reason}, about {gap.missed_estimate} records)"
    )


def _json(record: Record, topic: str | None) -> bytes:
    pieces = [b"{"]
    if topic is not None:
        pieces.append(b'"$topic":%b,' % _encode(topic))
    pieces.append(b'"$seq":%d,"$ts":%d' % (record.seq, record.ts))
    for name, value in ((b"$node", record.node), (b"$tag", record.tag)):
        if value is not None:
            pieces.append(b',"%b":%b' % (name, _encode(value)))
    pieces.append(b',"data":%b' % record.raw.translate(_NO_BREAKS))
    return _closed(pieces, record.raw_meta)


def job_json(job: Job) -> bytes:
    """A claimed job as one line, with payload and meta unchanged."""
    shown = {"$seq": job.seq, "$ts": job.ts, "lease_id": job.lease_id, "deadline": job.deadline}
    shown["deliveries"] = job.deliveries
    shown |= {name: value for name, value in (("$node", job.node), ("$tag", job.tag)) if value is not None}
    return _closed([_encode(shown)[:-1], b',"data":%b' % job.raw.translate(_NO_BREAKS)], job.raw_meta)


def _closed(pieces: list[bytes], meta: bytes | None) -> bytes:
    if meta is not None:
        pieces.append(b',"meta":%b' % meta.translate(_NO_BREAKS))
    return b"".join([*pieces, b"}"])

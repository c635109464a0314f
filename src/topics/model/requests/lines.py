"""Append bodies as lines (application/x-ndjson): every line that is not blank is the payload of one record."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

import msgspec
from msgspec import Raw

from topics.model.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.model.requests.batch import BatchLimits
from topics.model.requests.mistakes import BODY
from topics.model.requests.records import RecordRequest, decode_body

PIECE_BYTES: Final = 64 * 1024
PIECE_LINES: Final = 500
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_payload: Final = msgspec.json.Decoder(Raw)


def decode_lines(
    body: bytes, limits: BatchLimits, tag: str | None = None, delay_ms: int = 0
) -> Generator[None, None, list[RecordRequest]]:
    """The records, all with the same tag and delay; pauses after about each millisecond of work."""
    records: list[RecordRequest] = []
    at, number, pause_at = 0, 1, PIECE_BYTES
    while at < len(body):
        found = _NOT_BLANK.search(body, at, at + PIECE_BYTES)
        start = min(at + PIECE_BYTES, len(body)) if found is None else found.start()
        number += body.count(b"\n", at, start)
        at = start
        if found is not None:
            if len(records) == limits.max_batch_records:
                raise _too_many(limits.max_batch_records)
            end = body.find(b"\n", start)
            at = len(body) if end < 0 else end
            records.append(RecordRequest(_read(body, start, at, number, limits), tag=tag, delay_ms=delay_ms))
        if at >= pause_at or not len(records) % PIECE_LINES:
            pause_at = at + PIECE_BYTES
            yield
    if not records:
        raise InvalidRequest("the body has no line with a payload", field=BODY)
    return records


def _read(body: bytes, start: int, end: int, number: int, limits: BatchLimits) -> Raw:
    """The payload on one line, unchanged."""
    line = body[start:end].rstrip(b" \t\r")
    if len(line) > limits.max_record_bytes:
        raise _too_large(len(line), number, limits)
    try:
        decode_body(_payload, line)
    except InvalidRequest as error:
        message = error.message.removeprefix(f"{BODY} ")
        raise InvalidRequest(f"line {number} {message}", detail={**error.detail, "line": number}) from None
    return Raw(line)


def _too_many(most: int) -> BatchTooLarge:
    return BatchTooLarge(f"the body holds more than {most} lines; at most {most} fit one write, split it", max=most)


def _too_large(size: int, number: int, limits: BatchLimits) -> RecordTooLarge:
    most = limits.max_record_bytes
    return RecordTooLarge(f"line {number} has {size} bytes; at most {most} are allowed", line=number, max=most)

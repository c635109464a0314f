"""Values of an embedded database: those of the client, with fields that only a database has."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from topics.client import values
from topics.client.values import Outgoing, Outgoings, check_records, records_json
from topics.engine.log import retention
from topics.engine.log.reading import Diff as EngineDiff
from topics.model.errors import InvalidRequest, TopicsError
from topics.model.requests.mistakes import nested_too_deeply
from topics.model.requests.nesting import decode_deep
from topics.model.requests.routers import RouterConfig


class Json:
    """JSON text that is stored unchanged, instead of a Python object to be encoded."""

    __slots__ = ("text",)

    def __init__(self, text: str | bytes) -> None:
        try:
            self.text = text.encode() if isinstance(text, str) else text
            str(self.text, "utf-8")
            msgspec.json.decode(self.text, type=Raw)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise InvalidRequest(f"not valid JSON: {error}", field="data") from None
        except RecursionError:
            raise nested_too_deeply("data") from None


class Record(values.Record, dict=True):
    """A record that was read. `json` is the payload byte for byte as it was sent, `data` the same decoded."""

    @property
    def json(self) -> bytes:
        return self.raw

    @property
    def meta_json(self) -> bytes | None:
        return self.raw_meta


class Tombstone(values.Tombstone, kw_only=True):
    """Records from `gap_from` to `gap_to` are no longer available, and why."""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in retention.Tombstone._fields}


class Appended(values.Appended, kw_only=True):
    """Where records are, and how long the log and the disk took for them."""

    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class Diff(values.Diff, kw_only=True):
    """One page: pass `next_from_seq` to the next call."""

    records: list[Record]  # pyright: ignore[reportIncompatibleVariableOverride]
    tombstone: Tombstone | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    records_scanned: int = 0
    cold_segments_read: int = 0


class Router(values.Router, kw_only=True):
    """A router and its progress."""

    @property
    def name(self) -> str:
        return self.router

    @property
    def config(self) -> RouterConfig:
        return msgspec.convert(self, RouterConfig, from_attributes=True)


_records_decoder = msgspec.json.Decoder(list[Record])


def readable(topic: str, diff: EngineDiff) -> Diff:
    return Diff(
        topic=topic,
        records=decode_deep(_records_decoder.decode, b"[%b]" % diff.records()),
        next_from_seq=diff.next_from_seq,
        head_seq=diff.head_seq,
        earliest_seq=diff.earliest_seq,
        caught_up=diff.caught_up,
        lag=diff.lag,
        epoch=diff.epoch,
        tombstone=None if diff.tombstone is None else Tombstone(**diff.tombstone.as_dict()),
        records_scanned=diff.scanned,
        cold_segments_read=diff.cold_segments,
    )


def encoded(records: Outgoings) -> bytes:
    """Records as the JSON array of a request; bytes are used unchanged."""
    check_records(records)
    if isinstance(records, bytes):
        return records
    try:
        return records_json(_plain(record) for record in records)
    except TopicsError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"data cannot be written as JSON: {error}", field="data") from None


def _plain(record: Any) -> Any:
    if isinstance(record, Json):
        return Raw(record.text)
    if isinstance(record, Outgoing) and (isinstance(record.data, Json) or isinstance(record.meta, Json)):
        data, meta = _plain(record.data), _plain(record.meta)
        return msgspec.structs.replace(record, data=data, meta=meta)
    return record

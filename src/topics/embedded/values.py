"""What goes into an embedded database and comes out of it, as plain typed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.engine.diff import Diff as EngineDiff
from topics.engine.retention import Tombstone
from topics.model.encoding import encode
from topics.model.errors import InvalidRequest
from topics.model.mistakes import nested_too_deeply
from topics.model.nesting import SHALLOW_BYTES_MAX, decode_deep, is_too_deep
from topics.model.wishes import RecordWish

_decode = msgspec.json.Decoder().decode


class _Rendered(msgspec.Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    seq: int
    ts: int
    data: Raw
    node: str | None = None
    tag: str | None = None
    meta: Raw | UnsetType = UNSET


_records_decoder = msgspec.json.Decoder(list[_Rendered])


class Json:
    """JSON text that is stored as it is, instead of a Python object to be encoded."""

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


class Record:
    """A record that was read. `json` is the payload byte for byte as it was sent, `data` the same decoded."""

    __slots__ = ("json", "meta_json", "node", "seq", "tag", "ts")

    def __init__(self, rendered: _Rendered) -> None:
        self.seq = rendered.seq
        self.ts = rendered.ts
        self.node = rendered.node
        self.tag = rendered.tag
        self.json = bytes(rendered.data)
        self.meta_json = None if rendered.meta is UNSET else bytes(rendered.meta)

    @property
    def data(self) -> Any:
        return decode_deep(_decode, self.json)

    @property
    def meta(self) -> dict[str, Any] | None:
        return None if self.meta_json is None else decode_deep(_decode, self.meta_json)

    def __repr__(self) -> str:
        return f"Record(seq={self.seq}, ts={self.ts}, node={self.node!r}, tag={self.tag!r}, json={self.json!r})"


class Outgoing(NamedTuple):
    """A record to append, when it has more than data."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None


class Appended(NamedTuple):
    first_seq: int
    last_seq: int
    head_seq: int
    created: bool
    deduped: bool
    wal_append_ms: float
    fsync_ms: float


class Diff(NamedTuple):
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None
    epoch: int
    records_scanned: int
    cold_segments_read: int


def readable(diff: EngineDiff) -> Diff:
    return Diff(
        [Record(rendered) for rendered in decode_deep(_records_decoder.decode, b"[%b]" % diff.records())],
        diff.next_from_seq,
        diff.head_seq,
        diff.earliest_seq,
        diff.caught_up,
        diff.lag,
        diff.tombstone,
        diff.epoch,
        diff.scanned,
        diff.cold_segments,
    )


def record_wish(record: Any) -> RecordWish:
    if not isinstance(record, Outgoing):
        return RecordWish(data=_raw(record, "data"))
    meta = UNSET if record.meta is None else _raw(record.meta, "meta")
    return RecordWish(data=_raw(record.data, "data"), tag=record.tag, node=record.node, meta=meta)


def _raw(value: Any, field: str) -> Raw:
    try:
        text = value.text if isinstance(value, Json) else encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} cannot be written as JSON: {error}", field=field) from None
    if len(text) > SHALLOW_BYTES_MAX and is_too_deep(text):
        raise nested_too_deeply(field)
    return Raw(text)

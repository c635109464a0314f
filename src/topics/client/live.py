"""Events of a live stream, whatever protocol carries them, and where to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from topics.client.errors import BadAnswer, InvalidRequest
from topics.client.values import Record, Tombstone
from topics.model.requests.nesting import decode_deep

TAIL: Final = "tail"


class Arrived(msgspec.Struct, kw_only=True):
    """Records of one topic, oldest first; `head_seq` − `to_seq` more are available."""

    topic: str
    records: list[Record]
    from_seq: int
    to_seq: int
    head_seq: int


class _Quiet(msgspec.Struct):
    """An event without records, so that a loop over records need not check its class."""

    @property
    def records(self) -> list[Record]:
        return []


class CaughtUp(_Quiet, kw_only=True):
    """Everything up to the head was sent; events from here on are new."""

    topic: str
    head_seq: int


class TopicDeleted(_Quiet, kw_only=True):
    """The topic was deleted; the stream continues with the others."""

    topic: str
    head_seq: int = 0
    reason: str = "deleted"


class TopicFailed(_Quiet, kw_only=True):
    """The server cannot read any further in this topic; the stream continues with the others."""

    topic: str
    code: int
    message: str


LiveEvent = Arrived | Tombstone | CaughtUp | TopicDeleted | TopicFailed


class StreamFault(msgspec.Struct, kw_only=True):
    """A problem of the stream, with a code like an HTTP status."""

    code: int
    error: str = ""
    retry_after_ms: int | None = None
    topics: list[str] = []


class Watched(msgspec.Struct, kw_only=True):
    """The position of a topic when the server began to deliver it."""

    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchSession(msgspec.Struct, kw_only=True):
    wid: str
    stream_url: str
    topics: dict[str, Watched]


session_decoder = msgspec.json.Decoder(WatchSession)
fault_decoder = msgspec.json.Decoder(StreamFault)
_DECODERS: Final[Mapping[str, msgspec.json.Decoder[LiveEvent]]] = {
    "record": msgspec.json.Decoder(Arrived),
    "tombstone": msgspec.json.Decoder(Tombstone),
    "caught-up": msgspec.json.Decoder(CaughtUp),
    "caught_up": msgspec.json.Decoder(CaughtUp),
    "topic-deleted": msgspec.json.Decoder(TopicDeleted),
    "topic_deleted": msgspec.json.Decoder(TopicDeleted),
}


def event_of(name: str, data: bytes | str) -> LiveEvent | None:
    """The event of a frame; None for kinds that this version does not know."""
    decoder = _DECODERS.get(name)
    if decoder is None:
        return None
    try:
        return decode_deep(decoder.decode, data)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"a frame of the live stream cannot be read: {error}") from None


# Where to start in each topic: after a seq, "tail" (with the next record), or {"from_ts": ms}.
StartMap = Mapping[str, int | str | Mapping[str, Any]]
Starts = StartMap | Iterable[str] | str


def starts_of(topics: Starts, *, tail: bool) -> dict[str, dict[str, Any]]:
    """In the server's form. Topics given only by name start at their beginning, or at their end with `tail`."""
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Mapping):
        return {name: _start(start) for name, start in cast("StartMap", topics).items()}
    return {name: {"tail": True} if tail else {"from_seq": 0} for name in topics}


def _start(start: int | str | Mapping[str, Any]) -> dict[str, Any]:
    match start:
        case int():
            return {"from_seq": start}
        case "tail":
            return {"tail": True}
        case str():
            raise InvalidRequest(f'a topic must start at a seq, "tail" or {{"from_ts": ms}}, not at {start!r}')
        case _:
            return dict(start)


def position_after(event: LiveEvent) -> int | None:
    """The seq after which to continue once this event was read; None: unchanged."""
    match event:
        case Arrived(to_seq=seq) | CaughtUp(head_seq=seq):
            return seq
        case Tombstone(reason="recreated", earliest_seq=seq):
            return max(0, seq - 1)
        case Tombstone(gap_to=seq):
            return seq
        case _:
            return None

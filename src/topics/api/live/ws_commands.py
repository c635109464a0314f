"""Commands of a WebSocket: what a client may send, and the reply to each."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.api.replies import creation_warnings, last_seq_of, seqs_of
from topics.api.schema import WatchedTopic
from topics.engine.core.pending import PendingChange
from topics.model.errors import InvalidRequest, TopicsError
from topics.model.requests.config import U64
from topics.model.requests.records import AppendRequest, decode_body
from topics.model.requests.watch import FollowRequest, StartRequest, Ts

encode = msgspec.json.Encoder().encode
NO_ID = Raw(b"")


class Command(msgspec.Struct):
    """The fields of every command; the others depend on `op`, and a decoded command accepts no unknown ones."""

    op: Any = None
    # As the client wrote it; empty if absent.
    request_id: Raw = NO_ID


class SubscribeCommand(FollowRequest, kw_only=True):
    """One topic with its start, or many with a start each."""

    op: Raw
    request_id: Raw = NO_ID
    topic: str | None = None
    topics: dict[str, StartRequest | None] | None = None
    from_seq: U64 = 0
    tail: bool | None = False
    from_ts: Ts | UnsetType = UNSET
    lenient: bool | None = False

    def starts(self) -> dict[str, StartRequest]:
        starts = {name: start or StartRequest() for name, start in (self.topics or {}).items()}
        if self.topic is not None:
            starts[self.topic] = StartRequest(from_seq=self.from_seq, tail=self.tail, from_ts=self.from_ts)
        return starts


class UnsubscribeCommand(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    op: Raw
    request_id: Raw = NO_ID
    topic: str | None = None
    topics: list[str] | None = None

    def names(self) -> list[str]:
        names = list(self.topics or ())
        if self.topic is not None:
            names.append(self.topic)
        if not names:
            raise InvalidRequest("topic must name what to unsubscribe from", field="topic")
        return names


class PublishCommand(AppendRequest, kw_only=True):
    op: Raw
    request_id: Raw = NO_ID
    topic: str
    return_seqs: bool | None = None


class PingCommand(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    op: Raw
    request_id: Raw = NO_ID


command_decoder = msgspec.json.Decoder(Command)
subscribe_decoder = msgspec.json.Decoder(SubscribeCommand)
unsubscribe_decoder = msgspec.json.Decoder(UnsubscribeCommand)
publish_decoder = msgspec.json.Decoder(PublishCommand)
ping_decoder = msgspec.json.Decoder(PingCommand)


def decode_command(message: bytes) -> Command:
    return decode_body(command_decoder, message)


# --- the server's frames ---


def reply(op: str, request_id: Raw, **fields: Any) -> bytes:
    """A frame that replies to a command, with the id that the client gave it."""
    if not bytes(request_id):
        return encode({"op": op, **fields})
    return encode({"op": op, "request_id": request_id, **fields})


def subscribed(request_id: Raw, topics: dict[str, WatchedTopic]) -> bytes:
    return reply("subscribed", request_id, topics=topics)


def acknowledged(request_id: Raw, command: PublishCommand, change: PendingChange) -> bytes:
    more: dict[str, Any] = {}
    if command.return_seqs is not False:
        more["seqs"] = seqs_of(change)
    if warnings := creation_warnings(command, change):
        more["warnings"] = warnings
    spent = {"wal_append_ms": round(change.wal_append_ms, 3), "fsync_ms": round(change.fsync_ms, 3)}
    return reply(
        "ack",
        request_id,
        topic=command.topic,
        first_seq=change.first_seq,
        last_seq=last_seq_of(change),
        head_seq=change.head_seq,
        count=change.count,
        created=change.created,
        deduped=change.deduped,
        **more,
        performance=spent,
    )


def failed(request_id: Raw, error: TopicsError) -> bytes:
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.detail:
        fields["detail"] = error.detail
    return reply("error", request_id, **fields)


def broken(request_id: Raw, trace_id: str) -> bytes:
    message = "a bug in the server, see its log"
    return reply("error", request_id, code="internal", message=message, detail={"trace_id": trace_id})

"""Commands of a WebSocket and the frames that answer them, independent of any connection."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.client.errors import BadAnswer, TopicsError, error_of
from topics.client.live import Watched
from topics.client.request import encode
from topics.client.values import Outgoings, records_json
from topics.model.requests.nesting import decode_deep


class ReplyFrame(msgspec.Struct):
    """The fields that all frames share; the others are decoded by the kind of frame."""

    op: str
    request_id: str | None = None
    # of errors
    code: str = ""
    message: str = ""
    detail: dict[str, Any] | None = None
    # of `subscribed`
    topics: dict[str, Watched] | list[str] | None = None


_frame = msgspec.json.Decoder(ReplyFrame)


def frame_of(text: str | bytes) -> ReplyFrame:
    try:
        return decode_deep(_frame.decode, text)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"a frame of the WebSocket cannot be read: {error}") from None


def error_in(frame: ReplyFrame) -> TopicsError:
    return error_of(frame.code, frame.message, 0, frame.detail)


def command(op: str, request_id: str, **fields: Any) -> str:
    given = {name: value for name, value in fields.items() if value is not None}
    return encode({"op": op, "request_id": request_id, **given}).decode()


def publish_command(request_id: str, topic: str, records: Outgoings, **fields: Any) -> str:
    """Records are inserted as bytes: payloads that are JSON already stay unchanged."""
    head = command("publish", request_id, topic=topic, **fields)
    return f'{head[:-1]},"records":{records_json(records).decode()}}}'

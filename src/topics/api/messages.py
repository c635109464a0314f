"""Records as the messages of a consumer group: slices of what was rendered, with the payload in base64.

{"$seq":7,"$ts":1748450001000,"$node":"eu-1","data":{"a":1},"meta":{"op":"Update"}}     tag: k
  │         │                    │             │             │
offset 6  timestamp_ms         user          payload        op                          key
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any, Final

import msgspec

from topics.api.replies import encode
from topics.engine.body import Body
from topics.engine.consuming import Run

OPS: Final = frozenset(("Insert", "Update", "Delete"))
_DATA, _TS = b',"data":', b'"$ts":'
_NODE_BYTES, _META_BYTES = len(b',"$node":'), len(b',"meta":')


class Marked(msgspec.Struct):
    """The part of a record's meta that says what happened to the thing it is about."""

    op: Any = None


_marked = msgspec.json.Decoder(Marked)


def render(topic_id: str, partition: int, runs: list[Run]) -> list[bytes]:
    """One JSON object a record. Data is neither parsed nor looked at."""
    head = b'{"topic_id":%b,"partition_id":%d,"offset":' % (encode(topic_id), partition)
    messages: list[bytes] = []
    for run in runs:
        body, block = run.body, run.block
        buf, ends, metas, tagged = body.buf, body.ends, body.metas, body.tags is not None
        at = body.start_of(run.first)
        for number in range(run.first, run.stop):
            ts_at = buf.index(_TS, at) + 6
            ts_end = buf.index(b",", ts_at)
            # The first one is the record's own: within a node's JSON string the quotes would be escaped.
            data_at = buf.index(_DATA, ts_end)
            end = ends[number]
            data_end = end - 2
            op = "Insert"
            if metas is not None and metas[number]:
                op = _op_of(buf[data_end - metas[number] : data_end])
                data_end -= metas[number] + _META_BYTES
            messages.append(
                b'%b%d,"payload":"%b","key":%b,"timestamp_ms":%b,"user":%b,"op":"%b"}'
                % (
                    head,
                    block.seq_at(number) - 1,
                    b2a_base64(buf[data_at + 8 : data_end], newline=False),
                    _key_of(body, number) if tagged else b"null",
                    buf[ts_at:ts_end],
                    buf[ts_end + _NODE_BYTES : data_at] if data_at > ts_end else b'""',
                    op.encode(),
                )
            )
            at = end
    return messages


def _op_of(meta: bytes | bytearray) -> str:
    op = _marked.decode(meta).op
    return op if isinstance(op, str) and op in OPS else "Insert"


def _key_of(body: Body, number: int) -> bytes:
    tag = body.tag_at(number)
    return b"null" if tag is None else encode(tag.decode())

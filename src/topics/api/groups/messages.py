"""Records as the messages of a consumer group: slices of the rendered records, with the payload in base64.

{"$seq":7,"$ts":1748450001000,"$node":"eu-1","data":{"a":1},"meta":{"op":"Update"}}     tag: k
  │         │                    │             │             │
offset 6  timestamp_ms         user          payload        op                          key
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any, Final

import msgspec

from topics.engine.groups.verbs import RecordRun
from topics.engine.log.body import Body
from topics.model.requests.nesting import decode_deep

_encode = msgspec.json.Encoder().encode
OPS: Final = frozenset(("Insert", "Update", "Delete"))
_DATA = b',"data":'
_SEQ_BYTES, _NODE_BYTES = len(b'{"$seq":,"$ts":'), len(b',"$node":')
_DATA_BYTES, _META_BYTES = len(_DATA), len(b',"meta":')
_RICH = b'%b%d,"payload":"%b","key":%b,"timestamp_ms":%b,"user":%b,"op":"%b"}'
_BARE = b'%b%d,"payload":"%b","key":null,"timestamp_ms":%b,"user":"","op":"Insert"}'


class Marked(msgspec.Struct):
    """The part of a record's meta that names the operation it describes."""

    op: Any = None


_marked = msgspec.json.Decoder(Marked)


def render(topic_id: str, partition: int, runs: list[RecordRun]) -> list[bytes]:
    """JSON objects; joined by commas they are the inside of an array. Data is neither parsed nor inspected."""
    head = b'{"topic_id":%b,"partition_id":%d,"offset":' % (_encode(topic_id), partition)
    messages: list[bytes] = []
    for run in runs:
        body = run.body
        if body.tags is None and body.nodes is None and body.metas is None and run.block.seqs is None:
            _render_bare(run, head, messages)
        else:
            _render_rich(run, head, messages)
    return messages


def _render_bare(run: RecordRun, head: bytes, messages: list[bytes]) -> None:
    """The hot loop. In a record with data only, the payload follows right after the time."""
    buf, first_seq = run.body.buf, run.block.first_seq
    at = run.body.start_of(run.first)
    offset = first_seq + run.first - 1
    for end in run.body.ends[run.first : run.stop]:
        ts_at = at + _SEQ_BYTES + len(str(offset + 1))
        ts_end = buf.index(b",", ts_at)
        payload = b2a_base64(buf[ts_end + _DATA_BYTES : end - 2], newline=False)
        messages.append(_BARE % (head, offset, payload, buf[ts_at:ts_end]))
        at = end
        offset += 1


def _render_rich(run: RecordRun, head: bytes, messages: list[bytes]) -> None:
    body, block = run.body, run.block
    buf, ends, metas, tagged = body.buf, body.ends, body.metas, body.tags is not None
    at = body.start_of(run.first)
    for number in range(run.first, run.stop):
        seq = block.seq_at(number)
        ts_at = at + _SEQ_BYTES + len(str(seq))
        ts_end = buf.index(b",", ts_at)
        # The first one is the record's own: within a node's JSON string the quotes would be escaped.
        data_at = buf.index(_DATA, ts_end)
        at = ends[number]
        data_end = at - 2
        op = b"Insert"
        if metas is not None and metas[number]:
            op = _op_of(buf[data_end - metas[number] : data_end])
            data_end -= metas[number] + _META_BYTES
        payload = b2a_base64(buf[data_at + _DATA_BYTES : data_end], newline=False)
        key = _key_of(body, number) if tagged else b"null"
        user = buf[ts_end + _NODE_BYTES : data_at] if data_at > ts_end else b'""'
        messages.append(_RICH % (head, seq - 1, payload, key, buf[ts_at:ts_end], user, op))


def _op_of(meta: bytes | bytearray) -> bytes:
    try:
        op = decode_deep(_marked.decode, bytes(meta)).op
    except (msgspec.DecodeError, RecursionError):
        return b"Insert"
    return op.encode() if isinstance(op, str) and op in OPS else b"Insert"


def _key_of(body: Body, number: int) -> bytes:
    tag = body.tag_at(number)
    return b"null" if tag is None else _encode(tag.decode())

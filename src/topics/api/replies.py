"""Successful replies as bytes: the frequent ones by formatting, the others by encoding their struct."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import msgspec

from topics.api.call import Call
from topics.api.schema import Performance
from topics.engine.core.pending import PendingChange
from topics.engine.log.reading import Diff
from topics.http.request import Bytes
from topics.model.requests.config import resolve
from topics.model.requests.records import AppendRequest
from topics.model.requests.warnings import config_warnings

encode = msgspec.json.Encoder().encode

# A larger reply is passed on in parts; below this, one piece is cheaper for the kernel.
JOIN_BYTES_MAX = 64 * 1024
PARTS_MAX = 256

_BOOL = (b"false", b"true")


def performance(call: Call) -> Performance:
    spent = Performance(server_total_ms=round(call.elapsed_ms, 3))
    if call.throttled_s:
        spent.throttle_wait_ms = round(call.throttled_s * 1000, 3)
    return spent


def write_performance(call: Call, change: PendingChange) -> Performance:
    spent = performance(call)
    spent.wal_append_ms = round(change.wal_append_ms, 3)
    spent.fsync_ms = round(change.fsync_ms, 3)
    return spent


def appended(call: Call, change: PendingChange, *, return_seqs: bool) -> bytes:
    first_seq, count = change.first_seq, change.count
    last_seq = first_seq
    if not return_seqs:
        last_seq = last_seq_of(change)
        seqs = b""
    elif count == 1 and change.result is None:
        seqs = b'"seqs":[%d],' % first_seq
    else:
        last_seq = last_seq_of(change)
        seqs = b'"seqs":%b,' % encode(seqs_of(change))
    return (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b,%b'
        b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%b%b}}'
    ) % (
        call.name.encode(),
        first_seq,
        last_seq,
        seqs,
        change.head_seq,
        count,
        _BOOL[change.created],
        _BOOL[change.deduped],
        _warned(call, change) if change.created else b"",
        (perf_counter() - call.request.received_s) * 1000,
        change.wal_append_ms,
        b"%.3f" % change.fsync_ms if change.fsync_ms else b"0.0",
        throttle_wait(call),
    )


def creation_warnings(params: AppendRequest, change: PendingChange) -> list[str]:
    """About the topic that an append has created with its `config`."""
    if not change.created or params.config is None:
        return []
    return config_warnings(resolve(params.config, ""), params.config)


def _warned(call: Call, change: PendingChange) -> bytes:
    warnings = creation_warnings(call.params, change)
    return b'"warnings":%b,' % encode(warnings) if warnings else b""


def last_seq_of(change: PendingChange) -> int:
    """Of an append. Jobs that were pending have earlier seqs than the added records."""
    return change.last_seq if change.result is None else max(change.result)


def seqs_of(change: PendingChange) -> list[int]:
    """The seq of each record of an append, in the order of the request, whether it was added or existed."""
    return list(range(change.first_seq, change.last_seq + 1)) if change.result is None else change.result


def throttle_wait(call: Call) -> bytes:
    return b',"throttle_wait_ms":%.3f' % (call.throttled_s * 1000) if call.throttled_s else b""


def difference(call: Call, diff: Diff, scanned: int) -> Bytes | Sequence[Bytes]:
    """Records first: their bytes are passed on as they were rendered when they were appended."""
    head = b'{"topic":"%b","epoch":%d,"records":[' % (call.name.encode(), diff.epoch)
    tail = (
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"lag":%d,"tombstone":%b,'
        b'"performance":{"server_total_ms":%.3f,"records_scanned":%d%b%b}}'
    ) % (
        diff.next_from_seq,
        diff.head_seq,
        diff.earliest_seq,
        _BOOL[diff.caught_up],
        diff.lag,
        b"null" if diff.tombstone is None else encode(diff.tombstone.as_dict()),
        (perf_counter() - call.request.received_s) * 1000,
        scanned,
        b',"cold_segments_read":%d' % diff.cold_segments if diff.cold_segments else b"",
        throttle_wait(call),
    )
    parts = diff.parts
    if len(parts) > PARTS_MAX or sum(map(len, parts)) <= JOIN_BYTES_MAX:
        return b"".join((head, b",".join(parts), tail))
    spaced: list[Bytes] = [b","] * (2 * len(parts) + 1)
    spaced[0] = head
    spaced[1::2] = parts
    spaced[-1] = tail
    return spaced

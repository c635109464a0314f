"""Columns of records, made from the lines of an export without an object per record.

If lines are rendered alike (seqs with equally many digits, the same node, no tags), every column is a slice at the same
offset of each line, as in `topics.engine.log.run_columns`. Otherwise lines are cut at the names of their fields; only
a few lines, and those with meta, are decoded one by one.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.engine.log.run_columns import (
    ALL,
    DATA,
    META,
    SEQ,
    TS,
    TS_DIGITS,
    UTC_US,
    Columns,
    array_of,
    decoded_columns,
    int32,
    integers,
    pieces,
    timestamps,
)

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("seq", pa.int64()),
        ("ts", UTC_US),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("data", pa.string()),
        ("meta", pa.string()),
    ]
)

# Up to here an object per record costs less than a dozen calls to Arrow.
DECODED_BYTES = 16 * 1024

_TAG = ',"$tag":"'
# Faster than `in`, which examines every byte for a colon.
_meta = re.compile(META)


class Lines(NamedTuple):
    """Columns of the records among some lines, and the other lines (gaps, the end) unchanged."""

    columns: Columns
    records: int
    others: list[bytes]


class _Middle(msgspec.Struct, gc=False):
    """The bytes between time and data, the same in a whole run."""

    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)


_middle_decoder = msgspec.json.Decoder(_Middle)


# --- lines of an export ---


def line_columns(chunk: bytes, wants: frozenset[str] = ALL) -> Lines:
    """Columns of whole lines of an export. `ts` is a timestamp, `data` and `meta` are JSON text."""
    if len(chunk) <= DECODED_BYTES:
        return _few_columns(chunk, wants)
    end = len(chunk) - chunk.endswith(b"\n")
    text = array_of(pa.string(), 1, array("i", (0, end)), chunk)
    lines = pc.split_pattern(text, "\n").values.view(pa.binary())
    records = pc.starts_with(lines, SEQ)
    others: list[bytes] = []
    if not pc.all(records).as_py():
        others = [line for line in lines.filter(pc.invert(records)).to_pylist() if line]
        lines = lines.filter(records)
        chunk = b"\n".join(lines.to_pylist())
    if not len(lines):
        return Lines({name: pa.nulls(0, SCHEMA.field(name).type) for name in wants}, 0, others)
    columns = None
    if DATA in chunk[: chunk.find(b"\n")] and not _meta.search(chunk):
        columns = _alike_columns(chunk, lines, wants) or _cut_columns(lines, wants)
    return Lines(columns or decoded_columns(chunk, wants), len(lines), others)


def _few_columns(chunk: bytes, wants: frozenset[str]) -> Lines:
    lines = [line for line in chunk.split(b"\n") if line]
    records = [line for line in lines if line.startswith(SEQ)]
    others = [line for line in lines if not line.startswith(SEQ)]
    return Lines(decoded_columns(b"\n".join(records), wants), len(records), others)


def _alike_columns(chunk: bytes, lines: pa.Array, wants: frozenset[str]) -> Columns | None:
    """Columns by slices at the same offset of each line; None if the lines are not alike."""
    last_at = chunk.rfind(b"\n", 0, len(chunk) - 1) + 1
    digits = chunk.index(b",") - len(SEQ)
    ts_at = len(SEQ) + digits + len(TS)
    middle_at = ts_at + TS_DIGITS
    data_at = chunk.index(DATA) + len(DATA)
    if chunk.index(b",", last_at) - last_at - len(SEQ) != digits or middle_at > data_at:
        return None
    middle = chunk[middle_at:data_at]
    if not pc.all(pc.equal(pc.binary_slice(lines, middle_at, data_at), pa.scalar(middle, pa.binary()))).as_py():
        return None
    try:
        named = _middle_decoder.decode(b'{"":0' + middle[: -len(DATA)] + b"}")
        seqs = integers(pc.binary_slice(lines, len(SEQ), len(SEQ) + digits))
        times = integers(pc.binary_slice(lines, ts_at, middle_at)) if "ts" in wants else None
    except (msgspec.DecodeError, pa.ArrowInvalid):
        return None
    count = len(lines)
    makers: dict[str, Callable[[], pa.Array]] = {
        "seq": lambda: seqs,
        "ts": lambda: timestamps(times),
        "node": lambda: pa.repeat(pa.scalar(named.node, pa.string()), count),
        "tag": lambda: pa.repeat(pa.scalar(named.tag, pa.string()), count),
        "data": lambda: pc.binary_slice(lines, data_at, -1).view(pa.string()),
        "meta": lambda: pa.nulls(count, pa.string()),
    }
    return {name: makers[name]() for name in wants}


def _cut_columns(lines: pa.Array, wants: frozenset[str]) -> Columns | None:
    """Columns by the fields found in each line: tags, nodes and digits of seqs may differ; meta must be absent."""
    texts = lines.view(pa.string())
    data_at, ts_at = pc.find_substring(texts, DATA.decode()), pc.find_substring(texts, TS.decode())
    buffer = lines.buffers()[2]
    starts = pa.Array.from_buffers(pa.int32(), len(lines), [None, lines.buffers()[1]])
    ends = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, lines.buffers()[1]]).slice(1)
    ts_begin = pc.add(pc.add(starts, ts_at), int32(len(TS)))
    ts_end = pc.add(ts_begin, int32(TS_DIGITS))
    middle_end = pc.add(starts, data_at)
    if pc.min(ts_at).as_py() < 0 or pc.min(pc.subtract(middle_end, ts_end)).as_py() < 0:
        return None
    middles = pieces(buffer, ts_end, middle_end)
    if not pc.all(pc.or_(pc.starts_with(middles, ","), pc.equal(middles, pa.scalar("", pa.string())))).as_py():
        return None
    try:
        seqs = integers(pieces(buffer, pc.add(starts, int32(len(SEQ))), pc.add(starts, ts_at)))
        times = integers(pieces(buffer, ts_begin, ts_end))
        nodes, tags = _named(middles) if wants & {"node", "tag"} else (None, None)
    except (msgspec.DecodeError, pa.ArrowInvalid):
        return None
    makers: dict[str, Callable[[], pa.Array]] = {
        "seq": lambda: seqs,
        "ts": lambda: timestamps(times),
        "node": lambda: nodes,
        "tag": lambda: tags,
        "data": lambda: pieces(buffer, pc.add(middle_end, int32(len(DATA))), pc.subtract(ends, int32(1))),
        "meta": lambda: pa.nulls(len(lines), pa.string()),
    }
    return {name: makers[name]() for name in wants}


def _named(middles: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Nodes and tags, from the bytes between time and data of each line."""
    first = middles[0].as_py()
    prefix = first[: first.find(_TAG) + len(_TAG)] if _TAG in first else ""
    plain = pc.and_(pc.starts_with(middles, prefix), pc.invert(pc.match_substring(middles, "\\")))
    if prefix and pc.all(plain).as_py():
        # The same node, and tags without escapes: a tag has no quote, so the last one ends it.
        tags = pc.binary_slice(middles.view(pa.binary()), len(prefix.encode()), -1).view(pa.string())
        node = _middle_decoder.decode(b'{"":0' + prefix.encode() + b'"}').node
        return pa.repeat(pa.scalar(node, pa.string()), len(middles)), tags
    known = middles.dictionary_encode()
    named = [_middle_decoder.decode(f'{{"":0{middle}}}') for middle in known.dictionary.to_pylist()]
    return (
        pa.array([each.node for each in named], pa.string()).take(known.indices),
        pa.array([each.tag for each in named], pa.string()).take(known.indices),
    )

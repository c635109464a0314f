"""Columns of records, made from their rendered bytes without an object per record: lines of an export, or blocks.

    {"$seq":100001,"$ts":1748450001000,"$node":"eu-1","data":{"id":7,…}}
    |------- 8 + digits + 7 + 13 -----|------ middle -------|  slices at the same offset of every line are a column

If a run of records is rendered alike (seqs with equally many digits, the same node, no tags), every column is one
slice of all its lines. Otherwise lines are cut at the names of their fields, or by the columns of a block; only lines
with meta are decoded one by one.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.engine.log.block import Block
from topics.engine.log.body import Body

ALL: Final = frozenset(("seq", "ts", "node", "tag", "data", "meta"))
UTC_US: Final = pa.timestamp("us", "UTC")
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

_SEQ, _TS, _DATA, _META = b'{"$seq":', b',"$ts":', b',"data":', b',"meta":'
_TAG = ',"$tag":"'
# Faster than `in`, which examines every byte for a colon.
_meta = re.compile(_META)
_TS_DIGITS = 13
_TS_MIN, _TS_MAX = 10**12, 10**13
_encode_string = msgspec.json.Encoder().encode

Columns = Mapping[str, pa.Array]


class Lines(NamedTuple):
    """Columns of the records among some lines, and the other lines (gaps, the end) unchanged."""

    columns: Columns
    records: int
    others: list[bytes]


class _Line(msgspec.Struct, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Middle(msgspec.Struct, gc=False):
    """The bytes between time and data, the same in a whole run."""

    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)


_decoder = msgspec.json.Decoder(_Line)
_middle_decoder = msgspec.json.Decoder(_Middle)


# --- lines of an export ---


def line_columns(chunk: bytes, wants: frozenset[str] = ALL) -> Lines:
    """Columns of whole lines of an export. `ts` is a timestamp, `data` and `meta` are JSON text."""
    end = len(chunk) - chunk.endswith(b"\n")
    text = _array(pa.string(), 1, array("i", (0, end)), chunk)
    lines = pc.split_pattern(text, "\n").values.view(pa.binary())
    records = pc.starts_with(lines, _SEQ)
    others: list[bytes] = []
    if not pc.all(records).as_py():
        others = [line for line in lines.filter(pc.invert(records)).to_pylist() if line]
        lines = lines.filter(records)
        chunk = b"\n".join(lines.to_pylist())
    if not len(lines):
        return Lines({name: pa.nulls(0, SCHEMA.field(name).type) for name in wants}, 0, others)
    columns = None
    if _DATA in chunk[: chunk.find(b"\n")] and not _meta.search(chunk):
        columns = _alike_columns(chunk, lines, wants) or _cut_columns(lines, wants)
    return Lines(columns or _decoded_columns(chunk, wants), len(lines), others)


def _alike_columns(chunk: bytes, lines: pa.Array, wants: frozenset[str]) -> Columns | None:
    """Columns by slices at the same offset of each line; None if the lines are not alike."""
    last_at = chunk.rfind(b"\n", 0, len(chunk) - 1) + 1
    digits = chunk.index(b",") - len(_SEQ)
    ts_at = len(_SEQ) + digits + len(_TS)
    middle_at = ts_at + _TS_DIGITS
    data_at = chunk.index(_DATA) + len(_DATA)
    if chunk.index(b",", last_at) - last_at - len(_SEQ) != digits or middle_at > data_at:
        return None
    middle = chunk[middle_at:data_at]
    if not pc.all(pc.equal(pc.binary_slice(lines, middle_at, data_at), pa.scalar(middle, pa.binary()))).as_py():
        return None
    try:
        named = _middle_decoder.decode(b'{"":0' + middle[: -len(_DATA)] + b"}")
        seqs = _integers(pc.binary_slice(lines, len(_SEQ), len(_SEQ) + digits))
        times = _integers(pc.binary_slice(lines, ts_at, middle_at)) if "ts" in wants else None
    except (msgspec.DecodeError, pa.ArrowInvalid):
        return None
    count = len(lines)
    makers: dict[str, Callable[[], pa.Array]] = {
        "seq": lambda: seqs,
        "ts": lambda: _timestamps(times),
        "node": lambda: pa.repeat(pa.scalar(named.node, pa.string()), count),
        "tag": lambda: pa.repeat(pa.scalar(named.tag, pa.string()), count),
        "data": lambda: pc.binary_slice(lines, data_at, -1).view(pa.string()),
        "meta": lambda: pa.nulls(count, pa.string()),
    }
    return {name: makers[name]() for name in wants}


def _cut_columns(lines: pa.Array, wants: frozenset[str]) -> Columns | None:
    """Columns by the fields found in each line: tags, nodes and digits of seqs may differ; meta must be absent."""
    texts = lines.view(pa.string())
    data_at, ts_at = pc.find_substring(texts, _DATA.decode()), pc.find_substring(texts, _TS.decode())
    buffer = lines.buffers()[2]
    starts = pa.Array.from_buffers(pa.int32(), len(lines), [None, lines.buffers()[1]])
    ends = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, lines.buffers()[1]]).slice(1)
    ts_begin = pc.add(pc.add(starts, ts_at), _int32(len(_TS)))
    ts_end = pc.add(ts_begin, _int32(_TS_DIGITS))
    middle_end = pc.add(starts, data_at)
    if pc.min(ts_at).as_py() < 0 or pc.min(pc.subtract(middle_end, ts_end)).as_py() < 0:
        return None
    middles = _pieces(buffer, ts_end, middle_end)
    if not pc.all(pc.or_(pc.starts_with(middles, ","), pc.equal(middles, pa.scalar("", pa.string())))).as_py():
        return None
    try:
        seqs = _integers(_pieces(buffer, pc.add(starts, _int32(len(_SEQ))), pc.add(starts, ts_at)))
        times = _integers(_pieces(buffer, ts_begin, ts_end))
        nodes, tags = _named(middles) if wants & {"node", "tag"} else (None, None)
    except (msgspec.DecodeError, pa.ArrowInvalid):
        return None
    makers: dict[str, Callable[[], pa.Array]] = {
        "seq": lambda: seqs,
        "ts": lambda: _timestamps(times),
        "node": lambda: nodes,
        "tag": lambda: tags,
        "data": lambda: _pieces(buffer, pc.add(middle_end, _int32(len(_DATA))), pc.subtract(ends, _int32(1))),
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


def _decoded_columns(chunk: bytes, wants: frozenset[str]) -> Columns:
    lines = _decoder.decode_lines(chunk)
    makers: dict[str, Callable[[], pa.Array]] = {
        "seq": lambda: pa.array([line.seq for line in lines], pa.int64()),
        "ts": lambda: _timestamps(pa.array([line.ts for line in lines], pa.int64())),
        "node": lambda: pa.array([line.node for line in lines], pa.string()),
        "tag": lambda: pa.array([line.tag for line in lines], pa.string()),
        "data": lambda: pa.array([_text(line.data) for line in lines], pa.string()),
        "meta": lambda: pa.array([_text(line.meta) for line in lines], pa.string()),
    }
    return {name: makers[name]() for name in wants}


def _text(raw: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    return None if isinstance(raw, msgspec.UnsetType) else bytes(raw)


# --- blocks ---


def block_columns(block: Block, start: int, stop: int, wants: frozenset[str] = ALL) -> list[tuple[Columns, int]]:
    """Columns of the live records among start … stop − 1, for each run of seqs with equally many digits."""
    found: list[tuple[Columns, int]] = []
    start = max(start, block.start)
    while start < stop:
        digits = len(str(block.seq_at(start)))
        alike_to = min(stop, block.number_after(10**digits - 1))
        columns = _stretch_columns(block, start, alike_to, digits, wants)
        count = alike_to - start
        dead = block.dead
        if dead is not None and dead.find(1, start, alike_to) >= 0:
            alive = pc.equal(_array(pa.uint8(), count, None, bytes(dead[start:alike_to])), pa.scalar(0, pa.uint8()))
            columns = {name: column.filter(alive) for name, column in columns.items()}
            count = dead.count(0, start, alike_to)
        if count:
            found.append((columns, count))
        start = alike_to
    return found


def _stretch_columns(block: Block, start: int, stop: int, digits: int, wants: frozenset[str]) -> Columns:
    body = block.body
    assert body is not None
    if not (_TS_MIN <= block.first_ts <= block.last_ts < _TS_MAX):
        return _decoded_block_columns(body, start, stop, wants)
    cut = _Cut(block, body, start, stop, digits)
    makers: dict[str, Callable[[], pa.Array]] = {
        "seq": cut.seqs,
        "ts": cut.times,
        "node": cut.nodes,
        "tag": cut.tags,
        "data": cut.data,
        "meta": cut.metas,
    }
    return {name: makers[name]() for name in wants}


class _Cut:
    """A run of a block whose seqs have equally many digits: all offsets follow from its columns."""

    def __init__(self, block: Block, body: Body, start: int, stop: int, digits: int) -> None:
        self._block = block
        self._body = body
        self._start = start
        self._stop = stop
        self._count = stop - start
        self._bounds = array("i", (body.start_of(start),))
        self._bounds.frombytes(body.ends[start:stop].tobytes())
        self._ts_at = len(_SEQ) + digits + len(_TS)
        # The bytes before the data, without the node.
        self._head_bytes = self._ts_at + _TS_DIGITS + len(_DATA)
        self._node_numbers = None if body.nodes is None else body.nodes[start:stop]

    def _lines(self) -> pa.Array:
        return _array(pa.binary(), self._count, self._bounds, self._body.buf)

    def seqs(self) -> pa.Array:
        block = self._block
        if block.seqs is not None:
            return _array(pa.int64(), self._count, None, block.seqs[self._start : self._stop])
        first = block.first_seq + self._start
        return _array(pa.int64(), self._count, None, array("q", range(first, first + self._count)))

    def times(self) -> pa.Array:
        block = self._block
        if block.first_ts == block.last_ts:
            return pa.repeat(pa.scalar(1000 * block.first_ts, pa.int64()), self._count).view(UTC_US)
        return _timestamps(_integers(pc.binary_slice(self._lines(), self._ts_at, self._ts_at + _TS_DIGITS)))

    def nodes(self) -> pa.Array:
        numbers = self._node_numbers
        if numbers is None:
            return pa.nulls(self._count, pa.string())
        names = pa.array([None, *self._body.node_names], pa.string())
        return names.take(_array(pa.uint32(), self._count, None, numbers))

    def tags(self) -> pa.Array:
        body = self._body
        if body.tags is None:
            return pa.nulls(self._count, pa.string())
        bounds = array("i", (body.tag_ends[self._start - 1] if self._start else 0,))
        bounds.frombytes(body.tag_ends[self._start : self._stop].tobytes())
        starts = _array(pa.int32(), self._count, None, bounds[:-1])
        ends = _array(pa.int32(), self._count, None, bounds[1:])
        # A stored tag starts with a marker byte; without it there is no tag.
        tagged = pc.greater(ends, starts)
        tags = _pieces(body.tags, pc.add(starts, tagged.cast(pa.int32())), ends)
        return pc.if_else(tagged, tags, pa.scalar(None, pa.string()))

    def data(self) -> pa.Array:
        metas = self._body.metas
        numbers = self._node_numbers
        node_bytes = [0, *(len(b',"$node":' + _encode_string(name)) for name in self._body.node_names)]
        if metas is None and (numbers is None or numbers.count(numbers[0]) == len(numbers)):
            head = self._head_bytes + (0 if numbers is None else node_bytes[numbers[0]])
            return pc.binary_slice(self._lines(), head, -2).view(pa.string())
        starts = pc.add(self._offsets(0), _int32(self._head_bytes))
        if numbers is not None:
            starts = pc.add(
                starts, pa.array(node_bytes, pa.int32()).take(_array(pa.uint32(), self._count, None, numbers))
            )
        ends = pc.subtract(self._offsets(1), _int32(2))
        if metas is not None:
            lengths = self._meta_lengths(metas)
            taken = pc.if_else(pc.equal(lengths, _int32(0)), _int32(0), pc.add(lengths, _int32(len(_META))))
            ends = pc.subtract(ends, taken)
        return _pieces(self._body.buf, starts, ends)

    def metas(self) -> pa.Array:
        metas = self._body.metas
        if metas is None:
            return pa.nulls(self._count, pa.string())
        lengths = self._meta_lengths(metas)
        ends = pc.subtract(self._offsets(1), _int32(2))
        texts = _pieces(self._body.buf, pc.subtract(ends, lengths), ends)
        return pc.if_else(pc.equal(lengths, _int32(0)), pa.scalar(None, pa.string()), texts)

    def _meta_lengths(self, metas: array[int]) -> pa.Array:
        return _array(pa.int32(), self._count, None, metas[self._start : self._stop])

    def _offsets(self, first: int) -> pa.Array:
        return _array(pa.int32(), self._count, None, self._bounds[first : first + self._count])


def _decoded_block_columns(body: Body, start: int, stop: int, wants: frozenset[str]) -> Columns:
    """For times of another century: the lines are decoded; only tags come from the block."""
    columns = dict(_decoded_columns(bytes(body.lines(start, stop)), wants))
    if "tag" in wants:
        tags = [body.tag_at(number) for number in range(start, stop)]
        columns["tag"] = pa.array(tags, pa.string())
    return columns


# --- Arrow ---


def _int32(value: int) -> pa.Scalar:
    """A number with its type: letting Arrow guess costs more than the column."""
    return pa.scalar(value, pa.int32())


def _array(kind: pa.DataType, count: int, offsets: array[int] | None, data: Any) -> pa.Array:
    """An array over existing bytes."""
    buffers = [None, pa.py_buffer(data)] if offsets is None else [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _pieces(data: Any, starts: pa.Array, ends: pa.Array) -> pa.Array:
    """The strings from each start to its end, which are in order in `data`.

    Starts and ends interleaved are the offsets of an array in which every other string is one of them.
    """
    count = len(starts)
    pairs = pc.bit_wise_or(pc.shift_left(ends.cast(pa.uint64()), pa.scalar(32, pa.uint64())), starts.cast(pa.uint64()))
    both = pa.Array.from_buffers(pa.string(), 2 * count - 1, [None, pairs.buffers()[1], pa.py_buffer(data)])
    every_other = pa.py_buffer(b"\x55" * (count // 4 + 1))
    return both.filter(pa.Array.from_buffers(pa.bool_(), 2 * count - 1, [None, every_other]))


def _integers(texts: pa.Array) -> pa.Array:
    return texts.view(pa.string()).cast(pa.int64())


def _timestamps(times_ms: pa.Array) -> pa.Array:
    return pc.multiply(times_ms, pa.scalar(1000, pa.int64())).view(UTC_US)

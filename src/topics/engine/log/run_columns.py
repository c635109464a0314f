"""Runs of records as Arrow columns, made from their rendered bytes without an object per record. Needs pyarrow.

    {"$seq":100001,"$ts":1748450001000,"$node":"eu-1","data":{"id":7,…}}
    |------- 8 + digits + 7 + 13 -----|------ middle -------|  slices at the same offset of every record are a column

Where records differ (nodes, meta), offsets are computed from the columns of the body; only records of another century
are decoded one by one.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.reading import FrozenRun, run_of

ALL: Final = frozenset(("seq", "ts", "node", "tag", "data", "meta"))
UTC_US: Final = pa.timestamp("us", "UTC")
SEQ, TS, DATA, META = b'{"$seq":', b',"$ts":', b',"data":', b',"meta":'
TS_DIGITS: Final = 13
_TS_MIN, _TS_MAX = 10**12, 10**13
_encode_string = msgspec.json.Encoder().encode

Columns = Mapping[str, pa.Array]


class _Line(msgspec.Struct, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Line)


def block_columns(block: Block, start: int, stop: int, wants: frozenset[str] = ALL) -> list[tuple[Columns, int]]:
    """Columns of the live records among start … stop − 1."""
    start = max(start, block.start)
    if start >= stop:
        return []
    assert block.body is not None
    dead = None if block.all_alive(start, stop) or block.dead is None else bytes(block.dead[start:stop])
    return run_columns(run_of(block, block.body, start, stop, dead), wants)


def run_columns(run: FrozenRun, wants: frozenset[str] = ALL) -> list[tuple[Columns, int]]:
    """Columns of its records that are not left out, for each stretch of seqs with equally many digits."""
    found: list[tuple[Columns, int]] = []
    start = run.start
    while start < run.stop:
        digits = len(str(run.seq_at(start)))
        stop = run.number_after(10**digits - 1)
        columns = _stretch_columns(run, start, stop, digits, wants)
        count = stop - start
        if run.left_out is not None:
            left_out = run.left_out[start - run.start : stop - run.start]
            wanted = pc.equal(array_of(pa.uint8(), count, None, left_out), pa.scalar(0, pa.uint8()))
            columns = {name: column.filter(wanted) for name, column in columns.items()}
            count = left_out.count(0)
        if count:
            found.append((columns, count))
        start = stop
    return found


def _stretch_columns(run: FrozenRun, start: int, stop: int, digits: int, wants: frozenset[str]) -> Columns:
    body = run.body
    if not (_TS_MIN <= run.first_ts <= run.last_ts < _TS_MAX):
        return _decoded_block_columns(body, start, stop, wants)
    cut = _Cut(run, start, stop, digits)
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
    """A part of a run whose seqs have equally many digits: all offsets follow from its columns."""

    def __init__(self, run: FrozenRun, start: int, stop: int, digits: int) -> None:
        body = self._body = run.body
        self._run = run
        self._start = start
        self._stop = stop
        self._count = stop - start
        self._bounds = array("i", (body.start_of(start),))
        self._bounds.frombytes(body.ends[start:stop].tobytes())
        self._ts_at = len(SEQ) + digits + len(TS)
        # The bytes before the data, without the node.
        self._head_bytes = self._ts_at + TS_DIGITS + len(DATA)
        self._node_numbers = None if body.nodes is None else body.nodes[start:stop]

    def _lines(self) -> pa.Array:
        return array_of(pa.binary(), self._count, self._bounds, self._body.buf)

    def seqs(self) -> pa.Array:
        run = self._run
        if run.seqs is not None:
            return array_of(pa.int64(), self._count, None, run.seqs[self._start : self._stop])
        first = run.first_seq + self._start
        return array_of(pa.int64(), self._count, None, array("q", range(first, first + self._count)))

    def times(self) -> pa.Array:
        run = self._run
        if run.first_ts == run.last_ts:
            return pa.repeat(pa.scalar(1000 * run.first_ts, pa.int64()), self._count).view(UTC_US)
        return timestamps(integers(pc.binary_slice(self._lines(), self._ts_at, self._ts_at + TS_DIGITS)))

    def nodes(self) -> pa.Array:
        numbers = self._node_numbers
        if numbers is None:
            return pa.nulls(self._count, pa.string())
        names = pa.array([None, *self._body.node_names], pa.string())
        return names.take(array_of(pa.uint32(), self._count, None, numbers))

    def tags(self) -> pa.Array:
        body = self._body
        if body.tags is None:
            return pa.nulls(self._count, pa.string())
        bounds = array("i", (body.tag_ends[self._start - 1] if self._start else 0,))
        bounds.frombytes(body.tag_ends[self._start : self._stop].tobytes())
        starts = array_of(pa.int32(), self._count, None, bounds[:-1])
        ends = array_of(pa.int32(), self._count, None, bounds[1:])
        # A stored tag starts with a marker byte; without it there is no tag.
        tagged = pc.greater(ends, starts)
        tags = pieces(body.tags, pc.add(starts, tagged.cast(pa.int32())), ends)
        return pc.if_else(tagged, tags, pa.scalar(None, pa.string()))

    def data(self) -> pa.Array:
        metas = self._body.metas
        numbers = self._node_numbers
        node_bytes = [0, *(len(b',"$node":' + _encode_string(name)) for name in self._body.node_names)]
        if metas is None and (numbers is None or numbers.count(numbers[0]) == len(numbers)):
            head = self._head_bytes + (0 if numbers is None else node_bytes[numbers[0]])
            return pc.binary_slice(self._lines(), head, -2).view(pa.string())
        starts = pc.add(self._offsets(0), int32(self._head_bytes))
        if numbers is not None:
            starts = pc.add(
                starts, pa.array(node_bytes, pa.int32()).take(array_of(pa.uint32(), self._count, None, numbers))
            )
        ends = pc.subtract(self._offsets(1), int32(2))
        if metas is not None:
            lengths = self._meta_lengths(metas)
            taken = pc.if_else(pc.equal(lengths, int32(0)), int32(0), pc.add(lengths, int32(len(META))))
            ends = pc.subtract(ends, taken)
        return pieces(self._body.buf, starts, ends)

    def metas(self) -> pa.Array:
        metas = self._body.metas
        if metas is None:
            return pa.nulls(self._count, pa.string())
        lengths = self._meta_lengths(metas)
        ends = pc.subtract(self._offsets(1), int32(2))
        texts = pieces(self._body.buf, pc.subtract(ends, lengths), ends)
        return pc.if_else(pc.equal(lengths, int32(0)), pa.scalar(None, pa.string()), texts)

    def _meta_lengths(self, metas: array[int]) -> pa.Array:
        return array_of(pa.int32(), self._count, None, metas[self._start : self._stop])

    def _offsets(self, first: int) -> pa.Array:
        return array_of(pa.int32(), self._count, None, self._bounds[first : first + self._count])


def _decoded_block_columns(body: Body, start: int, stop: int, wants: frozenset[str]) -> Columns:
    """For times of another century: the lines are decoded; only tags come from the block."""
    columns = dict(decoded_columns(bytes(body.lines(start, stop)), wants))
    if "tag" in wants:
        tags = [body.tag_at(number) for number in range(start, stop)]
        columns["tag"] = pa.array(tags, pa.string())
    return columns


def decoded_columns(chunk: bytes, wants: frozenset[str]) -> Columns:
    lines = _decoder.decode_lines(chunk)
    makers: dict[str, Callable[[], pa.Array]] = {
        "seq": lambda: pa.array([line.seq for line in lines], pa.int64()),
        "ts": lambda: timestamps(pa.array([line.ts for line in lines], pa.int64())),
        "node": lambda: pa.array([line.node for line in lines], pa.string()),
        "tag": lambda: pa.array([line.tag for line in lines], pa.string()),
        "data": lambda: pa.array([_text(line.data) for line in lines], pa.string()),
        "meta": lambda: pa.array([_text(line.meta) for line in lines], pa.string()),
    }
    return {name: makers[name]() for name in wants}


def _text(raw: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    return None if isinstance(raw, msgspec.UnsetType) else bytes(raw)


# --- Arrow ---


def int32(value: int) -> pa.Scalar:
    """A number with its type: letting Arrow guess costs more than the column."""
    return pa.scalar(value, pa.int32())


def array_of(kind: pa.DataType, count: int, offsets: array[int] | None, data: Any) -> pa.Array:
    """An array over existing bytes."""
    buffers = [None, pa.py_buffer(data)] if offsets is None else [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers)


def pieces(data: Any, starts: pa.Array, ends: pa.Array) -> pa.Array:
    """The strings from each start to its end, which are in order in `data`.

    Starts and ends interleaved are the offsets of an array in which every other string is one of them.
    """
    count = len(starts)
    pairs = pc.bit_wise_or(pc.shift_left(ends.cast(pa.uint64()), pa.scalar(32, pa.uint64())), starts.cast(pa.uint64()))
    both = pa.Array.from_buffers(pa.string(), 2 * count - 1, [None, pairs.buffers()[1], pa.py_buffer(data)])
    every_other = pa.py_buffer(b"\x55" * (count // 4 + 1))
    return both.filter(pa.Array.from_buffers(pa.bool_(), 2 * count - 1, [None, every_other]))


def integers(texts: pa.Array) -> pa.Array:
    return texts.view(pa.string()).cast(pa.int64())


def timestamps(times_ms: pa.Array) -> pa.Array:
    return pc.multiply(times_ms, pa.scalar(1000, pa.int64())).view(UTC_US)

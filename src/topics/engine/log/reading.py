"""Reading: records after a cursor, as slices of the bytes rendered when they were appended."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.on_disk.cold import ColdMiss, DamagedBlock
from topics.engine.log.retention import Tombstone, tombstone
from topics.engine.log.topic import Topic
from topics.model.errors import DamagedData, StorageError
from topics.model.requests.records import TagMatch

SCAN_RECORDS_MAX = 100_000
# How far a search looks at first: preparing a search of a long text takes longer than this.
_NEAR_BYTES = 500
_encode_string = msgspec.json.Encoder().encode
# In the column of tags every tag starts with a byte 1, which no tag contains.
_needs_escape = re.compile(rb'["\\\x00\x02-\x1f]')

Part = bytes | bytearray | memoryview


class FrozenRun(NamedTuple):
    """Neighbouring records of a block, which a thread may read while the block changes: its body is frozen."""

    body: Body
    start: int
    stop: int
    # of the record with the number 0, unless there is a column
    first_seq: int
    seqs: array[int] | None
    # times of the block
    first_ts: int
    last_ts: int
    # a byte for each record, not 0 if it is left out
    left_out: bytes | None

    def seq_at(self, number: int) -> int:
        return self.first_seq + number if self.seqs is None else self.seqs[number]

    def number_after(self, seq: int) -> int:
        """Number of the first record whose seq is greater than `seq`; at most `stop`."""
        if self.seqs is not None:
            return bisect_right(self.seqs, seq, self.start, self.stop)
        return min(self.stop, seq + 1 - self.first_seq)


class View(NamedTuple):
    """Which records a reader wants, and which of their fields."""

    nodes: frozenset[str] = frozenset()
    tags: bool = False
    meta: bool = True
    data: bool = True
    # Every record is a line, ended by a line feed, instead of an element of an array.
    lines: bool = False
    # Only records with this tag.
    tag: bytes | None = None
    # Records are collected here as runs instead of being rendered.
    runs: list[FrozenRun] | None = None


class Diff:
    """The result of one read. `parts` joined by commas are the inside of the records array; lines need no commas."""

    __slots__ = (
        "cold_segments",
        "count",
        "earliest_seq",
        "epoch",
        "head_seq",
        "next_from_seq",
        "parts",
        "scanned",
        "tombstone",
    )

    def __init__(self, topic: Topic, from_seq: int) -> None:
        self.parts: list[Part] = []
        self.count = 0
        self.scanned = 0
        self.cold_segments = 0
        self.epoch = topic.epoch
        self.head_seq = topic.head_seq
        self.earliest_seq = topic.earliest_seq
        self.tombstone: Tombstone | None = tombstone(topic, from_seq)
        self.next_from_seq = from_seq
        if self.tombstone is not None:
            self.next_from_seq = max(self.earliest_seq - 1, self.tombstone.gap_to if from_seq <= self.head_seq else 0)

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq

    def records(self) -> bytes:
        return b",".join(self.parts)

    def lines(self) -> bytes:
        return b"".join(self.parts)


def read(
    topic: Topic,
    from_seq: int,
    view: View,
    limit: int,
    bytes_max: int,
    load: Callable[[Block], None],
    to_seq: int | None = None,
) -> Diff:
    """Up to `limit` records of about `bytes_max` bytes after `from_seq`, at least one if any exists.

    Reading ends at `to_seq`, if given, as if that were the head.
    """
    diff = Diff(topic, from_seq)
    blocks = topic.blocks
    index = topic.block_after(diff.next_from_seq)
    end_seq = _end_of_read(topic, diff.next_from_seq, to_seq)
    match = None if view.tag is None else TagMatch(view.tag, prefix=False)
    cold: set[int] = set()
    size = 0
    while index < len(blocks):
        block = blocks[index]
        if block.first_seq > end_seq:
            break
        if match is not None and not block.may_hold(match):
            diff.scanned += block.count
            diff.next_from_seq = min(block.last_seq, end_seq)
            index += 1
            if diff.scanned >= SCAN_RECORDS_MAX:
                break
            continue
        start = block.number_after(diff.next_from_seq)
        end = block.count if block.last_seq <= end_seq else block.number_after(end_seq)
        try:
            load(block)
        except (ColdMiss, DamagedData, StorageError) as error:
            # The records found so far are returned; the next read starts at the block that cannot be read now.
            if not diff.scanned and not _take_before_damage(block, error, start, end, view, limit, bytes_max, diff):
                raise
            break
        if block.cold:
            cold.add(block.segment)
        body = block.body
        assert body is not None
        stop, taken = _take(block, body, start, end, view, limit - diff.count, bytes_max - size, diff)
        diff.scanned += stop - start
        size += taken
        if stop < end:
            if stop > start:
                diff.next_from_seq = block.seq_at(stop - 1)
            break
        diff.next_from_seq = min(block.last_seq, end_seq)
        index += 1
        if diff.count >= limit or size >= bytes_max or diff.scanned >= SCAN_RECORDS_MAX:
            break
    if index >= len(blocks) or blocks[index].first_seq > end_seq:
        diff.next_from_seq = end_seq
    diff.cold_segments = len(cold)
    return diff


def seqs_after(
    topic: Topic, from_seq: int, tag: bytes | None, limit: int, load: Callable[[Block], None]
) -> tuple[list[tuple[int, bytes | None]], int]:
    """Seqs and tags of up to `limit` records of the next block, and up to where that has looked."""
    index = topic.block_after(from_seq)
    if index >= len(topic.blocks):
        return [], topic.head_seq
    block = topic.blocks[index]
    if tag is not None and not block.may_hold(TagMatch(tag, prefix=False)):
        return [], block.last_seq
    load(block)
    body = block.body
    assert body is not None
    found: list[tuple[int, bytes | None]] = []
    for first, stop in _wanted_runs(block, body, block.number_after(from_seq), block.count, View(tag=tag)):
        numbers = range(first, min(stop, first + limit - len(found)))
        found += [(block.seq_at(number), body.tag_at(number)) for number in numbers]
        if len(found) == limit:
            return found, found[-1][0]
    return found, block.last_seq


def _end_of_read(topic: Topic, after_seq: int, to_seq: int | None) -> int:
    """The head, `to_seq`, or the seq before the next hole: that is reported by a tombstone of its own."""
    end_seq = next((hole.from_seq - 1 for hole in topic.holes if hole.from_seq > after_seq), topic.head_seq)
    return end_seq if to_seq is None or to_seq >= end_seq else max(to_seq, after_seq)


def _take_before_damage(
    block: Block, error: Exception, start: int, end: int, view: View, limit: int, bytes_max: int, diff: Diff
) -> bool:
    """Add the records of a damaged block before the first damaged one; False if there is nothing to return."""
    salvaged = error.salvaged if isinstance(error, DamagedBlock) else None
    if salvaged is None or salvaged.first_hit(start) == start:
        return diff.tombstone is not None and not isinstance(error, ColdMiss)
    stop, _ = _take(block, salvaged.body, start, min(end, salvaged.first_hit(start)), view, limit, bytes_max, diff)
    diff.scanned += stop - start
    if stop > start:
        diff.next_from_seq = block.seq_at(stop - 1)
    return True


def _take(
    block: Block, body: Body, start: int, end: int, view: View, limit: int, bytes_max: int, diff: Diff
) -> tuple[int, int]:
    """Add the records of this block that match the view before number `end`; the number where it stopped, and bytes."""
    if view.runs is not None:
        return _take_run(block, body, start, end, view, bytes_max, diff)
    plain = view.data and not (view.tags and body.tags is not None) and (view.meta or body.metas is None)
    room = limit
    size = 0
    for first, wanted in _wanted_runs(block, body, start, end, view):
        stop = min(wanted, first + room)
        fitting = body.first_ending_after(body.start_of(first) + bytes_max - size)
        if fitting < stop:
            stop = max(fitting, first + 1) if not diff.count else fitting
        if stop > first:
            if plain:
                diff.parts.append(body.lines(first, stop) if view.lines else body.slice(first, stop))
            elif view.data:
                diff.parts.append(render_run(body, first, stop, view))
            else:
                diff.parts += [render_view(body, number, view) for number in range(first, stop)]
            diff.count += stop - first
            room -= stop - first
            size += body.size(first, stop)
        if stop < wanted or (not room and stop < end):
            return stop, size
    return end, size


def _take_run(
    block: Block, body: Body, start: int, end: int, view: View, bytes_max: int, diff: Diff
) -> tuple[int, int]:
    """As `_take`, as one run: which of its records are wanted is a column of it."""
    assert view.runs is not None
    start = max(start, min(block.start, end))
    fitting = body.first_ending_after(body.start_of(start) + bytes_max)
    stop = min(end, fitting if diff.scanned else max(fitting, start + 1))
    if start < stop:
        left_out = bytearray(stop - start) if block.dead is None else block.dead[start:stop]
        if view.nodes and body.nodes is not None:
            own = {number for number, name in enumerate(body.node_names, 1) if name in view.nodes}
            for at, number in enumerate(body.nodes[start:stop]):
                left_out[at] |= number in own
        wanted = left_out.count(0)
        if wanted:
            mask = bytes(left_out) if wanted < stop - start else None
            view.runs.append(run_of(block, body, start, stop, mask))
        diff.count += wanted
    return stop, body.size(start, stop)


def run_of(block: Block, body: Body, start: int, stop: int, left_out: bytes | None) -> FrozenRun:
    """The records start … stop − 1 of a block whose body is in memory."""
    body = body if body.frozen else body.copy()
    return FrozenRun(body, start, stop, block.first_seq, block.seqs, block.first_ts, block.last_ts, left_out)


def _wanted_runs(block: Block, body: Body, start: int, end: int, view: View) -> Iterator[tuple[int, int]]:
    """Runs of live records before number `end` that have the view's tag and none of its nodes."""
    alive = block.alive_runs(start, end)
    if view.tag is not None:
        alive = _among(alive, body.find(TagMatch(view.tag, prefix=False)))
    nodes = view.nodes
    if not nodes or body.nodes is None:
        return alive
    own = {number for number, name in enumerate(body.node_names, 1) if name in nodes}
    return _without(alive, body.nodes, own) if own else alive


def _among(runs: Iterator[tuple[int, int]], numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The intersection of the runs with `numbers`, which ascend."""
    for first, stop in runs:
        at = bisect_left(numbers, first)
        while at < len(numbers) and numbers[at] < stop:
            begin = end = numbers[at]
            while at < len(numbers) and numbers[at] == end < stop:
                end += 1
                at += 1
            yield begin, end


def _without(runs: Iterator[tuple[int, int]], nodes: array[int], own: set[int]) -> Iterator[tuple[int, int]]:
    for first, stop in runs:
        begin = first
        for number in range(first, stop):
            if nodes[number] in own:
                if begin < number:
                    yield begin, number
                begin = number + 1
        if begin < stop:
            yield begin, stop


def render_run(body: Body, start: int, stop: int, view: View) -> bytes:
    """Records start … stop − 1 with tags, without meta, or both: their bytes, cut where something is added or omitted.

    The first `,"data":` of a record is its own: within a node's JSON string the quotes would be escaped.
    """
    text = bytes(body.lines(start, stop) if view.lines else body.slice(start, stop))
    tags = _rendered_tags(body, start, stop) if view.tags and body.tags is not None else None
    metas = None if view.meta or body.metas is None else body.metas[start:stop]
    find = text.find
    parts: list[bytes] = []
    add = parts.append
    base = begin = body.start_of(start)
    done = 0
    for index, end in enumerate(body.ends[start:stop]):
        if tags is not None and (tag := tags[index]):
            data_at = find(b',"data":', begin - base, begin - base + _NEAR_BYTES)
            if data_at < 0:
                data_at = find(b',"data":', begin - base)
            add(text[done:data_at])
            add(tag)
            done = data_at
        if metas is not None and (meta_bytes := metas[index]):
            # The brace and the comma or line feed after it stay.
            brace_at = end - base - 2
            add(text[done : brace_at - meta_bytes - len(b',"meta":')])
            done = brace_at
        begin = end
    add(text[done:])
    return b"".join(parts)


def _rendered_tags(body: Body, start: int, stop: int) -> list[bytes]:
    """The tag field of each record as rendered, empty where there is none."""
    assert body.tags is not None
    base = begin = body.tag_ends[start - 1] if start else 0
    tags = bytes(body.tags[base : body.tag_ends[stop - 1]])
    plain = _needs_escape.search(tags) is None
    known: dict[bytes, bytes] = {b"": b""}
    shown: list[bytes] = []
    for end in body.tag_ends[start:stop]:
        stored = tags[begin - base : end - base]
        begin = end
        rendered = known.get(stored)
        if rendered is None:
            tag = stored[1:]
            rendered = b',"$tag":"%b"' % tag if plain else b',"$tag":' + _encode_string(tag.decode())
            known[stored] = rendered
        shown.append(rendered)
    return shown


def render_view(body: Body, number: int, view: View) -> bytes:
    """One record with a different set of fields.

    The first `,"data":` of a record is its own: within a node's JSON string the quotes would be escaped.
    """
    record = bytes(body.record(number))
    meta_bytes = body.metas[number] if body.metas is not None else 0
    data_at = record.index(b',"data":')
    data_end = len(record) - 1 - (meta_bytes + 8 if meta_bytes else 0)
    tag = body.tag_at(number) if view.tags else None
    if view.lines:
        record = record.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"".join(
        (
            record[:data_at],
            b"" if tag is None else b',"$tag":' + _encode_string(tag.decode()),
            record[data_at:data_end] if view.data else b"",
            record[data_end:-1] if view.meta else b"",
            b"}\n" if view.lines else b"}",
        )
    )

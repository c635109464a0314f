"""A body on disk: one extent of a pack, and what can be salvaged of it after damage.

The bytes are exactly those in memory, so a cold read is one `pread` and no decoding:

    | magic u32 | flags u32 | checksum u64 | first_seq u64 | count u32 | buf_len u32 | names_len u32 | tags_len u32 |
    | ends u32×count | seqs u64×count (sparse) | nodes: names JSON, u32×count | tags: ends u32×count, order_len u32,
      order u32×order_len, bytes | metas u32×count | buf |
    | sums: a u64 for each 128 bytes of the columns, then for each 1024 of buf | the header again | checksum of both |

The first checksum (xxh3) covers everything between itself and the sums: a read checks only that one. The sums are for
an extent that fails it: they show which records are damaged. An extent of version 0.1 ends with buf. An order_len of
2³²−1 means that the body was packed while it was still growing and has no tag order yet.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.engine.log.body import Body
from topics.model.errors import DamagedData

_HEAD = struct.Struct("<IIQQIIII")
_CHECKED_FROM = 16
MAGIC = 0x314B4C42  # "BLK1"
_SPARSE, _NODES, _TAGS, _METAS, _SUMMED = 1, 2, 4, 8, 16
_UNORDERED = b"\xff\xff\xff\xff"
_U64 = struct.Struct("<Q")
# A byte of a column affects more records than one of buf.
COLUMN_SUM_BYTES = 128
SUM_BYTES = 1024


class BodyExtent:
    """The extent of a body. Columns are captured now; the records are summed when they are written."""

    __slots__ = ("_buf", "_columns", "_head", "_size")

    def __init__(self, head: tuple[int, ...], columns: bytes, buf: bytes) -> None:
        self._head = head
        self._columns = columns
        self._buf = buf
        sums = -(len(columns) // -COLUMN_SUM_BYTES) - (len(buf) // -SUM_BYTES)
        self._size = 2 * _HEAD.size + len(columns) + len(buf) + (sums + 1) * _U64.size

    def __len__(self) -> int:
        return self._size

    def buffers(self) -> list[bytes]:
        """The buffers to write, one after the other."""
        flags, *fields = self._head
        columns, buf = self._columns, self._buf
        check = xxh3_64(_HEAD.pack(MAGIC, flags, 0, *fields)[_CHECKED_FROM:])
        check.update(columns)
        check.update(buf)
        head = _HEAD.pack(MAGIC, flags, check.intdigest(), *fields)
        rest = _sums(columns, buf).tobytes() + head
        return [head, columns, buf, rest, _U64.pack(xxh3_64_intdigest(rest))]


def extent_of(body: Body, first_seq: int, seqs: array[int] | None) -> BodyExtent:
    """The extent of this body as it is now. The records of a frozen one are not copied."""
    flags = _SUMMED
    sections: list[bytes] = [body.ends.tobytes()]
    names = tags = b""
    if seqs is not None:
        flags |= _SPARSE
        sections.append(seqs.tobytes())
    if body.nodes is not None:
        flags |= _NODES
        names = msgspec.json.encode(body.node_names)
        sections += (names, body.nodes.tobytes())
    if body.tags is not None:
        flags |= _TAGS
        tags = bytes(body.tags)
        order = body.tag_order
        ordered = (_UNORDERED, b"") if order is None else (struct.pack("<I", len(order)), order.tobytes())
        sections += (body.tag_ends.tobytes(), *ordered, tags)
    if body.metas is not None:
        flags |= _METAS
        sections.append(body.metas.tobytes())
    head = flags, first_seq, len(body.ends), len(body.buf), len(names), len(tags)
    return BodyExtent(head, b"".join(sections), bytes(body.buf))


def encode_body(body: Body, first_seq: int, seqs: array[int] | None) -> list[bytes]:
    """The extent of this body, as buffers to write one after the other."""
    return extent_of(body, first_seq, seqs).buffers()


def decode_body(data: bytes, first_seq: int) -> Body:
    """The frozen body of an extent; raises DamagedData unless every byte is as it was written."""
    if len(data) < _HEAD.size:
        raise DamagedData("the extent is shorter than its header")
    head = _HEAD.unpack_from(data)
    magic, flags, checksum, seq = head[:4]
    end = _content_end(len(data), head[5]) if flags & _SUMMED else len(data)
    covered = memoryview(data)[_CHECKED_FROM:end]
    if magic != MAGIC or seq != first_seq or xxh3_64_intdigest(covered) != checksum:
        raise DamagedData("the extent fails its checksum")
    layout = _layout(head, end)
    # The checksum does not cover the flags: wrong ones mean another layout.
    if layout is None or not _order_fits(data, layout):
        raise DamagedData("the header of the extent is damaged")
    return _body(data, layout)


class Salvaged(NamedTuple):
    """A body in which some bytes are not as they were written: the records flagged in `hit` are damaged."""

    body: Body
    hit: bytearray

    def first_hit(self, start: int) -> int:
        """Number of the first damaged record from `start` on; the number of all records if there is none."""
        found = self.hit.find(1, start)
        return len(self.hit) if found < 0 else found


def salvage(data: bytes, first_seq: int, count: int) -> Salvaged | None:
    """What can be salvaged of an extent that fails its checksum; None if nothing can."""
    if len(data) < 2 * _HEAD.size + _U64.size:
        return None
    head = _HEAD.unpack_from(data, len(data) - _U64.size - _HEAD.size)
    end = _content_end(len(data), head[5])
    rest = data[max(0, end) : -_U64.size]
    if _U64.unpack_from(data, len(data) - _U64.size)[0] != xxh3_64_intdigest(rest):
        return None
    layout = _layout(head, end)
    if head[0] != MAGIC or head[3:5] != (first_seq, count) or layout is None:
        return None
    view = memoryview(data)
    found = _sums(view[_HEAD.size : layout.buf.start], view[slice(*layout.buf)])
    wanted = array("Q", rest[: -_HEAD.size])
    bad = [piece for piece, was, now in zip(_pieces(layout), wanted, found, strict=True) if was != now]
    if any(layout.names.overlap(piece) for piece in bad):
        return None
    body = _body(data, layout)
    # The numbers sorted by tag are made again from the remaining records.
    body.tag_order = None
    return Salvaged(body, _hit(body, layout, bad))


# --- layout ---


class _Section(NamedTuple):
    start: int
    stop: int

    def overlap(self, piece: _Section) -> range:
        """The bytes of this section, counted from its start, that lie in the piece."""
        return range(max(0, piece.start - self.start), max(0, min(self.stop, piece.stop) - self.start))


class _Layout(NamedTuple):
    """Where the sections of an extent are; missing ones are empty."""

    flags: int
    ends: _Section
    names: _Section
    nodes: _Section
    tag_ends: _Section
    order: _Section
    tags: _Section
    metas: _Section
    buf: _Section


def _layout(head: tuple[int, ...], end: int) -> _Layout | None:
    """The layout according to the header; the tag order is the remainder. None if the sizes do not add up."""
    _, flags, _, _, count, buf_len, names_len, tags_len = head
    width = 4 * count
    before = [width, 2 * width * bool(flags & _SPARSE)]
    before += [names_len, width] if flags & _NODES else [0, 0]
    before.append(width if flags & _TAGS else 0)
    after = [tags_len if flags & _TAGS else 0, width if flags & _METAS else 0, buf_len]
    order_len = end - _HEAD.size - sum(before) - sum(after)
    order_len_min, order_len_max = (4, 4 + width) if flags & _TAGS else (0, 0)
    if not order_len_min <= order_len <= order_len_max or order_len % 4 or flags >= 2 * _SUMMED:
        return None
    sections: list[_Section] = []
    at = _HEAD.size
    for length in (*before, order_len, *after):
        sections.append(_Section(at, at + length))
        at += length
    return _Layout(flags, sections[0], *sections[2:])


def _order_fits(data: bytes, layout: _Layout) -> bool:
    """Whether the tag order has the length that it states."""
    if not layout.flags & _TAGS:
        return True
    start, stop = layout.order
    said = data[start : start + 4]
    return stop - start == (4 if said == _UNORDERED else 4 + 4 * int.from_bytes(said, "little"))


def _body(data: bytes, layout: _Layout) -> Body:
    body = Body()
    flags = layout.flags
    body.ends = array("I", data[slice(*layout.ends)])
    if flags & _NODES:
        body.node_names = msgspec.json.decode(data[slice(*layout.names)], type=list[str])
        body.nodes = array("I", data[slice(*layout.nodes)])
    if flags & _TAGS:
        body.tag_ends = array("I", data[slice(*layout.tag_ends)])
        start, stop = layout.order
        if data[start : start + 4] != _UNORDERED:
            body.tag_order = array("I", data[start + 4 : stop])
        body.tags = data[slice(*layout.tags)]
    if flags & _METAS:
        body.metas = array("I", data[slice(*layout.metas)])
    body.buf = data[slice(*layout.buf)]
    body.frozen = True
    return body


# --- sums ---


def _sums(columns: bytes | memoryview, buf: bytes | memoryview) -> array[int]:
    sums = array("Q")
    for part, step in ((memoryview(columns), COLUMN_SUM_BYTES), (memoryview(buf), SUM_BYTES)):
        sums.extend([xxh3_64_intdigest(part[at : at + step]) for at in range(0, len(part), step)])
    return sums


def _pieces(layout: _Layout) -> Iterator[_Section]:
    """The piece that each sum covers."""
    for start, stop, step in ((_HEAD.size, layout.buf.start, COLUMN_SUM_BYTES), (*layout.buf, SUM_BYTES)):
        for at in range(start, stop, step):
            yield _Section(at, min(at + step, stop))


def _content_end(length: int, buf_len: int) -> int:
    """Where the sums of an extent of this length begin."""
    columns_and_sums = length - 2 * _HEAD.size - _U64.size - buf_len + buf_len // -SUM_BYTES * _U64.size
    sums = -(-columns_and_sums // (COLUMN_SUM_BYTES + _U64.size))
    return _HEAD.size + columns_and_sums - sums * _U64.size + buf_len


def _hit(body: Body, layout: _Layout, bad: list[_Section]) -> bytearray:
    """A flag for each record that lies partly in one of the bad pieces."""
    hit = bytearray(body.count())
    # A wrong end makes the next record start at the wrong position as well.
    for column, reach in ((layout.ends, 2), (layout.nodes, 1), (layout.tag_ends, 2), (layout.metas, 1)):
        for piece in bad:
            for number in _entries(column.overlap(piece)):
                hit[number : min(number + reach, len(hit))] = b"\1" * (min(number + reach, len(hit)) - number)
    _level(body.ends, layout.ends, bad)
    _level(body.tag_ends, layout.tag_ends, bad)
    for section, ends in ((layout.tags, body.tag_ends), (layout.buf, body.ends)):
        for piece in bad:
            if touched := section.overlap(piece):
                first, last = bisect_right(ends, touched.start), bisect_left(ends, touched.stop)
                hit[first : last + 1] = b"\1" * (min(last + 1, len(hit)) - first)
    return hit


def _entries(touched: range) -> Iterator[int]:
    """Which four-byte entries of a column lie in a range of its bytes."""
    return iter(range(touched.start // 4, -(-touched.stop // 4)) if touched else ())


def _level(ends: array[int], column: _Section, bad: list[_Section]) -> None:
    """An unknown end becomes that of the record before, so that ends never decrease."""
    for piece in bad:
        for number in _entries(column.overlap(piece)):
            ends[number] = ends[number - 1] if number else 0

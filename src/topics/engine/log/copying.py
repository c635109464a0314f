"""Copies without rendering: a run of records is cut once after each head, then joined with new heads per destination.

    source    {"$seq":7,"$ts":1748450001000,"$node":"eu-1","data":…},{"$seq":8,"$ts":1748450001000,"data":…},
              └──────── head ──────────────┘└────── tail ────────────┘
    copy      {"$seq":93,"$ts":1748450001002,"$node":"eu-1","data":…},

The tails of a piece are cut once and shared by every destination, and so is a template with a place for each seq;
destinations with the same next seq and time even share the batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import NamedTuple

import msgspec

from topics.engine.log.block import Block
from topics.model.requests.batch import NO_HEAD, Batch
from topics.model.requests.nesting import decode_deep

STAMP = "_topics_router"
_STAMP_BYTES = STAMP.encode()
_HEAD_FIXED = len('{"$seq":,"$ts":')
_encode = msgspec.json.Encoder().encode
_meta_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Origin(NamedTuple):
    """The origin of the copies of an `exactly_once` router, as written into their stamps."""

    router: str
    source: str
    source_id: int
    epoch: int

    def stamp(self, seq: int) -> bytes:
        key = f"{self.router}/{self.source_id}/{self.epoch}/{seq}"
        return b'"%b":%b' % (
            _STAMP_BYTES,
            _encode(
                {
                    "router": self.router,
                    "source": self.source,
                    "source_topic_id": self.source_id,
                    "source_epoch": self.epoch,
                    "source_seq": seq,
                    "key": key,
                }
            ),
        )


class Piece:
    """Records of one source with everything that is copied with them."""

    __slots__ = (
        "_batches",
        "_ends_by_width",
        "_marked",
        "_templated",
        "metas",
        "names",
        "nodes",
        "seqs",
        "tags",
        "tails",
    )

    def __init__(self, seqs: Sequence[int], tails: list[bytes]) -> None:
        self.seqs = seqs
        self.tails = tails
        # columns, as in a batch; None if no record uses them
        self.names: list[str] = []
        self.nodes: array[int] | None = None
        self.tags: list[bytes] | None = None
        self.metas: array[int] | None = None
        # results kept for the next destination
        self._batches: dict[tuple[int, int], Batch] = {}
        self._ends_by_width: dict[int, array[int]] = {}
        self._marked = b""
        self._templated = -1, b""

    def batch(self, first_seq: int, ts: int) -> Batch:
        """These records with seqs from `first_seq` on and the time `ts`."""
        known = self._batches.get((first_seq, ts))
        if known is not None:
            return known
        count = len(self.tails)
        seqs = range(first_seq, first_seq + count)
        blob = self._template(ts) % tuple(seqs)
        batch = Batch(first_seq, ts, count, blob, self._ends(seqs, _HEAD_FIXED + len(str(ts))))
        batch.node_names, batch.nodes, batch.metas = self.names, self.nodes, self.metas
        if self.tags is not None:
            batch.tags, batch.tag_ends = b"".join(self.tags), array("I", accumulate(map(len, self.tags)))
        self._batches[first_seq, ts] = batch
        return batch

    def _template(self, ts: int) -> bytes:
        """All records with a place for each seq: filling these in is one call for the whole piece.

        NO_HEAD marks the places of the heads.
        """
        if self._templated[0] != ts:
            if not self._marked:
                self._marked = NO_HEAD.join([b"", *self.tails]).replace(b"%", b"%%")
            self._templated = ts, self._marked.replace(NO_HEAD, b'{"$seq":%%d,"$ts":%d' % ts)
        return self._templated[1]

    def _ends(self, seqs: range, fixed: int) -> array[int]:
        """Where each record ends; the same for all batches whose seqs have equally many digits."""
        if not seqs:
            return array("I")
        digits = len(str(seqs[-1]))
        if digits != len(str(seqs[0])):
            widths = [fixed + len(str(seq)) for seq in seqs]
            return array("I", accumulate(map(add, widths, map(len, self.tails))))
        width = fixed + digits
        ends = self._ends_by_width.get(width)
        if ends is None:
            ends = self._ends_by_width[width] = array("I", accumulate([width + len(tail) for tail in self.tails]))
        return ends

    # --- parts of a piece ---

    def pick(self, indexes: Sequence[int]) -> Piece:
        """Only the records with these indexes."""
        piece = Piece([self.seqs[index] for index in indexes], [self.tails[index] for index in indexes])
        if self.nodes is not None:
            piece.names, piece.nodes = self.names, array("I", [self.nodes[index] for index in indexes])
        if self.tags is not None:
            piece.tags = [self.tags[index] for index in indexes]
        if self.metas is not None:
            piece.metas = array("I", [self.metas[index] for index in indexes])
        return piece

    def first(self, count: int) -> Piece:
        return self if count >= len(self.tails) else self.pick(range(count))

    def without(self, *, nodes: bool, tags: bool) -> Piece:
        """The same records without their nodes, their tags, or both."""
        nodes, tags = nodes and self.nodes is not None, tags and self.tags is not None
        if not nodes and not tags:
            return self
        tails = [tail[tail.index(b',"data":') :] for tail in self.tails] if nodes else self.tails
        piece = Piece(self.seqs, tails)
        piece.metas = self.metas
        if not nodes:
            piece.names, piece.nodes = self.names, self.nodes
        if not tags:
            piece.tags = self.tags
        return piece

    def stamped(self, origin: Origin) -> Piece:
        """The same records, each with its origin in its meta."""
        tails: list[bytes] = []
        metas = array("I")
        sizes = self.metas if self.metas is not None else bytes(len(self.tails))
        for seq, tail, size in zip(self.seqs, self.tails, sizes, strict=True):
            end = len(tail) - 2
            data = tail[: end - size - 8] if size else tail[:end]
            meta = _with_stamp(tail[end - size : end] if size else b"{}", origin.stamp(seq))
            tails.append(b'%b,"meta":%b},' % (data, meta))
            metas.append(len(meta))
        piece = Piece(self.seqs, tails)
        piece.names, piece.nodes, piece.tags, piece.metas = self.names, self.nodes, self.tags, metas
        return piece

    def runs(self) -> list[tuple[int, int]]:
        """The seqs of these records as (first, count)."""
        if isinstance(self.seqs, range):
            return [(self.seqs.start, len(self.seqs))] if self.seqs else []
        runs: list[tuple[int, int]] = []
        first = last = -2
        for seq in self.seqs:
            if seq != last + 1:
                if first >= 0:
                    runs.append((first, last - first + 1))
                first = seq
            last = seq
        if first >= 0:
            runs.append((first, last - first + 1))
        return runs


def with_heads(block: Block, start: int, stop: int, first_seq: int, ts: int) -> Batch:
    """The records `start … stop − 1` of a block that was rendered without heads, with these seqs and this time."""
    body = block.body
    assert body is not None
    base, count = body.start_of(start), stop - start
    marked = bytes(memoryview(body.buf)[base : body.ends[stop - 1]])
    head = b'{"$seq":%%d,"$ts":%d' % ts
    seqs = range(first_seq, first_seq + count)
    blob = marked.replace(b"%", b"%%").replace(NO_HEAD, head) % tuple(seqs)
    more = _HEAD_FIXED + len(str(ts)) - len(NO_HEAD)
    digits = len(str(first_seq))
    if digits == len(str(seqs[-1])):
        gains: Iterable[int] = range(more + digits - base, (more + digits) * count - base + 1, more + digits)
    else:
        gains = accumulate([more + len(str(seq)) for seq in seqs], initial=-base)
        next(gains)
    batch = Batch(first_seq, ts, count, blob, array("I", map(add, body.ends[start:stop], gains)))
    piece = Piece(seqs, [])
    _take_columns(piece, block, start, stop)
    batch.node_names, batch.nodes, batch.metas = piece.names, piece.nodes, piece.metas
    if piece.tags is not None:
        batch.tags, batch.tag_ends = b"".join(piece.tags), array("I", accumulate(map(len, piece.tags)))
    return batch


def _with_stamp(meta: bytes, stamp: bytes) -> bytes:
    """The name of the stamp is reserved: a field of the record's meta with that name is replaced."""
    if _STAMP_BYTES in meta or b"\\" in meta:
        fields = decode_deep(_meta_decoder.decode, meta)
        fields.pop(STAMP, None)
        meta = _encode(fields)
    body = meta.rstrip()[:-1].rstrip()
    return b"%b%b%b}" % (body, b"" if body.endswith(b"{") and len(body) == 1 else b",", stamp)


def cut(stretches: Iterable[tuple[Block, int, int]]) -> Piece:
    """The records `start … stop − 1` of each block, whose bodies are in memory; dead ones are cut as well."""
    pieces = [_cut_one(block, start, stop) for block, start, stop in stretches]
    if len(pieces) == 1:
        return pieces[0]
    whole = Piece([seq for piece in pieces for seq in piece.seqs], [tail for piece in pieces for tail in piece.tails])
    if any(piece.nodes is not None for piece in pieces):
        _join_nodes(whole, pieces)
    if any(piece.tags is not None for piece in pieces):
        whole.tags = [tag for piece in pieces for tag in piece.tags or [b""] * len(piece.tails)]
    if any(piece.metas is not None for piece in pieces):
        whole.metas = array("I", [size for piece in pieces for size in piece.metas or bytes(len(piece.tails))])
    return whole


def _join_nodes(whole: Piece, pieces: list[Piece]) -> None:
    numbers: dict[str, int] = {}
    nodes = array("I")
    for piece in pieces:
        known = [0, *(numbers.setdefault(name, len(numbers) + 1) for name in piece.names)]
        nodes.extend([known[node] for node in piece.nodes or bytes(len(piece.tails))])
    whole.names, whole.nodes = list(numbers), nodes


def _cut_one(block: Block, start: int, stop: int) -> Piece:
    body = block.body
    assert body is not None and start < stop
    first, last = block.seq_at(start), block.seq_at(stop - 1)
    seqs: Sequence[int] = range(first, last + 1)
    if len(seqs) != stop - start:
        seqs = [block.seq_at(number) for number in range(start, stop)]
    base, end = body.start_of(start), body.ends[stop - 1]
    buf = body.buf if isinstance(body.buf, bytes) else bytes(memoryview(body.buf)[base:end])
    shift = 0 if buf is body.buf else base
    ends = [offset - shift for offset in body.ends[start:stop]] if shift else body.ends[start:stop].tolist()
    starts = [base - shift, *ends[:-1]]
    digits, ts_digits = len(str(last)), len(str(body.ts_at(stop - 1)))
    if digits == len(str(first)) and ts_digits == len(str(body.ts_at(start))):
        # Neither seqs nor times decrease within a topic, so all heads between two of the same width have that width.
        width = _HEAD_FIXED + digits + ts_digits
        tails = [buf[at + width : to] for at, to in zip(starts, ends, strict=True)]
    else:
        tails = [
            buf[buf.index(b",", at + _HEAD_FIXED + len(str(seq))) : to]
            for at, to, seq in zip(starts, ends, seqs, strict=True)
        ]
    piece = Piece(seqs, tails)
    _take_columns(piece, block, start, stop)
    return piece


def _take_columns(piece: Piece, block: Block, start: int, stop: int) -> None:
    body = block.body
    assert body is not None
    if body.nodes is not None:
        nodes = body.nodes[start:stop]
        used = sorted(set(nodes) - {0})
        if used:
            piece.names = [body.node_names[node - 1] for node in used]
            if used[-1] != len(used):
                renumbered = {0: 0, **{node: number for number, node in enumerate(used, 1)}}
                nodes = array("I", [renumbered[node] for node in nodes])
            piece.nodes = nodes
    if body.tags is not None:
        offsets = [body.tag_ends[start - 1] if start else 0, *body.tag_ends[start:stop]]
        if offsets[-1] > offsets[0]:
            piece.tags = [bytes(body.tags[at:to]) for at, to in pairwise(offsets)]
    if body.metas is not None:
        metas = body.metas[start:stop]
        if any(metas):
            piece.metas = metas

"""The payload of a block: rendered records back to back, with columns that exist only if used.

`engine/log/on_disk/extent.py` describes its layout on disk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import cast

from topics.model.requests.batch import Batch
from topics.model.requests.records import TagMatch

_TS_DIGITS_MAX = 20
_LINE_FEED = 10


class Body:
    """Grows by whole batches until it is frozen; only a frozen body returns views of its buffer."""

    __slots__ = (
        "buf",
        "ends",
        "frozen",
        "metas",
        "node_names",
        "node_numbers",
        "nodes",
        "tag_ends",
        "tag_index",
        "tag_indexed",
        "tag_order",
        "tags",
    )

    def __init__(self) -> None:
        self.buf: bytearray | bytes = bytearray()
        self.ends: array[int] = array("I")
        self.frozen = False
        self.node_names: list[str] = []
        # The index of each name, while the body grows.
        self.node_numbers: dict[str, int] = {}
        self.nodes: array[int] | None = None
        self.tags: bytearray | bytes | None = None
        self.tag_ends: array[int] = array("I")
        # A growing body finds tags by a dict that is updated on demand, a frozen one by record numbers sorted by tag.
        self.tag_index: dict[bytes, list[int]] | None = None
        self.tag_indexed = 0
        self.tag_order: array[int] | None = None
        self.metas: array[int] | None = None

    # --- growing ---

    def extend(self, batch: Batch) -> None:
        buf, ends = self.buf, self.ends
        assert not self.frozen and isinstance(buf, bytearray)
        count_before, base = len(ends), len(buf)
        buf += batch.blob
        if batch.count == 1:
            ends.append(base + batch.size)
        elif base:
            ends.frombytes(_raised(batch.ends, base))
        else:
            ends.extend(batch.ends)
        if batch.nodes is not None or self.nodes is not None:
            self._extend_nodes(batch, count_before)
        if batch.tags is not None or self.tags is not None:
            self._extend_tags(batch, count_before)
        if batch.metas is not None or self.metas is not None:
            metas = self.metas
            if metas is None:
                metas = self.metas = array("I", bytes(4 * count_before))
            metas.extend(batch.metas or array("I", bytes(4 * batch.count)))

    def _extend_nodes(self, batch: Batch, count_before: int) -> None:
        nodes = self.nodes
        if nodes is None:
            nodes = self.nodes = array("I", bytes(4 * count_before))
        if batch.nodes is None:
            nodes.extend(array("I", bytes(4 * batch.count)))
            return
        names, known = self.node_names, self.node_numbers
        numbers = [0]
        for name in batch.node_names:
            number = known.setdefault(name, len(names) + 1)
            if number > len(names):
                names.append(name)
            numbers.append(number)
        nodes.extend([numbers[number] for number in batch.nodes])

    def _extend_tags(self, batch: Batch, count_before: int) -> None:
        tags = self.tags
        if tags is None:
            tags = self.tags = bytearray()
            self.tag_ends = array("I", bytes(4 * count_before))
        assert isinstance(tags, bytearray)
        base = len(tags)
        if batch.tags is None or batch.tag_ends is None:
            self.tag_ends.extend([base] * batch.count)
            return
        tags += batch.tags
        self.tag_ends.extend([end + base for end in batch.tag_ends])

    @classmethod
    def whole(cls, batch: Batch) -> Body:
        """A frozen body that uses a large batch's bytes as they are, without copying them."""
        body = cls()
        body.buf = batch.blob
        body.ends = batch.ends
        body.metas = batch.metas
        body.node_names, body.nodes = batch.node_names, batch.nodes
        if batch.tags is not None and batch.tag_ends is not None:
            body.tags, body.tag_ends, body.tag_order = batch.tags, batch.tag_ends, batch.tag_order
        body.freeze()
        return body

    def as_batch(self, first_seq: int, ts: int) -> Batch:
        """All records of several batches with the same time, as one body."""
        batch = Batch(first_seq, ts, self.count(), bytes(self.buf), self.ends)
        batch.node_names, batch.nodes, batch.metas = self.node_names, self.nodes, self.metas
        if self.tags is not None:
            batch.tags, batch.tag_ends = bytes(self.tags), self.tag_ends
        return batch

    def pick(self, numbers: Iterable[int]) -> Body:
        """A frozen body of only these records."""
        body = Body()
        names = self.node_names
        for number in numbers:
            blob = bytes(self.buf[self.start_of(number) : self.ends[number]])
            batch = Batch(0, 0, 1, blob, array("I", (len(blob),)))
            if self.nodes is not None and (node := self.nodes[number]):
                batch.node_names, batch.nodes = [names[node - 1]], array("I", (1,))
            if (tag := self.tag_at(number)) is not None:
                batch.tags, batch.tag_ends = b"\1" + tag, array("I", (len(tag) + 1,))
            if self.metas is not None:
                batch.metas = self.metas[number : number + 1]
            body.extend(batch)
        body.freeze()
        return body

    def copy(self) -> Body:
        """What a growing body has now; a copy can be read, and neither grows nor finds tags."""
        body = Body()
        body.buf, body.ends, body.frozen = bytes(self.buf), self.ends[:], True
        body.node_names, body.nodes = self.node_names[:], None if self.nodes is None else self.nodes[:]
        body.tags, body.tag_ends = None if self.tags is None else bytes(self.tags), self.tag_ends[:]
        body.metas = None if self.metas is None else self.metas[:]
        return body

    def freeze(self) -> None:
        """No more records are added: the buffers shrink to their size and tags get their sorted order."""
        if self.frozen:
            return
        self.frozen = True
        self.buf = bytes(self.buf)
        self.node_numbers = {}
        if self.tags is not None:
            self.tags = bytes(self.tags)
            if self.tag_order is None:
                self.tag_order = tag_order_of(all_tags(self.tags, self.tag_ends))
            self.tag_index = None

    # --- records by number ---

    def count(self) -> int:
        return len(self.ends)

    def start_of(self, index: int) -> int:
        return self.ends[index - 1] if index else 0

    def size(self, start: int, stop: int) -> int:
        """Bytes of the records start … stop − 1."""
        return self.start_of(stop) - self.start_of(start)

    def slice(self, start: int, stop: int) -> bytes | bytearray | memoryview:
        """Records start … stop − 1 as the inside of a JSON array, without the last comma."""
        first, last = self.start_of(start), self.ends[stop - 1] - 1
        return memoryview(self.buf)[first:last] if self.frozen else self.buf[first:last]

    def lines(self, start: int, stop: int) -> bytearray:
        """Records start … stop − 1, one line each. A line break can only be white space between tokens."""
        base = self.start_of(start)
        lines = bytearray(memoryview(self.buf)[base : self.ends[stop - 1]])
        if b"\n" in lines or b"\r" in lines:
            lines = lines.replace(b"\n", b" ").replace(b"\r", b" ")
        # The position of each record's comma; still several times faster than searching for them.
        before = base + 1
        for end in self.ends[start:stop]:
            lines[end - before] = _LINE_FEED
        return lines

    def record(self, index: int) -> bytes | bytearray:
        return self.buf[self.start_of(index) : self.ends[index] - 1]

    def ts_at(self, index: int) -> int:
        at = self.buf.index(b'"$ts":', self.start_of(index)) + 6
        return int(self.buf[at : self.buf.index(b",", at, at + _TS_DIGITS_MAX)])

    def first_at_or_after(self, ts: int) -> int:
        """Number of the first record whose time is at least `ts`: times never decrease within a topic."""
        return bisect_left(range(len(self.ends)), ts, key=self.ts_at)

    def first_ending_after(self, offset: int) -> int:
        return bisect_right(self.ends, offset)

    def tag_at(self, index: int) -> bytes | None:
        if self.tags is None:
            return None
        start = self.tag_ends[index - 1] if index else 0
        end = self.tag_ends[index]
        return bytes(self.tags[start + 1 : end]) if end > start else None

    def distinct_tags(self) -> set[bytes]:
        """The tags of a frozen body."""
        assert isinstance(self.tags, bytes)
        return {tag for tag in all_tags(self.tags, self.tag_ends) if tag is not None}

    def _tag_key(self, index: int) -> bytes:
        tag = self.tag_at(index)
        assert tag is not None
        return tag

    # --- tags to records ---

    def find(self, match: TagMatch) -> list[int]:
        """Numbers of the records whose tag matches, dead ones included, ascending."""
        if self.tags is None:
            return []
        if self.tag_order is not None:
            return self._find_sorted(match, self.tag_order)
        index = self._catch_up()
        if not match.prefix:
            return index.get(match.tag, [])
        return sorted(number for tag, numbers in index.items() if match(tag) for number in numbers)

    def _find_sorted(self, match: TagMatch, order: array[int]) -> list[int]:
        """Matching records are neighbours in the order of tags: two searches find them, whatever their number."""
        first = bisect_left(order, match.tag, key=self._tag_key)
        size = len(match.tag) if match.prefix else None
        stop = bisect_right(order, match.tag, first, key=lambda number: self._tag_key(number)[:size])
        return sorted(order[first:stop])

    def _catch_up(self) -> dict[bytes, list[int]]:
        index = self.tag_index
        if index is None:
            index = self.tag_index = {}
            self.tag_indexed = 0
        for number in range(self.tag_indexed, len(self.ends)):
            tag = self.tag_at(number)
            if tag is not None:
                index.setdefault(tag, []).append(number)
        self.tag_indexed = len(self.ends)
        return index


def all_tags(tags: bytes, ends: array[int]) -> list[bytes | None]:
    """The tag of each record in a column, several times as fast as one by one."""
    starts = chain((0,), ends)
    return [tags[start + 1 : end] if end > start else None for start, end in zip(starts, ends, strict=False)]


def tag_order_of(tags: list[bytes | None]) -> array[int]:
    """The numbers of the records that have a tag, sorted by tag."""
    tagged: Iterable[int] = range(len(tags))
    if None in tags:
        tagged = [number for number in tagged if tags[number] is not None]
    return array("I", sorted(tagged, key=cast("list[bytes]", tags).__getitem__))


def _raised(offsets: array[int], base: int) -> bytes:
    """Every offset plus `base`, as the bytes of an array: one addition of long numbers instead of one per record."""
    raised = int.from_bytes(offsets.tobytes(), "little") + int.from_bytes(
        base.to_bytes(4, "little") * len(offsets), "little"
    )
    return raised.to_bytes(4 * len(offsets), "little")

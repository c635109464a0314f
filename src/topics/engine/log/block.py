"""A block: the part of a run of records that is always in memory, whether its body is loaded or only on disk."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Generator, Iterator

import xxhash

from topics.engine.log.body import Body, all_tags, tag_order_of
from topics.model.requests.batch import Batch, Draft
from topics.model.requests.records import TagMatch
from topics.storage.pack import Extent

BLOCK_BYTES = 256 * 1024
FILTER_BITS_PER_TAG = 10
_ONE = ord("1")


class Block:
    """Records by number 0 … count − 1; seqs are dense unless there is a `seqs` column.

    `start` is the first live record: everything before it is dead and needs no flag. For the others, `dead` holds one
    byte each, made when the first record in the middle dies. Only this class converts a seq to a number.
    """

    __slots__ = (
        "body",
        "cold",
        "count",
        "dead",
        "extent",
        "first_seq",
        "first_ts",
        "gone",
        "image",
        "last_seq",
        "last_ts",
        "live",
        "live_bytes",
        "packed",
        "segment",
        "seqs",
        "start",
        "tag_filter",
    )

    def __init__(self, first_seq: int, first_ts: int, segment: int) -> None:
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.count = 0
        self.live = 0
        self.live_bytes = 0
        self.start = 0
        self.first_ts = first_ts
        self.last_ts = first_ts
        self.segment = segment
        self.dead: bytearray | None = None
        self.seqs: array[int] | None = None
        self.body: Body | None = None
        # Where the first `packed` records are on disk.
        self.extent: Extent | None = None
        self.packed = 0
        # The body was read back from disk and may be dropped at any time.
        self.cold = False
        # It has left its topic for good.
        self.gone = False
        # This block as a snapshot stores it, until the block changes.
        self.image: bytes | None = None
        # None: no tags. Empty: there are tags, but it is not known which.
        self.tag_filter: bytes | None = None

    # --- growing ---

    @classmethod
    def whole(cls, batch: Batch, segment: int) -> Block:
        """A separate block for a batch that fills one."""
        block = cls(batch.first_seq, batch.ts, segment)
        block.body = Body.whole(batch)
        block._count_in(batch)
        block.tag_filter = batch.tag_filter
        if block.tag_filter is None:
            block.index_tags()
        return block

    def extend(self, batch: Batch) -> None:
        assert self.body is not None
        self.body.extend(batch)
        self._count_in(batch)

    def _count_in(self, batch: Batch) -> None:
        count = batch.count
        self.image = None
        self.count += count
        self.live += count
        self.live_bytes += batch.size
        self.last_seq += count
        self.last_ts = batch.ts
        if self.dead is not None:
            self.dead += bytes(count)

    @property
    def growing(self) -> bool:
        return self.body is not None and not self.body.frozen

    def freeze(self) -> None:
        body = self.body
        if body is not None and not body.frozen:
            body.freeze()
            self.index_tags()

    def index_tags(self) -> None:
        body = self.body
        assert body is not None
        if body.tag_order is not None:
            self.tag_filter = build_filter(body.distinct_tags())
        elif body.tags is not None:
            self.tag_filter = b""

    def shrink(self) -> None:
        """Keep only the live records, with a seq column: for blocks in which most records are dead."""
        body = self.body
        assert body is not None and self.live
        alive = [number for first, stop in self.alive_runs(0, self.count) for number in range(first, stop)]
        self.seqs = array("Q", [self.seq_at(number) for number in alive])
        self.body = body.pick(alive)
        self.tag_filter = None
        self.index_tags()
        self.first_ts = self.body.ts_at(0)
        self.count = self.live
        self.live_bytes = len(self.body.buf)
        self.start = 0
        self.dead = None
        self.extent = None
        self.packed = 0
        self.image = None

    # --- seqs and numbers ---

    def number_after(self, seq: int) -> int:
        """Number of the first record whose seq is greater than `seq`."""
        if self.seqs is not None:
            return bisect_right(self.seqs, seq)
        number = seq + 1 - self.first_seq
        if number < 0:
            return 0
        return min(self.count, number)

    def seq_at(self, number: int) -> int:
        return self.seqs[number] if self.seqs is not None else self.first_seq + number

    def earliest_seq(self) -> int:
        return self.seq_at(self.start)

    # --- live and dead records ---

    def alive_runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Runs of live records within start … stop − 1."""
        start = max(start, self.start)
        dead = self.dead
        if dead is None:
            if start < stop:
                yield start, stop
            return
        while start < stop:
            first = dead.find(0, start, stop)
            if first < 0:
                return
            end = dead.find(1, first, stop)
            start = stop if end < 0 else end
            yield first, start

    def all_alive(self, start: int, stop: int) -> bool:
        """Whether there are records start … stop − 1, and all of them are alive."""
        return self.start <= start < stop and (self.dead is None or self.dead.find(1, start, stop) < 0)

    def first_alive_run(self, start: int, most: int) -> tuple[int, int]:
        """The first run of live records from `start` on, as much of it as is `most`; an empty one if there is none."""
        if start < self.start:
            start = self.start
        dead = self.dead
        if dead is None:
            return start, max(start, min(self.count, start + most))
        first = dead.find(0, start)
        if first < 0:
            return self.count, self.count
        stop = min(self.count, first + most)
        end = dead.find(1, first, stop)
        return first, stop if end < 0 else end

    def nth_alive(self, nth: int) -> int:
        """Number of the live record with `nth` live ones before it; `count` if there is none."""
        for first, stop in self.alive_runs(self.start, self.count):
            if nth < stop - first:
                return first + nth
            nth -= stop - first
        return self.count

    def alive_before(self, stop: int) -> int:
        """How many live records have a lower number than this."""
        return sum(end - first for first, end in self.alive_runs(self.start, stop))

    def cut_for_bytes(self, size: int) -> int:
        """Smallest number such that the live records before it free at least `size` bytes.

        Without the body in memory, the average size is used.
        """
        body = self.body
        if body is None:
            return self.nth_alive(-(-size * self.live // max(1, self.live_bytes)))
        for first, stop in self.alive_runs(self.start, self.count):
            here = body.size(first, stop)
            if here >= size:
                return min(stop, body.first_ending_after(body.start_of(first) + size - 1) + 1)
            size -= here
        return self.count

    def kill(self, start: int, stop: int, size: int | None = None) -> tuple[int, int]:
        """Mark start … stop − 1 dead; how many died, and the bytes they freed (`size`, where it is known)."""
        if self.all_alive(start, stop):
            return self._kill_run(start, stop, size)
        died = freed = 0
        for first, end in list(self.alive_runs(start, stop)):
            of_run = self._kill_run(first, end, None if size is None else size - freed)
            died += of_run[0]
            freed += of_run[1]
        return died, freed

    def _kill_run(self, first: int, stop: int, size: int | None) -> tuple[int, int]:
        """All of them are alive."""
        died, body = stop - first, self.body
        if died == self.live:
            size = self.live_bytes
        elif body is not None:
            size = body.size(first, stop)
        elif size is None:
            size = self.live_bytes * died // self.live
        if size > self.live_bytes:
            size = self.live_bytes
        self.image = None
        if first == self.start and self.dead is None:
            self.start = stop
        else:
            self._flag(first, stop)
        self.live -= died
        self.live_bytes -= size
        return died, size

    def _flag(self, first: int, stop: int) -> None:
        dead = self.dead
        if dead is None:
            dead = self.dead = bytearray(self.count)
            dead[: self.start] = b"\1" * self.start
        if stop - first == 1:
            dead[first] = 1
        else:
            dead[first:stop] = b"\1" * (stop - first)
        if first <= self.start:
            alive = dead.find(0, self.start)
            self.start = self.count if alive < 0 else alive

    # --- tags ---

    def may_hold(self, match: TagMatch) -> bool:
        """False only if no record of this block can match."""
        body = self.body
        if body is not None:
            return body.tags is not None
        if self.tag_filter is None:
            return False
        return match.prefix or not self.tag_filter or in_filter(self.tag_filter, match.tag)


def indexing_tags(records: Draft | Batch) -> Generator[None, None, None]:
    """Make ahead what a block of these records needs to find tags, if they will be a block by themselves."""
    column = records.tag_column()
    if column is None or records.size < BLOCK_BYTES:
        return
    tags = all_tags(*column)
    yield
    records.tag_order = tag_order_of(tags)
    yield
    records.tag_filter = build_filter({tag for tag in tags if tag is not None})


def build_filter(tags: Collection[bytes]) -> bytes:
    """A Bloom filter with three probes per tag, see `_probes`."""
    bits = max(64, len(tags) * FILTER_BITS_PER_TAG + 7 & ~7)
    # A digit per bit, highest first, converted to a number at once: several times as fast as setting bits of bytes.
    digits = bytearray(b"0") * bits
    for digest in map(xxhash.xxh3_64_intdigest, tags):
        step = digest >> 32 | 1
        digits[~(digest % bits)] = digits[~((digest + step) % bits)] = digits[~((digest + 2 * step) % bits)] = _ONE
    return int(digits, 2).to_bytes(bits // 8, "little")


def in_filter(data: bytes, tag: bytes) -> bool:
    return all(data[bit >> 3] & (1 << (bit & 7)) for bit in _probes(tag, len(data) * 8))


def _probes(tag: bytes, bits: int) -> tuple[int, int, int]:
    digest = xxhash.xxh3_64_intdigest(tag)
    step = digest >> 32 | 1
    return digest % bits, (digest + step) % bits, (digest + 2 * step) % bits

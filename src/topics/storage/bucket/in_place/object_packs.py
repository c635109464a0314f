"""Extents of packs that are objects of a bucket, read in a known order: neighbours by one request, the next ahead.

blocks of a part      | a | b |   | c |          | d | e |
requests              |<-- one range ->|          |<----->|     while the first is used, the second is under way
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from topics.storage.bucket.bucket import ReadableBucket
from topics.storage.pack import Extent

# Bytes of a range, unless one extent is larger, and of what nobody wants between two of its extents.
RANGE_BYTES_MAX = 4 << 20
UNWANTED_BYTES_MAX = 64 << 10


class ObjectPacks:
    """Used by one thread, for one part; closed by its user."""

    def __init__(self, bucket: ReadableBucket, keys: Mapping[int, str], extents: Iterable[Extent]) -> None:
        self._bucket = bucket
        self._keys = keys
        self._ranges = _joined(extents)
        self._at = -1
        self._data: bytes | None = b""
        self._ahead: Future[bytes | None] | None = None
        self._reader = ThreadPoolExecutor(1, "topics-bucket-read")

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    def read(self, extent: Extent) -> bytes | None:
        """The bytes of one of the extents, in their order; None if its pack is no longer there."""
        while self._at < 0 or not _holds(self._ranges[self._at], extent):
            self._at += 1
            self._data = (self._ahead or self._ask(self._at)).result()
            self._ahead = self._ask(self._at + 1) if self._at + 1 < len(self._ranges) else None
        if self._data is None:
            return None
        start = extent.offset - self._ranges[self._at].offset
        return self._data[start : start + extent.length]

    def _ask(self, number: int) -> Future[bytes | None]:
        pack, offset, length = self._ranges[number]
        return self._reader.submit(self._bucket.read_range, self._keys[pack], offset, length)


def _holds(wider: Extent, extent: Extent) -> bool:
    end = extent.offset + extent.length
    return wider.pack == extent.pack and wider.offset <= extent.offset and end <= wider.offset + wider.length


def _joined(extents: Iterable[Extent]) -> list[Extent]:
    """Ranges that hold the extents, in their order."""
    ranges: list[Extent] = []
    for extent in extents:
        last = ranges[-1] if ranges else None
        if last is not None and last.pack == extent.pack:
            unwanted = extent.offset - last.offset - last.length
            length = extent.offset + extent.length - last.offset
            if 0 <= unwanted <= UNWANTED_BYTES_MAX and length <= RANGE_BYTES_MAX:
                ranges[-1] = last._replace(length=length)
                continue
        ranges.append(extent)
    return ranges

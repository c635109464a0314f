"""Parts of packs that are only in the bucket: read by range, in chunks, the latest of which stay in memory.

    extent          |      ▓▓▓▓▓▓▓▓▓▓▓▓▓      |
    chunks of 1 MiB | chunk 6 | chunk 7 | chunk 8 |      one request for 6 and 7, without those that are cached

The blocks of a topic lie one after the other in a pack, so the next block that a reader needs is often in the same
chunk. Any thread may read; the lock is never held during a request. What a chunk holds is checked by its reader: every
extent has a checksum.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from topics.model.errors import BucketAway, DamagedData
from topics.storage.bucket.bucket import BucketError, ObjectBucket
from topics.storage.remote.remote_pack import RemotePack

CHUNK_BYTES = 1 << 20
# One request must end in the time that a request has.
REQUEST_BYTES_MAX = 16 * CHUNK_BYTES
# More than this is not joined by a thread that must not wait.
NOWAIT_BYTES_MAX = CHUNK_BYTES
# After a request without an answer, reads fail at once for so long: they must not line up for one time limit each.
AWAY_S = 1.0


class RangeReader:
    """Reads by range; counts requests, and reads that needed none (hits) or some (misses)."""

    def __init__(self, bucket: ObjectBucket, cache_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._lock = Lock()
        self._chunks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._away_until_s = 0.0
        self._away_why = ""
        self.cached_bytes = 0
        self.requests_total = self.hits_total = self.misses_total = 0

    def cached(self, pack: RemotePack, offset: int, length: int) -> bytes | None:
        """The bytes if no request is needed for them, and they are few. Does not wait."""
        if length > NOWAIT_BYTES_MAX:
            return None
        with self._lock:
            found = self._cached(pack, offset, length)
            self.hits_total += found is not None
            return found

    def read(self, pack: RemotePack, offset: int, length: int) -> bytes:
        """The bytes; fewer at the end of the object. Blocks; raises BucketAway, and DamagedData if it is gone."""
        with self._lock:
            found = self._cached(pack, offset, length)
            if found is not None:
                self.hits_total += 1
                return found
            self.misses_total += 1
        pieces: list[bytes] = []
        end = offset + length
        while offset < end:
            upto = min(end, (offset // CHUNK_BYTES + REQUEST_BYTES_MAX // CHUNK_BYTES) * CHUNK_BYTES)
            piece = self._request(pack, offset, upto)
            pieces.append(piece)
            if len(piece) < upto - offset:
                break
            offset = upto
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def check(self, pack: RemotePack) -> bool:
        """Whether the bucket has this pack, by its last bytes; raises BucketError if it does not answer."""
        found = self._bucket.read_range(pack.key, pack.size_bytes - 8, 8)
        return found is not None and found.hex() == pack.checksum

    def close(self) -> None:
        """The store is closed: what waits to be read is not asked for any more."""
        self._away_why, self._away_until_s = "the server stops", math.inf

    def forget(self, numbers: list[int]) -> None:
        """These packs are no longer needed."""
        gone = set(numbers)
        with self._lock:
            for place in [place for place in self._chunks if place[0] in gone]:
                self.cached_bytes -= len(self._chunks.pop(place))

    def _cached(self, pack: RemotePack, offset: int, length: int) -> bytes | None:
        first, last = offset // CHUNK_BYTES, (offset + max(length, 1) - 1) // CHUNK_BYTES
        places = [(pack.number, chunk) for chunk in range(first, last + 1)]
        if not all(place in self._chunks for place in places):
            return None
        for place in places:
            self._chunks.move_to_end(place)
        start = offset - first * CHUNK_BYTES
        if len(places) == 1:
            return self._chunks[places[0]][start : start + length]
        return b"".join([self._chunks[place] for place in places])[start : start + length]

    def _request(self, pack: RemotePack, offset: int, end: int) -> bytes:
        """Whole chunks around the range, in one request; those at its ends that are cached are not asked for again."""
        first, last = offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        known: dict[int, bytes] = {}
        with self._lock:
            for chunk in range(first, last + 1):
                if (pack.number, chunk) in self._chunks:
                    known[chunk] = self._chunks[pack.number, chunk]
        missing = [chunk for chunk in range(first, last + 1) if chunk not in known]
        if missing:
            start = missing[0] * CHUNK_BYTES
            stop = min(pack.size_bytes, (missing[-1] + 1) * CHUNK_BYTES)
            data = self._ask(pack, start, stop - start)
            if data is None:
                raise DamagedData(f"the bucket has lost {pack.key}", file=pack.key, offset=offset)
            for chunk in range(missing[0], missing[-1] + 1):
                known[chunk] = data[(chunk - missing[0]) * CHUNK_BYTES :][:CHUNK_BYTES]
                self._keep((pack.number, chunk), known[chunk])
        joined = b"".join([known[chunk] for chunk in range(first, last + 1)])
        return joined[offset - first * CHUNK_BYTES : end - first * CHUNK_BYTES]

    def _keep(self, place: tuple[int, int], data: bytes) -> None:
        with self._lock:
            before = self._chunks.pop(place, b"")
            self._chunks[place] = data
            self.cached_bytes += len(data) - len(before)
            while self.cached_bytes > self._cache_bytes:
                self.cached_bytes -= len(self._chunks.popitem(last=False)[1])

    def _ask(self, pack: RemotePack, offset: int, length: int) -> bytes | None:
        if self._clock() < self._away_until_s:
            raise self._is_away(pack)
        with self._lock:
            self.requests_total += 1
        try:
            found = self._bucket.read_range(pack.key, offset, length)
        except BucketError as error:
            if self._away_until_s < math.inf:
                self._away_why, self._away_until_s = error.message, self._clock() + AWAY_S
            raise self._is_away(pack) from error
        return found

    def _is_away(self, pack: RemotePack) -> BucketAway:
        return BucketAway(
            f"pack {pack.number} is only in the bucket, which does not answer; try again: {self._away_why}",
            pack=pack.number,
            retry_after_ms=int(1000 * AWAY_S),
        )

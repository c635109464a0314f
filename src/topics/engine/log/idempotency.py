"""Idempotency keys: which batch a key belongs to, in time buckets that are dropped whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

BUCKETS_PER_WINDOW = 8


class Written(NamedTuple):
    """The batch that a key created; `seqs` if its records are not the consecutive ones of that batch."""

    ts: int
    first_seq: int
    records: int
    seqs: list[int] | None = None


class Bucket(NamedTuple):
    start_ms: int
    packed: dict[bytes, int]
    # Only for the few keys whose records are not simply those of one batch.
    seqs: dict[bytes, list[int]]


def digest(key: str) -> bytes:
    """The 16-byte digest of a key."""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"topics-idem").digest()


class KeyTable:
    """Digest → batch, newest bucket last. An entry packs time, first seq and count into one int."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: list[Bucket] = []

    def __len__(self) -> int:
        return sum(len(bucket.packed) for bucket in self._buckets)

    def add(self, key: bytes, written: Written, window_ms: int) -> None:
        width = max(1, window_ms // BUCKETS_PER_WINDOW)
        if not self._buckets or written.ts >= self._buckets[-1].start_ms + width:
            self._drop_before(written.ts - window_ms - width)
            self._buckets.append(Bucket(written.ts, {}, {}))
        bucket = self._buckets[-1]
        bucket.packed[key] = written.ts << 96 | written.first_seq << 32 | written.records
        if written.seqs is not None:
            bucket.seqs[key] = written.seqs

    def find(self, key: bytes, now_ms: int, window_ms: int) -> Written | None:
        """The batch that this key created, if it is within the window."""
        for bucket in reversed(self._buckets):
            packed = bucket.packed.get(key)
            if packed is not None:
                written = _unpack(packed, bucket.seqs.get(key))
                return written if now_ms - written.ts <= window_ms else None
        return None

    def entries(self, since_ms: int) -> Iterator[tuple[bytes, Written]]:
        """All entries not older than `since_ms`, oldest first."""
        for bucket in self._buckets:
            for key, packed in bucket.packed.items():
                written = _unpack(packed, bucket.seqs.get(key))
                if written.ts >= since_ms:
                    yield key, written

    def _drop_before(self, ts: int) -> None:
        keep = next((at for at, bucket in enumerate(self._buckets) if bucket.start_ms >= ts), len(self._buckets))
        del self._buckets[:keep]


def _unpack(packed: int, seqs: list[int] | None) -> Written:
    return Written(packed >> 96, packed >> 32 & 0xFFFF_FFFF_FFFF_FFFF, packed & 0xFFFF_FFFF, seqs)

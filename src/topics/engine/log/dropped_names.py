"""Names of deleted topics: whether a topic is the first of its name, which the ids of event streams depend on.

    chunk of a snapshot:  | "\\0DROPPED" | overflown u8 | xxh3 of a name, u64 … |

A name is stored as its digest. A name that was never deleted may be mistaken for a deleted one, never the reverse.
"""

from __future__ import annotations

from array import array

from xxhash import xxh3_64_intdigest

DROPPED_CHUNK = b"\0DROPPED"
NAMES_MAX = 100_000


class DroppedNames:
    """At most NAMES_MAX digests; beyond that, every name is treated as deleted before."""

    __slots__ = ("_digests", "_overflown")

    def __init__(self) -> None:
        self._digests: set[int] = set()
        self._overflown = False

    def __contains__(self, name: str) -> bool:
        return self._overflown or xxh3_64_intdigest(name.encode()) in self._digests

    def __bool__(self) -> bool:
        return self._overflown or bool(self._digests)

    def add(self, name: str) -> None:
        if self._overflown:
            return
        self._digests.add(xxh3_64_intdigest(name.encode()))
        if len(self._digests) > NAMES_MAX:
            self._overflown = True
            self._digests.clear()

    def encode(self) -> bytes:
        return b"%b%c%b" % (DROPPED_CHUNK, self._overflown, array("Q", self._digests).tobytes())

    def restore(self, chunk: bytes) -> None:
        at = len(DROPPED_CHUNK)
        self._overflown = chunk[at] != 0
        self._digests = set(array("Q", chunk[at + 1 :]))

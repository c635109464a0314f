"""A bucket in memory that fails in every way a real one can, as its caller decides."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from topics.storage.bucket.bucket import Changed, Exists, Found, Listed, ObjectBucket, Unreachable
from topics.storage.bucket.chain import walk
from topics.storage.bucket.terms import Create, Place, Reply, Request, Swap, ask, run, take_term
from topics.storage.disk import Buffer


class Fate(Enum):
    """What becomes of a request."""

    ANSWERED = "answered"
    LOST = "never arrives, and is not answered"
    UNANSWERED = "is carried out, and not answered"
    LATE = "is not answered, and is carried out at some later time"
    SLOW = "is carried out, and answered at some later time"


class MemoryBucket:
    """A `ObjectBucket` that works. Every version of an object has its own number as etag."""

    def __init__(self) -> None:
        self.objects: dict[str, Found] = {}
        self._versions = 0

    def create(self, key: str, data: Buffer) -> None:
        if key in self.objects:
            raise Exists(f"{key} exists")
        self._store(key, data)

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        found = self.objects.get(key)
        if (found.etag if found is not None else None) != etag:
            raise Changed(f"{key} was changed")
        return self._store(key, data)

    def upload(self, key: str, path: str) -> None:
        self._store(key, Path(path).read_bytes())

    def read(self, key: str) -> Found | None:
        return self.objects.get(key)

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        found = self.objects.get(key)
        return None if found is None else found.data[offset : offset + length]

    def download(self, key: str, path: str) -> bool:
        found = self.objects.get(key)
        if found is not None:
            Path(path).write_bytes(found.data)
        return found is not None

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield Listed(key, len(self.objects[key].data), 0)

    def expect(self, key: str, data: bytes) -> None:
        """It is always there."""

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def _store(self, key: str, data: Buffer) -> str:
        self._versions += 1
        self.objects[key] = Found(bytes(data), str(self._versions))
        return str(self._versions)


class FaultyBucket(MemoryBucket):
    """Carries out requests as fate wants it; writes that are under way land when `land` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[Create | Swap] = []

    def meet(self, request: Request, fate: Fate) -> Reply:
        if fate in (Fate.ANSWERED, Fate.SLOW):
            return ask(self, request)
        if fate is Fate.UNANSWERED:
            self._carry_out(request)
        elif fate is Fate.LATE and isinstance(request, Create | Swap):
            self.under_way.append(request)
        raise Unreachable("no answer")

    def land(self, number: int) -> None:
        self._carry_out(self.under_way.pop(number))

    def _carry_out(self, request: Request) -> None:
        try:
            ask(self, request)
        except (Exists, Changed):
            pass


def close_newest(bucket: ObjectBucket, name: str) -> Place:
    """Another server takes over by force, and says nothing yet; the slot with its closing."""
    place = walk(bucket, None).place
    assert run(bucket, take_term(name, name, 0, place))
    return place

"""What an object store must offer, in nine calls; everything else of this package is made from them.

A call raises one of four errors. Only `Unreachable` leaves open what happened: a write that raised it may have been
made, may still be made later, or never. The others are answers of the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from topics.model.errors import TopicsError
from topics.storage.disk import Buffer


class BucketError(TopicsError):
    """A request to the bucket failed."""

    code = "bucket_error"


class Exists(BucketError):
    """The object exists already, so it was not created."""


class Changed(BucketError):
    """The object is not the one that was to be replaced, so it was not."""


class Refused(BucketError):
    """The bucket does not allow this, and will not when it is asked again."""


class Unreachable(BucketError):
    """No answer. Whether a write was made is unknown."""


class Found(NamedTuple):
    """An object; `etag` names this version of it."""

    data: bytes
    etag: str


class Listed(NamedTuple):
    """An object in a list, which may be out of date; `modified_ms` is by the clock of the bucket."""

    key: str
    size_bytes: int
    modified_ms: int


class ReadableBucket(Protocol):
    """What those need that only read: the objects below one prefix."""

    def read(self, key: str) -> Found | None:
        """The object, None if there is none."""
        ...

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        """Part of an object, shorter where it ends; None if there is no such object."""
        ...

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """The objects whose keys begin with a prefix that ends in "/", in order, those after a key only."""
        ...


class RestorableBucket(ReadableBucket, Protocol):
    """What a restore needs besides."""

    def download(self, key: str, path: str) -> bool:
        """Store an object in a new file, synced; False if there is none."""
        ...


class ObjectBucket(RestorableBucket, Protocol):
    """The objects below one prefix. Calls block, release the interpreter lock, and end within a bounded time."""

    def create(self, key: str, data: Buffer) -> None:
        """Make an object that must not exist; raises Exists."""
        ...

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        """Replace this version of an object, None: make it; returns the new version, raises Changed."""
        ...

    def upload(self, key: str, path: str) -> None:
        """Store a file under a key that no other content ever has; to do it twice changes nothing."""
        ...

    def expect(self, key: str, data: bytes) -> None:
        """From now on raise Unreachable where this object, which never changes, is not there; if that costs nothing."""
        ...

    def delete(self, keys: list[str]) -> None:
        """Remove objects; one that does not exist is no error."""
        ...

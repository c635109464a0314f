"""Which bucket it is: an object that is made once, and is noted in every directory whose log is there.

A share that is not mounted is an empty directory, and looks like a new bucket. A server that takes it for one writes
where nobody looks, and is not noticed by those that use the share.

    in the bucket    noted in the directory
    none             none                      made: the bucket is new, or was used by an earlier version
    one              none                      noted
    one              the same                  goes on
    none, another    one, of this address      refused
    none, another    one, of another address   noted: it was given another bucket, which need not have its log
"""

from __future__ import annotations

import secrets

import msgspec

from topics.model.errors import DataDirIncompatible
from topics.storage.bucket.bucket import Changed, Exists, ObjectBucket
from topics.storage.bucket.slots import IDENTITY


class KnownBucket(msgspec.Struct, frozen=True):
    """The bucket of a directory, by its address and the content of the object."""

    url: str
    identity: str


def identify(bucket: ObjectBucket, url: str, known: KnownBucket | None, path: str) -> KnownBucket:
    """The bucket at this address, which from now on must be there; raises DataDirIncompatible if it is not `known`."""
    url = url.rstrip("/")
    found = bucket.read(IDENTITY)
    data = found.data if found is not None else None
    if known is not None and known.url == url and data != known.identity.encode():
        raise DataDirIncompatible(
            f"{url} is not the bucket that the log of {path} was in before"
            f"{', it is empty' if data is None else ''}: is it mounted, and the endpoint the same? If you mean "
            "another bucket, move the directory away and start on an empty one, or use another address",
            directory=path,
            setting="bucket",
        )
    if data is None:
        data = _made(bucket)
    bucket.expect(IDENTITY, data)
    return KnownBucket(url, data.decode("ascii", "replace"))


def _made(bucket: ObjectBucket) -> bytes:
    data = secrets.token_hex(16).encode()
    try:
        bucket.create(IDENTITY, data)
    except Exists:
        found = bucket.read(IDENTITY)
        if found is None:
            raise Changed(f"{IDENTITY} exists and cannot be read yet", key=IDENTITY) from None
        return found.data
    return data

"""A pack that is only in the bucket, and the empty file in its place, whose name says all there is to know of it.

    shard-00/packs/00000000000000000012.pack                               the pack is here
    shard-00/packs/00000000000000000012-67108864-9f86d081884c7d65.remote   it is in the bucket: number, bytes, checksum

The checksum is the last 8 bytes of the pack, in hex, as in the name of its object.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from topics.storage.bucket.slots import FILES

REMOTE_SUFFIX = ".remote"

_object = re.compile(rf"{FILES}(\d{{20}})\.pack-([0-9a-f]{{16}})")
_stub = re.compile(rf"(\d{{20}})-(\d{{1,20}})-([0-9a-f]{{16}}){re.escape(REMOTE_SUFFIX)}")


class RemotePack(NamedTuple):
    number: int
    size_bytes: int
    checksum: str

    @property
    def key(self) -> str:
        """The object that holds it."""
        return f"{FILES}{self.number:020d}.pack-{self.checksum}"

    @property
    def stub(self) -> str:
        """The name of the empty file in its place."""
        return f"{self.number:020d}-{self.size_bytes}-{self.checksum}{REMOTE_SUFFIX}"


def pack_of_object(key: str, size_bytes: int) -> RemotePack | None:
    """The pack that an object of the bucket holds; None: it is another file."""
    found = _object.fullmatch(key)
    return None if found is None else RemotePack(int(found[1]), size_bytes, found[2])


def pack_of_stub(name: str) -> RemotePack | None:
    """The pack that a file of the directory of packs stands for; None: it stands for none."""
    found = _stub.fullmatch(name)
    return None if found is None else RemotePack(int(found[1]), int(found[2]), found[3])

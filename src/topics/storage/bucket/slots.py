"""The objects of the log in a bucket: their keys, and the bytes of a slot.

    identity                                       which bucket it is                create-only
    primary                                        who is primary, until when        compare-and-swap
    log/0000000007/000000000000                    the slots of term 7, without gaps  create-only
    log/0000000007/000000000001                    … a piece of the log each
    log/0000000007/000000000002                    … the last one closes the term     create-only, kept for ever
    snapshots/00000000000000081920-0000000007      a snapshot and the files it needs  create-only
    files/00000000000000000012.pack-9f86d081884c7d65   packs and snapshots            never with other content

A slot; `head` is JSON, and a reader ignores fields of it that it does not know:

    0          4          8               8+head_len                   -8
    +----------+----------+---------------+----------------------------+-------------------+
    | magic    | head_len | head          | frames of the log, or none | checksum          |
    | u32      | u32      | JSON          | bytes                      | u64 over all else |
    +----------+----------+---------------+----------------------------+-------------------+
"""

from __future__ import annotations

import struct

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.model.errors import DamagedData
from topics.storage.disk import Buffer

IDENTITY = "identity"
PRIMARY = "primary"
LOG = "log/"
SNAPSHOTS = "snapshots/"
FILES = "files/"
MAGIC = 0x314F4C53  # "SLO1"
# Term 0 has one slot, which opens term 1: so every term is opened by the closing of the one before it.
FIRST_TERM = 0

_start = struct.Struct("<II")
_checksum = struct.Struct("<Q")


class LogPiece(msgspec.Struct, frozen=True, tag="piece", tag_field="kind"):
    """A piece of the log: the frames between two positions of one log file, whose checksums need its salt.

    `from_position` is beyond the end of the piece before it where the copy has a gap: then it goes on from a snapshot.
    """

    term: int
    slot: int
    token: str
    time_ms: int
    from_position: int
    to_position: int
    salt: int


class TermClosing(msgspec.Struct, frozen=True, tag="closing", tag_field="kind"):
    """The end of a term. It names the one who has the next term: `holder` is a directory, `token` one run of it."""

    term: int
    slot: int
    token: str
    time_ms: int
    holder: str


Slot = LogPiece | TermClosing
_heads: msgspec.json.Decoder[Slot] = msgspec.json.Decoder(LogPiece | TermClosing)


def slot_key(term: int, slot: int) -> str:
    return f"{LOG}{term:010d}/{slot:012d}"


def term_prefix(term: int) -> str:
    return f"{LOG}{term:010d}/"


def parse_slot_key(key: str) -> tuple[int, int] | None:
    """Term and number of a slot; None for any other key."""
    term, _, slot = key.removeprefix(LOG).partition("/")
    if len(term) == 10 and len(slot) == 12 and term.isdecimal() and slot.isdecimal():
        return int(term), int(slot)
    return None


def encode_slot(head: Slot, frames: Buffer = b"") -> bytes:
    text = msgspec.json.encode(head)
    start = _start.pack(MAGIC, len(text)) + text
    digest = xxh3_64(start)
    digest.update(frames)
    return b"".join((start, frames, _checksum.pack(digest.intdigest())))


def decode_slot(key: str, data: bytes) -> tuple[Slot, memoryview]:
    """The head of a slot and its frames; raises DamagedData unless every byte is as it was written."""
    try:
        magic, head_bytes = _start.unpack_from(data)
        (checksum,) = _checksum.unpack_from(data, len(data) - _checksum.size)
        body = memoryview(data)[: -_checksum.size]
        if magic == MAGIC and xxh3_64_intdigest(body) == checksum:
            head = _heads.decode(body[_start.size : _start.size + head_bytes])
            if parse_slot_key(key) == (head.term, head.slot):
                return head, body[_start.size + head_bytes :]
    except (ValueError, IndexError, msgspec.MsgspecError, struct.error):
        pass
    raise DamagedData(f"the object {key} of the bucket is damaged", file=key, offset=0)

"""Composite cursors: the positions of all topics of a stream as one opaque word, in an id or handed back by a client.

Up to 64 topics   base64url of a JSON map {"topic": seq, …}
More              base64url of | 0x01 | xxh3 of the sorted names, u64 | restarts | seqs in that order |, LEB128
                  a checkpoint of the session: a few bytes a topic, and it needs nothing kept on the server

`restarts` counts how often a topic of the session turned out to be another one of the same name, whose seqs start
again; in a map it is the entry "~", which no topic can be called, and left out while it is 0.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping

import msgspec
import xxhash

from topics.model.errors import InvalidRequest
from topics.model.requests.config import U64_MAX

MAP_TOPICS_MAX = 64
CURSOR_CHARS_MAX = 64 * 1024
_CHECKPOINT = b"\x01"
RESTARTS = "~"
_HEAD_BYTES = 9
_map_decoder = msgspec.json.Decoder(dict[str, int])


class CursorWriter:
    """Ids of one stream: a piece per topic, and only the piece of a topic that moved is made anew."""

    __slots__ = ("_head", "_pieces", "_sparse")

    def __init__(self, seqs: Mapping[str, int], restarts: int) -> None:
        names = sorted(seqs)
        self._sparse = len(names) > MAP_TOPICS_MAX
        self._head = _CHECKPOINT + names_digest(names) if self._sparse else b""
        self._pieces = {name: self._piece(name, seqs[name]) for name in names}
        if self._sparse:
            self._head += _leb128(restarts)
        elif restarts:
            self._pieces[RESTARTS] = self._piece(RESTARTS, restarts)

    def id_at(self, name: str, seq: int) -> bytes:
        """The id that says `name` is at `seq`, and the others where they were last said to be."""
        self._pieces[name] = self._piece(name, seq)
        if self._sparse:
            return _base64url(self._head + b"".join(self._pieces.values()))
        return _base64url(b"{%b}" % b",".join(self._pieces.values()))

    def _piece(self, name: str, seq: int) -> bytes:
        return _leb128(seq) if self._sparse else b'"%b":%d' % (name.encode(), seq)


def single_id(name: str, seq: int) -> bytes:
    return _base64url(b'{"%b":%d}' % (name.encode(), seq))


def decode_cursor(text: str, names: Iterable[str]) -> dict[str, int]:
    """Positions by topic. A checkpoint says nothing of names, so it fits only the set of topics it was made for."""
    try:
        if len(text) > CURSOR_CHARS_MAX:
            raise ValueError("too long")
        raw = urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))
        if raw[:1] == _CHECKPOINT:
            return _decode_checkpoint(raw, sorted(names))
        seqs = _map_decoder.decode(raw)
    except (ValueError, Base64Error, msgspec.MsgspecError, RecursionError):
        raise InvalidRequest("the cursor is not one that a stream gave out", field="cursor") from None
    if any(not 0 <= seq <= U64_MAX for seq in seqs.values()):
        raise InvalidRequest("the cursor holds a position that no topic can have", field="cursor")
    return seqs


def names_digest(names: list[str]) -> bytes:
    return struct.pack("<Q", xxhash.xxh3_64_intdigest("\n".join(names).encode()))


def _decode_checkpoint(raw: bytes, names: list[str]) -> dict[str, int]:
    if raw[1:_HEAD_BYTES] != names_digest(names):
        raise ValueError("made for other topics")
    seqs: list[int] = []
    seq = shift = 0
    for byte in raw[_HEAD_BYTES:]:
        seq |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            seqs.append(seq)
            seq = shift = 0
    return dict(zip((RESTARTS, *names), seqs, strict=True))


def _leb128(number: int) -> bytes:
    piece = bytearray()
    while number > 0x7F:
        piece.append(number & 0x7F | 0x80)
        number >>= 7
    piece.append(number)
    return bytes(piece)


def _base64url(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")

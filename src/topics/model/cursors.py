"""Cursors: a position in a list or a stream as one opaque string, which a client sends back to continue from there.

Pages                     base64url, padded, of a JSON object: {"after": "name"}
Streams, up to 64 topics  base64url of a JSON map {"topic": seq, …}
Streams of more topics    base64url of | 0x01 | xxh3 of the sorted names, u64 | restarts | seqs in that order |, LEB128
                          a checkpoint of the session: a few bytes a topic, and nothing has to be kept on the server

`restarts` counts how often a topic of the session was replaced by a new one of the same name, whose seqs start again;
in a map it is the entry "~", which is not a valid topic name, and left out while it is 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
import xxhash

from topics.model.encoding import from_base64url, to_base64url
from topics.model.errors import InvalidRequest
from topics.model.requests.config import U64_MAX

T = TypeVar("T", bound=msgspec.Struct)

MAP_TOPICS_MAX = 64
CURSOR_CHARS_MAX = 64 * 1024
_CHECKPOINT = b"\x01"
RESTARTS = "~"
_HEAD_BYTES = 9
_map_decoder = msgspec.json.Decoder(dict[str, int])


class AfterName(msgspec.Struct):
    """A position in a list of names."""

    after: str


def page_cursor(place: msgspec.Struct) -> str:
    text = to_base64url(msgspec.json.encode(place)).decode()
    return text + "=" * (-len(text) % 4)


def place_of(cursor: str, kind: type[T]) -> T:
    """The position that the cursor of a page stands for."""
    try:
        return msgspec.json.decode(from_base64url(cursor), type=kind)
    except ValueError:
        raise _foreign() from None


def _foreign() -> InvalidRequest:
    return InvalidRequest("cursor is not one that this server returned", field="cursor")


class CursorWriter:
    """Ids of one stream: a piece for each topic; only the piece of a topic that moved is encoded again."""

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
        """The id for `name` at `seq`, with the other topics at their last positions."""
        self._pieces[name] = self._piece(name, seq)
        if self._sparse:
            return to_base64url(self._head + b"".join(self._pieces.values()))
        return to_base64url(b"{%b}" % b",".join(self._pieces.values()))

    def _piece(self, name: str, seq: int) -> bytes:
        return _leb128(seq) if self._sparse else b'"%b":%d' % (name.encode(), seq)


def single_id(name: str, seq: int) -> bytes:
    return to_base64url(b'{"%b":%d}' % (name.encode(), seq))


def positions_of(text: str, names: Iterable[str]) -> dict[str, int]:
    """Positions by topic. A checkpoint holds no names, so it is valid only for the set of topics it was made for."""
    try:
        if len(text) > CURSOR_CHARS_MAX:
            raise ValueError("too long")
        raw = from_base64url(text)
        sparse = raw[:1] == _CHECKPOINT
        seqs = _decode_checkpoint(raw, sorted(names)) if sparse else _map_decoder.decode(raw)
    except (ValueError, RecursionError):
        raise _foreign() from None
    if any(not 0 <= seq <= U64_MAX for seq in seqs.values()):
        raise InvalidRequest(f"cursor has a position that is not within 0 to {U64_MAX}", field="cursor")
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

"""Ops of transactions. Each is a small head in MessagePack, then the records it carries.

| code u8 | head_len u32 | head (MessagePack array) | Appended | Appended | … |

TxnStaged    | 48 | app id, app, version, stage, part, ts, shelves: (hidden topic id, topic name, length of Appended)
TxnFenced    | 49 | app id, app, fence, ts, owner or ""; app id 0: no app gets a token up to this one any more
TxnCommitted | 50 | app id, app, version, ts, moves: (topic name, topic id, hidden topic id or 0, first_seq, records,
             |    |     floor, length of Appended or 0), digest of the stages it named
TxnAborted   | 51 | app id, stages: (version, stage)
TxnForgotten | 52 | app id

An app has an id like a topic's, so that its ops are published in log order as those of a topic are.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgspec

from topics.engine.core.appended import Appended, DeferredBody, decode_appended
from topics.model.requests.batch import Batch

_PREFIX = struct.Struct("<BI")
_encode = msgspec.msgpack.Encoder().encode
STAGED, FENCED, COMMITTED, ABORTED, FORGOTTEN = range(48, 53)


class TxnOp:
    """An op of a transaction; `topic_id` is the id of its app."""

    __slots__ = ("topic_id",)

    topic_id: int

    def encode(self) -> bytes:
        raise NotImplementedError


class TxnStaged(TxnOp):
    """A part was staged: for each topic it goes to, its records in a hidden topic."""

    __slots__ = ("app", "part", "shelves", "stage", "ts", "version")

    def __init__(
        self,
        app_id: int,
        app: str,
        version: int,
        stage: str,
        part: int,
        ts: int,
        shelves: list[tuple[str, Appended]],
    ) -> None:
        self.topic_id = app_id
        self.app = app
        self.version = version
        self.stage = stage
        self.part = part
        self.ts = ts
        self.shelves = shelves

    def encode(self) -> bytes:
        bodies = [appended.encode() for _, appended in self.shelves]
        return _joined(STAGED, self._head(list(map(len, bodies))), bodies)

    def body(self) -> bytes | DeferredBody:
        """The same, to be written: large batches need not be there yet."""
        if all(appended.batch.parts is None for _, appended in self.shelves):
            return self.encode()
        bodies = [appended.pieces() for _, appended in self.shelves]
        head = self._head([len(DeferredBody(body)) for body in bodies])
        pieces: list[bytes | Batch] = [_joined(STAGED, head, [])]
        for body in bodies:
            pieces += body
        return DeferredBody(pieces)

    def _head(self, lengths: list[int]) -> tuple[object, ...]:
        shelves = [(name, length) for (name, _), length in zip(self.shelves, lengths, strict=True)]
        return (self.topic_id, self.app, self.version, self.stage, self.part, self.ts, shelves)


class TxnFenced(TxnOp):
    """The app has a new token; older ones are void."""

    __slots__ = ("app", "fence", "owner", "ts")

    def __init__(self, app_id: int, app: str, fence: int, ts: int, owner: str = "") -> None:
        self.topic_id = app_id
        self.app = app
        self.fence = fence
        self.ts = ts
        self.owner = owner

    def encode(self) -> bytes:
        return _joined(FENCED, (self.topic_id, self.app, self.fence, self.ts, self.owner), [])


class Move(NamedTuple):
    """What a commit adds to one topic: the blocks of a hidden topic, or records that the op carries."""

    name: str
    dest_id: int
    hidden_id: int
    first_seq: int
    records: int
    floor: int
    appended: Appended | None


class TxnCommitted(TxnOp):
    """A version of the app became visible in all its topics at once. Its stages, and older ones, are gone."""

    __slots__ = ("app", "moves", "named", "ts", "version")

    def __init__(self, app_id: int, app: str, version: int, ts: int, moves: list[Move], named: bytes = b"") -> None:
        self.topic_id = app_id
        self.app = app
        self.version = version
        self.ts = ts
        self.moves = moves
        self.named = named

    def encode(self) -> bytes:
        bodies = [b"" if move.appended is None else move.appended.encode() for move in self.moves]
        moves = [(*move[:-1], len(body)) for move, body in zip(self.moves, bodies, strict=True)]
        return _joined(COMMITTED, (self.topic_id, self.app, self.version, self.ts, moves, self.named), bodies)


class TxnAborted(TxnOp):
    """Stages were dropped: by their client, by expiry, or after a power failure."""

    __slots__ = ("stages",)

    def __init__(self, app_id: int, stages: list[tuple[int, str]]) -> None:
        self.topic_id = app_id
        self.stages = stages

    def encode(self) -> bytes:
        return _joined(ABORTED, (self.topic_id, self.stages), [])


class TxnForgotten(TxnOp):
    """The app is forgotten."""

    __slots__ = ()

    def __init__(self, app_id: int) -> None:
        self.topic_id = app_id

    def encode(self) -> bytes:
        return _joined(FORGOTTEN, (self.topic_id,), [])


def _joined(code: int, head: tuple[Any, ...], bodies: list[bytes]) -> bytes:
    text = _encode(head)
    return b"".join([_PREFIX.pack(code, len(text)), text, *bodies])


def _split(body: bytes) -> tuple[list[Any], int]:
    """The head, and where it ends."""
    at = _PREFIX.size + _PREFIX.unpack_from(body)[1]
    return msgspec.msgpack.decode(body[_PREFIX.size : at], type=list[Any]), at


def decode_staged(body: bytes) -> TxnStaged:
    (app_id, app, version, stage, part, ts, rows), at = _split(body)
    shelves: list[tuple[str, Appended]] = []
    for name, length in rows:
        shelves.append((name, decode_appended(body[at : at + length])))
        at += length
    return TxnStaged(app_id, app, version, stage, part, ts, shelves)


def decode_fenced(body: bytes) -> TxnFenced:
    app_id, app, fence, ts, owner = _split(body)[0]
    return TxnFenced(app_id, app, fence, ts, owner)


def decode_committed(body: bytes) -> TxnCommitted:
    # Logs of version 0.1 end before the digest.
    (app_id, app, version, ts, rows, *named), at = _split(body)
    moves: list[Move] = []
    for name, dest_id, hidden_id, first_seq, records, floor, length in rows:
        appended = decode_appended(body[at : at + length]) if length else None
        moves.append(Move(name, dest_id, hidden_id, first_seq, records, floor, appended))
        at += length
    return TxnCommitted(app_id, app, version, ts, moves, *named)


def decode_aborted(body: bytes) -> TxnAborted:
    app_id, stages = _split(body)[0]
    return TxnAborted(app_id, [(version, stage) for version, stage in stages])


def decode_forgotten(body: bytes) -> TxnForgotten:
    return TxnForgotten(_split(body)[0][0])

"""The protocol of terms: who may write to the log in the bucket, and who may no more.

A term is a row of slots, filled without gaps by create-only writes. Its owner fills them with pieces of the log. The
server that takes over fills the next slot with a closing, which names the owner of the next term:

    term 7   | piece | piece | piece | closing: term 8 is B's |  ✗ A's next piece is refused, for ever
    term 8   | piece | …

* A slot is created once, so of a late piece of A and the closing of B one is refused: both know which.
* B reads all slots up to its closing before it writes. A piece that was acknowledged is one of them.
* B looks at the lease of A after it has read the last of them (`lease`). So a slot that A fills after a renewal keeps B
  from closing the term for the whole lease.
* Two that take over write to the same slot. One of them has the next term, the other reads that first.
* A write without an answer is repeated with the same bytes. If the slot exists by then, reading it tells whose it is.

Nothing here does I/O: a protocol is a generator that yields a request and is sent its reply, or has the error thrown
in. `run` carries one out on a bucket; tests carry out many at once, in any order.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeVar

from topics.model.errors import TopicsError
from topics.storage.bucket.bucket import BucketError, Changed, Exists, Found, Listed, ObjectBucket
from topics.storage.bucket.slots import FIRST_TERM, LogPiece, Slot, TermClosing, decode_slot, encode_slot, slot_key

T = TypeVar("T")


class Create(NamedTuple):
    key: str
    data: bytes


class Swap(NamedTuple):
    key: str
    data: bytes
    etag: str | None


class Read(NamedTuple):
    key: str


class List(NamedTuple):
    prefix: str
    after: str


Request = Create | Swap | Read | List
Reply = Found | str | list[Listed] | None
Steps = Generator[Request, Reply, T]


class TakenOver(TopicsError):
    """Another server has taken over: nothing may be acknowledged here any more."""

    code = "not_primary"


def run(bucket: ObjectBucket, steps: Steps[T]) -> T:
    """Carry out a protocol, request by request."""
    try:
        request = next(steps)
        while True:
            try:
                reply = ask(bucket, request)
            except BucketError as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        return end.value


def ask(bucket: ObjectBucket, request: Request) -> Reply:
    match request:
        case Create(key, data):
            bucket.create(key, data)
            return None
        case Swap(key, data, etag):
            return bucket.swap(key, data, etag)
        case Read(key):
            return bucket.read(key)
        case List(prefix, after):
            return list(bucket.listing(prefix, after))


class Place(NamedTuple):
    """A slot of a term."""

    term: int
    slot: int

    @property
    def next(self) -> Place:
        return Place(self.term, self.slot + 1)


BEGINNING = Place(FIRST_TERM, 0)


def read_slot(place: Place) -> Steps[tuple[Slot, memoryview] | None]:
    """A slot, None if it is free."""
    key = slot_key(*place)
    found = yield Read(key)
    if found is None:
        return None
    assert isinstance(found, Found)
    return decode_slot(key, found.data)


def write_piece(piece: LogPiece, frames: bytes | memoryview) -> Steps[None]:
    """Fill a slot of one's own term; it is the log's for good when this returns. Raises TakenOver if it is closed.

    After Unreachable it is called again with the same piece, until it returns or raises TakenOver.
    """
    place = Place(piece.term, piece.slot)
    try:
        yield Create(slot_key(*place), encode_slot(piece, frames))
    except Exists:
        found = yield from read_slot(place)
        # A slot that exists does not go away. If it is not seen yet, the answer is as good as none.
        if found is None:
            raise Changed(f"slot {place.slot} of term {place.term} exists and cannot be read yet") from None
        head = found[0]
        if head.token != piece.token:
            owner = head.holder if isinstance(head, TermClosing) else "another run"
            raise TakenOver(
                f"{owner} has taken over with term {place.term + 1}: this server was primary in term {place.term}",
                term=place.term,
            ) from None


def take_term(holder: str, token: str, time_ms: int, place: Place) -> Steps[bool]:
    """Close a term at this slot, and nowhere else, and own the next one: for a server that has read all before it.

    It must have looked who is primary after it had read that. False: the slot is filled by another, with a piece or a
    closing that is to be read first. After Unreachable it is called again with the same token.
    """
    try:
        yield Create(slot_key(*place), encode_slot(TermClosing(place.term, place.slot, token, time_ms, holder)))
    except Exists:
        found = yield from read_slot(place)
        if found is None:
            raise Changed(f"slot {place.slot} of term {place.term} exists and cannot be read yet") from None
        return isinstance(found[0], TermClosing) and found[0].token == token
    return True

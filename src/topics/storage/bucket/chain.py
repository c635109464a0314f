"""From a snapshot in the bucket along the pieces of the log to its end, or to a moment before.

    snapshots/…position-term-time     a manifest: the files of the snapshot, and the slot where its log goes on
                     │
                     ▼
    log/term 7   | piece | piece | closing |      log/term 8   | piece | piece |  free: the end

Lists are only hints where to look: whether a slot is filled is decided by reading it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest

from topics.model.errors import DamagedData
from topics.storage.bucket.bucket import Found, ReadableBucket
from topics.storage.bucket.slots import LOG, SNAPSHOTS, LogPiece, Slot, TermClosing, decode_slot, slot_key, term_prefix
from topics.storage.bucket.terms import BEGINNING, Place

MANIFEST_FORMAT = 1
# Slots that are read at once.
READ_AHEAD = 8


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a data directory, by its path there, and the object that holds it."""

    name: str
    key: str
    bytes: int


class SnapshotManifest(msgspec.Struct, frozen=True):
    """A snapshot in the bucket. The log after it begins in `slot` of `term`, or before it."""

    format: int
    term: int
    slot: int
    # who has that term
    holder: str
    position: int
    time_ms: int
    made_by: str
    files: list[StoredFile]

    @property
    def place(self) -> Place:
        return Place(self.term, self.slot)

    @property
    def key(self) -> str:
        return f"{SNAPSHOTS}{self.position:020d}-{self.term:010d}-{self.time_ms:015d}"


class _Sealed(msgspec.Struct):
    manifest: msgspec.Raw
    xxh3: str


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    text = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(msgspec.Raw(text), xxh3_64_hexdigest(text)))


def read_manifest(bucket: ReadableBucket, key: str) -> SnapshotManifest:
    found = bucket.read(key)
    try:
        if found is not None:
            sealed = msgspec.json.decode(found.data, type=_Sealed)
            if xxh3_64_hexdigest(bytes(sealed.manifest)) == sealed.xxh3:
                manifest = msgspec.json.decode(sealed.manifest, type=SnapshotManifest)
                if manifest.format == MANIFEST_FORMAT:
                    return manifest
                raise DamagedData(f"{key} has format {manifest.format}, this program reads {MANIFEST_FORMAT}", file=key)
    except msgspec.MsgspecError:
        pass
    raise DamagedData(f"the object {key} of the bucket is damaged or missing", file=key, offset=0)


class SnapshotMoment(NamedTuple):
    """When a snapshot was made, as its key tells."""

    key: str
    position: int
    term: int
    time_ms: int
    # by the clock of the bucket
    modified_ms: int


def snapshots_in(bucket: ReadableBucket, after: str = "") -> list[SnapshotMoment]:
    """The snapshots in the bucket, oldest first; those with keys after this one only.

    Terms come before positions: a server that was taken over may have had a longer log, which nobody continues.
    """
    found: list[SnapshotMoment] = []
    for listed in bucket.listing(SNAPSHOTS, after):
        numbers = listed.key.removeprefix(SNAPSHOTS).split("-")
        if len(numbers) == 3 and all(number.isdecimal() for number in numbers):
            position, term, time_ms = map(int, numbers)
            found.append(SnapshotMoment(listed.key, position, term, time_ms, listed.modified_ms))
    return sorted(found, key=lambda moment: (moment.term, moment.position, moment.time_ms))


class End(NamedTuple):
    """Where a walk along the log has ended."""

    # the first slot that was not used: free, the closing of the last term, or after the wanted moment
    place: Place
    # who has the term of that slot, "" if nobody ever had one
    owner: str
    # the end of the log there
    position: int
    # when its last piece was cut, 0 if there is none
    time_ms: int
    # False: there is a gap, and what comes after it needs a later snapshot
    whole: bool


Take = Callable[[LogPiece, memoryview], object]


def walk(
    bucket: ReadableBucket,
    manifest: SnapshotManifest | None,
    *,
    after: End | None = None,
    until: Place | None = None,
    at_ms: int | None = None,
    take: Take | None = None,
    listed_only: bool = False,
) -> End:
    """Read the log after a snapshot, or from its beginning; `take` is called with each piece in order.

    It begins where an earlier walk has ended, if `after` is given. It ends before the slot `until`, before a piece that
    was cut after `at_ms`, or at the first free slot. With `listed_only` it may end before that, at the first slot that
    was not listed when it came to the term: a primary that writes all the time would lead it on and on.
    """
    place, owner, position, time_ms, _ = after or _beginning(manifest)
    with ThreadPoolExecutor(READ_AHEAD, "topics-bucket-read") as readers:
        ahead = _ReadAhead(bucket, readers)
        while place != until and not (listed_only and ahead.is_beyond(place)):
            found = ahead.read(place)
            if found is None:
                break
            head, frames = found
            if isinstance(head, TermClosing):
                place, owner = Place(place.term + 1, 0), head.holder
                continue
            if at_ms is not None and head.time_ms > at_ms:
                break
            if head.from_position != position and not _leads_to(head, manifest, position):
                end = _end_of_gap(ahead, place, until, owner, listed_only=listed_only)
                return End(end.place, end.owner, position, time_ms, whole=False)
            if take is not None:
                take(head, frames)
            position, time_ms, place = max(position, head.to_position), head.time_ms, place.next
    return End(place, owner, position, time_ms, whole=True)


def _beginning(manifest: SnapshotManifest | None) -> End:
    if manifest is None:
        return End(BEGINNING, "", 0, 0, whole=True)
    return End(manifest.place, manifest.holder, manifest.position, manifest.time_ms, whole=True)


def _leads_to(piece: LogPiece, manifest: SnapshotManifest | None, position: int) -> bool:
    """Whether it is a piece from before the snapshot. In a later term it would be of a server that has another log."""
    if manifest is None or position != manifest.position:
        return False
    return piece.from_position < position and piece.term == manifest.term


def _end_of_gap(ahead: _ReadAhead, place: Place, until: Place | None, owner: str, *, listed_only: bool) -> End:
    """Where the walk ends; nothing from here on can be used."""
    while place != until and not (listed_only and ahead.is_beyond(place)):
        found = ahead.read(place)
        if found is None:
            break
        if isinstance(found[0], TermClosing):
            place, owner = Place(place.term + 1, 0), found[0].holder
        else:
            place = place.next
    return End(place, owner, 0, 0, whole=False)


def check_end(bucket: ReadableBucket, place: Place) -> None:
    """Slots have no holes: one after the end means that snapshots or slots are missing, not that the log is new."""
    later = next(bucket.listing(LOG, slot_key(*place)), None)
    if later is not None and bucket.read(slot_key(*place)) is None:
        raise DamagedData(
            f"the bucket has {later.key}, but neither {slot_key(*place)} nor a snapshot after it",
            file=slot_key(*place),
        )


class _ReadAhead:
    """Reads slots in order, several at once as far as a list tells that they exist."""

    def __init__(self, bucket: ReadableBucket, readers: ThreadPoolExecutor) -> None:
        self._bucket = bucket
        self._readers = readers
        self._term: int = -1
        # The first slot of the term that is not listed.
        self._end = 0
        self._listed: deque[Place] = deque()
        self._reading: dict[Place, Future[Found | None]] = {}

    def is_beyond(self, place: Place) -> bool:
        """Whether a slot comes after those that are listed."""
        self._list(place)
        return place.slot >= self._end

    def _list(self, place: Place) -> None:
        """The slots of a term from this one on, once."""
        if place.term != self._term:
            self._term = place.term
            before = slot_key(place.term, place.slot - 1) if place.slot else ""
            self._end = place.slot + sum(1 for _ in self._bucket.listing(term_prefix(place.term), before))
            self._listed = deque(Place(place.term, slot) for slot in range(place.slot, self._end))

    def read(self, place: Place) -> tuple[Slot, memoryview] | None:
        self._list(place)
        while self._listed and len(self._reading) < READ_AHEAD:
            ahead = self._listed.popleft()
            self._reading[ahead] = self._readers.submit(self._bucket.read, slot_key(*ahead))
        reading = self._reading.pop(place, None)
        found = reading.result() if reading is not None else self._bucket.read(slot_key(*place))
        return None if found is None else decode_slot(slot_key(*place), found.data)

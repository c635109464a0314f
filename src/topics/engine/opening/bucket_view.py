"""The log in a bucket, folded without its server: the newest snapshot and the pieces after it, and what comes later.

    opened    manifest ─▶ snapshot ─▶ piece, piece, closing, piece ─▶ first free slot
    advance                                                          piece, piece ─▶ first free slot
              a gap, slots that were removed, or much in memory: opened anew, with a newer manifest

Nothing is written. Slots are filled once and in order, so a view is the state at some moment of the primary; records
that are in no pack of the manifest are in memory.
"""

from __future__ import annotations

import logging
import time

from topics.engine.opening.composition import OPS, new_state
from topics.engine.opening.inspection import load_snapshot
from topics.model.errors import DamagedData
from topics.model.settings import Settings
from topics.storage.bucket.bucket import ReadableBucket
from topics.storage.bucket.chain import SnapshotMoment, check_end, read_manifest, snapshots_in, walk
from topics.storage.bucket.in_place.snapshot_disk import SnapshotDisk
from topics.storage.bucket.restoring import NotInBucket
from topics.storage.bucket.slots import LogPiece, slot_key
from topics.storage.bucket.terms import BEGINNING
from topics.storage.pack import Packs
from topics.storage.snapshot import Snapshots
from topics.storage.wal.log_scan import read_window

logger = logging.getLogger("topics.bucket")

SHARD = "shard-00"
# So much of the log is folded before a newer snapshot is used, which has its records in packs.
FOLDED_BYTES_MAX = 64 << 20
# How often the list of snapshots is looked at while the log goes on without a gap.
LIST_S = 30.0


class BucketView:
    """Used by one thread. The state is that of a replay: nothing in it changes but by `advance`."""

    def __init__(self, bucket: ReadableBucket) -> None:
        self._bucket = bucket
        newest = _newest(bucket)
        self._manifest = read_manifest(bucket, newest.key) if newest is not None else None
        self._files = self._manifest.files if self._manifest is not None else []
        self._position = self._manifest.position if self._manifest is not None else 0
        self._folded_bytes = 0
        self._listed_s = time.monotonic()
        disk = SnapshotDisk(bucket, self._files)
        self.packs = Packs(disk, f"{SHARD}/packs")
        self.state = new_state(Settings(), self.packs)
        _, carried = load_snapshot(self.state, self.packs, Snapshots(disk, f"{SHARD}/snapshots"))
        disk.forget()
        for position, body in carried:
            self.state.apply(OPS.decode(body), position)
        self._end = walk(bucket, self._manifest, take=self._fold)
        if self._end.place == BEGINNING:
            raise NotInBucket("the bucket holds no log below this prefix")
        check_end(bucket, self._end.place)
        self._note_gap()

    def close(self) -> None:
        self.packs.close()

    def keys(self) -> dict[int, str]:
        """The objects that hold the packs, by number."""
        return {number: file.key for file in self._files if (number := _pack_number(file.name)) is not None}

    def advance(self) -> bool:
        """Fold what has come since; False: that needs a new view."""
        end = self._end
        try:
            if end.whole and self._bucket.read(slot_key(*end.place)) is not None:
                self._end = walk(self._bucket, self._manifest, after=end, take=self._fold)
                self._note_gap()
        except DamagedData as damage:
            # What the fold needs may have been replaced, or it is damage: that is found out by a new view.
            logger.info("the bucket is read from its newest snapshot: %s", damage.message)
            return False
        return not self._is_left_behind()

    def _is_left_behind(self) -> bool:
        """Whether there is a newer snapshot, and a reason to use it."""
        if self._end.whole and time.monotonic() - self._listed_s < LIST_S:
            return False
        self._listed_s = time.monotonic()
        used = self._manifest.key if self._manifest is not None else ""
        # Those of one log have keys in its order; after a gap it may be the log of another server, which is shorter.
        newest = _newest(self._bucket, used if self._end.whole else "")
        if newest is None or newest.key == used:
            return False
        # The slots up to there were removed, if the view has not come that far.
        is_ahead = (newest.term, newest.position) > (self._end.place.term, self._end.position)
        return is_ahead or not self._end.whole or self._folded_bytes > FOLDED_BYTES_MAX

    def _fold(self, piece: LogPiece, frames: memoryview) -> None:
        found, length = read_window(bytes(frames), piece.from_position, piece.salt)
        if length != len(frames):
            key = slot_key(piece.term, piece.slot)
            raise DamagedData(f"the object {key} of the bucket is damaged: its frames end at {length}", file=key)
        for position, body in found:
            # A piece may begin before the snapshot, and after an interruption it is read again.
            if position > self._position:
                self.state.apply(OPS.decode(body), position)
                self._position = position
        self._folded_bytes += length

    def _note_gap(self) -> None:
        if not self._end.whole:
            logger.warning(
                "the log in the bucket has a gap after position %d, and there is no snapshot after it yet: "
                "records after that are not seen before there is one",
                self._end.position,
            )


def _newest(bucket: ReadableBucket, after: str = "") -> SnapshotMoment | None:
    moments = snapshots_in(bucket, after)
    return moments[-1] if moments else None


def _pack_number(name: str) -> int | None:
    folder, _, file = name.rpartition("/")
    return int(file.partition(".")[0]) if folder == f"{SHARD}/packs" else None

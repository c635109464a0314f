"""What is removed from a bucket, and what never is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bucket.faulty import MemoryBucket
from topics.storage.bucket.bucket import Found, Listed
from topics.storage.bucket.chain import (
    MANIFEST_FORMAT,
    SnapshotManifest,
    StoredFile,
    encode_manifest,
    snapshots_in,
    walk,
)
from topics.storage.bucket.keeping import Keeping, clean
from topics.storage.bucket.restoring import choose
from topics.storage.bucket.slots import LogPiece, slot_key
from topics.storage.bucket.terms import BEGINNING, Place, TakenOver, run, take_term, write_piece
from topics.storage.disk import Buffer

DAY_MS = 86_400_000
# How far the clock of the bucket is behind.
BEHIND_MS = 5 * DAY_MS


class DatedBucket(MemoryBucket):
    """Objects have the time when they were made, by a clock of the bucket's own; notes which ones are read."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.reads: list[str] = []
        self._made: dict[str, int] = {}

    def create(self, key: str, data: Buffer) -> None:
        super().create(key, data)
        self._made[key] = self.now_ms

    def read(self, key: str) -> Found | None:
        self.reads.append(key)
        return super().read(key)

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        for one in super().listing(prefix, after):
            yield one._replace(modified_ms=self._made[one.key])


def renew() -> None:
    """The lease lasts."""


def filled() -> tuple[DatedBucket, list[SnapshotManifest]]:
    """Two terms; in each, a snapshot every two days with a file of its own and one that all share."""
    bucket, manifests = DatedBucket(), list[SnapshotManifest]()
    position = 0
    for term in (1, 2):
        place = BEGINNING if term == 1 else Place(1, 4)
        assert run(bucket, take_term(f"holder {term}", f"token {term}", 0, place))
        for slot in range(4):
            time_ms = (10 * term + 2 * slot) * DAY_MS
            bucket.now_ms = time_ms - BEHIND_MS
            piece = LogPiece(term, slot, f"token {term}", time_ms, position, position + 10, 0)
            run(bucket, write_piece(piece, b"0123456789"))
            files = [StoredFile("shared", "files/shared", 1), StoredFile("own", f"files/{term}-{slot}", 1)]
            for file in files:
                bucket.objects.pop(file.key, None)
                bucket.create(file.key, b"x")
            manifests.append(
                SnapshotManifest(MANIFEST_FORMAT, term, slot, f"holder {term}", position, piece.time_ms, "test", files)
            )
            bucket.create(manifests[-1].key, encode_manifest(manifests[-1]))
            position += 10
    return bucket, manifests


def test_what_is_older_than_the_kept_time_is_removed_and_the_rest_can_be_restored() -> None:
    bucket, manifests = filled()
    bucket.create("files/about-to-be-named", b"x")
    bucket.reads.clear()
    assert clean(bucket, manifests[-1], 4 * DAY_MS, renew) > 0
    assert bucket.reads == [manifests[-3].key, manifests[-1].key], "not every snapshot that is kept"
    kept = snapshots_in(bucket)
    assert [moment.key for moment in kept] == [manifest.key for manifest in manifests[-3:]]
    files = {one.key for one in bucket.listing("files/")}
    assert files == {"files/shared", "files/2-1", "files/2-2", "files/2-3", "files/about-to-be-named"}
    for manifest in manifests[-3:]:
        assert walk(bucket, manifest).position == 80
    assert clean(bucket, manifests[-1], 4 * DAY_MS, renew) == 0


def test_a_file_that_the_directory_needs_stays_whatever_the_manifests_say() -> None:
    bucket, manifests = filled()
    bucket.create("files/about-to-be-named", b"x")
    clean(bucket, manifests[-1], 4 * DAY_MS, renew, ["files/1-0"])
    assert {one.key for one in bucket.listing("files/")} >= {"files/1-0", "files/shared"}
    assert "files/1-1" not in {one.key for one in bucket.listing("files/")}


def test_closings_stay_so_that_no_server_that_slept_can_write_again() -> None:
    bucket, manifests = filled()
    clean(bucket, manifests[-1], 1, renew)
    slots = [one.key for one in bucket.listing("log/")]
    assert slots == [slot_key(0, 0), slot_key(1, 4), slot_key(2, 2), slot_key(2, 3)]


def test_nothing_is_removed_while_nothing_is_old_enough() -> None:
    bucket, manifests = filled()
    before = dict(bucket.objects)
    assert clean(bucket, manifests[-1], 30 * DAY_MS, renew) == 0
    assert bucket.objects == before


def test_a_walk_stops_at_a_gap_and_says_so() -> None:
    bucket, manifests = filled()
    run(bucket, write_piece(LogPiece(2, 4, "token 2", 30 * DAY_MS, 500, 510, 0), b"0123456789"))
    end = walk(bucket, manifests[-1])
    assert (end.position, end.whole, end.place, end.owner) == (80, False, Place(2, 5), "holder 2")
    assert walk(bucket, None, at_ms=14 * DAY_MS).position == 30


def test_the_lease_is_renewed_while_objects_are_removed_and_a_lost_one_ends_that() -> None:
    bucket, manifests = filled()

    def taken_over() -> None:
        raise TakenOver("another server is primary", term=3)

    with pytest.raises(TakenOver):
        Keeping(bucket, 4 * DAY_MS, taken_over).clean(manifests[-1])


def test_the_newest_snapshot_is_one_of_the_newest_term() -> None:
    """A server that was taken over had a longer log, and its snapshot arrives late."""
    bucket, manifests = filled()
    late = SnapshotManifest(MANIFEST_FORMAT, 1, 4, "holder 1", 500, 21 * DAY_MS, "test", [])
    bucket.create(late.key, encode_manifest(late))
    moments = snapshots_in(bucket)
    assert moments[-1].key == manifests[-1].key
    chosen = choose(moments, 22 * DAY_MS)
    assert chosen is not None
    assert chosen.key == manifests[-3].key

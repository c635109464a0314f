"""What the bucket keeps: enough to go back `keep_ms`, and every closing of a term.

        oldest ◀─────── removed ───────▶│◀──────────── keep_ms ────────────▶ now
    snapshots        ✗      ✗      ✗    S           S           S        S
    pieces           ✗ ✗ ✗ ✗ ✗ ✗ ✗ ✗ ✗ ✗ from the slot that S names, all of them

A closing is never removed: it refuses the next piece of a server that has slept since, however long that was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from itertools import takewhile

from topics.model.errors import DamagedData, TopicsError
from topics.storage.bucket.bucket import Listed, ObjectBucket
from topics.storage.bucket.chain import SnapshotManifest, SnapshotMoment, read_manifest, snapshots_in
from topics.storage.bucket.slots import FILES, LOG, parse_slot_key, slot_key
from topics.storage.bucket.terms import TakenOver

logger = logging.getLogger("topics.bucket")

# A list of everything costs requests.
EVERY_MS = 3_600_000
# A file that no manifest names may belong to one that is about to be written.
YOUNG_MS = 86_400_000
DELETES_AT_ONCE = 100


class Keeping:
    """Removes what is too old, at most once an hour; called by the shipping thread."""

    def __init__(
        self,
        bucket: ObjectBucket,
        keep_ms: int,
        renew: Callable[[], None],
        needed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._bucket = bucket
        # objects that are needed whatever the manifests say
        self._needed = needed
        self._keep_ms = keep_ms
        self._renew = renew
        self._cleaned_ms = 0

    def clean(self, newest: SnapshotManifest) -> None:
        if newest.time_ms - self._cleaned_ms < min(EVERY_MS, self._keep_ms):
            return
        self._cleaned_ms = newest.time_ms
        try:
            removed = clean(self._bucket, newest, self._keep_ms, self._renew, self._needed())
        except TakenOver:
            raise
        except TopicsError as error:
            logger.warning("what the bucket need not keep stays for now: %s", error.message)
        else:
            if removed:
                logger.info("%d objects older than the kept time were removed from the bucket", removed)


def oldest_needed(moments: list[SnapshotMoment], before_ms: int) -> SnapshotMoment | None:
    """The newest snapshot from before a moment: with it, that moment can still be restored."""
    old = [moment for moment in moments if moment.time_ms <= before_ms]
    return old[-1] if old else None


def stored_files(bucket: ObjectBucket, renew: Callable[[], None]) -> set[str]:
    """The files of the newest snapshot that the bucket still has: another snapshot need not send them again.

    Only what a manifest names stays in the bucket; others may just be removed.
    """
    moments = snapshots_in(bucket)
    if not moments:
        return set()
    try:
        named = read_manifest(bucket, moments[-1].key).files
    except DamagedData as error:
        logger.warning("all files of the next snapshot are sent: %s", error.message)
        return set()
    sizes = {listed.key: listed.size_bytes for listed in _listing(bucket, FILES, renew)}
    return {file.key for file in named if sizes.get(file.key) == file.bytes}


def clean(
    bucket: ObjectBucket,
    newest: SnapshotManifest,
    keep_ms: int,
    renew: Callable[[], None],
    needed: Collection[str] = (),
) -> int:
    """Remove what is not needed to go back `keep_ms` from the newest snapshot; how many objects.

    It can take long, so `renew` is called again and again: the lease must not end meanwhile.
    """
    moments = snapshots_in(bucket)
    oldest = oldest_needed(moments, newest.time_ms - keep_ms)
    if oldest is None:
        return 0
    first, last = read_manifest(bucket, oldest.key), read_manifest(bucket, moments[-1].key)
    surplus = [moment.key for moment in moments[: moments.index(oldest)]]
    # First the snapshots: one that is listed must have its files and its log.
    _delete(bucket, surplus, renew)
    first_key = slot_key(*first.place)
    listed = takewhile(lambda slot: slot.key < first_key, _listing(bucket, LOG, renew))
    slots = old_slots([slot.key for slot in listed], first_key)
    _delete(bucket, slots, renew)
    # Thousands of snapshots may be kept. A file that only those between the first and the last one name was uploaded
    # after the first: no snapshot comes back to a pack that an earlier one has left. Both times are the bucket's.
    named = {file.key for manifest in (first, last, newest) for file in manifest.files}.union(needed)
    before_ms = oldest.modified_ms - YOUNG_MS
    files = [
        file.key for file in _listing(bucket, FILES, renew) if file.key not in named and file.modified_ms < before_ms
    ]
    _delete(bucket, files, renew)
    return len(surplus) + len(slots) + len(files)


def _listing(bucket: ObjectBucket, prefix: str, renew: Callable[[], None]) -> Iterator[Listed]:
    for listed in bucket.listing(prefix):
        renew()
        yield listed


def _delete(bucket: ObjectBucket, keys: list[str], renew: Callable[[], None]) -> None:
    for start in range(0, len(keys), DELETES_AT_ONCE):
        renew()
        bucket.delete(keys[start : start + DELETES_AT_ONCE])


def old_slots(keys: list[str], first_key: str) -> list[str]:
    """The pieces before a slot. The last slot of an earlier term is its closing, or that is not listed; it stays."""
    first_term, _ = parse_slot_key(first_key) or (0, 0)
    closings: dict[int, str] = {}
    for key in keys:
        term, _ = parse_slot_key(key) or (first_term, 0)
        if term < first_term:
            closings[term] = max(closings.get(term, ""), key)
    return [key for key in keys if key < first_key and key not in closings.values()]

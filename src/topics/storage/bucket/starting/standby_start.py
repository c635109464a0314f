"""The start of a standby: its directory is filled from the bucket, and what it had before is removed or set aside.

empty directory               filled with the newest snapshot and the log after it, or begun if there is none
of a standby                  emptied first: everything in it came from the bucket; refused if that was another one
of a server that was primary  set aside first, unless it stopped with everything in this bucket
of a server without a bucket  refused
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import structs

from topics.model.errors import DataDirIncompatible
from topics.storage.bucket.bucket import ObjectBucket
from topics.storage.bucket.lease import Watched, read_primary
from topics.storage.bucket.restoring import NotInBucket, Restored, restore_into
from topics.storage.bucket.starting.connecting import check, connect
from topics.storage.bucket.starting.identity import KnownBucket, identify
from topics.storage.bucket.starting.joining import (
    NOTE,
    Note,
    check_copy,
    is_of_another,
    new_holder,
    read_note,
    write_note,
)
from topics.storage.bucket.starting.patience import Patience, PatientBucket
from topics.storage.bucket.terms import BEGINNING, Place, run
from topics.storage.directory import DataDirectory, Meta
from topics.storage.disk import Disk

logger = logging.getLogger("topics.bucket")

# How often a standby looks for the snapshot that leads over a gap.
GAP_PAUSE_S = 1.0
REMOVED_MAX = 5


class StartingPoint(NamedTuple):
    """Where a standby goes on: the first slot that it has not read, who has its term, and the log before it.

    It has everything that was in the bucket at `known_s`, by the clock of the start. Not `whole`: what the bucket has
    after that log is of no use, because its primary died before a snapshot led there.
    """

    holder: str
    place: Place
    owner: str
    position: int
    # when its last piece was cut; 0: there is none
    time_ms: int
    known_s: float
    whole: bool = True


def begin_standby(
    url: str,
    environ: Mapping[str, str],
    disk: Disk,
    directory: DataDirectory,
    *,
    now_ms: Callable[[], int],
    patience: Patience,
) -> tuple[ObjectBucket, StartingPoint]:
    """Check the bucket, and fill the directory from it. Blocks."""
    bucket = connect(url, environ)
    note = read_note(disk, directory.path)
    if note is not None and note.bucket is not None and note.bucket.url == url.rstrip("/"):
        # It was there before: that it is away for now is no mistake in the settings.
        patience = patience._replace(for_ever=True)
    check(bucket, url, patience)
    # Before anything is removed here: it may be the only copy.
    known = patience.ask(lambda: identify(bucket, url, note.bucket if note is not None else None, directory.path))
    _make_vacant(directory, note, known, now_ms())
    holder = new_holder()
    # Before there is any data: whatever starts here later knows that none of it is its own.
    write_note(disk, directory.path, Note(holder, standby=True, bucket=known))
    gap = _Gap(bucket, patience)
    restored, known_s = _restored(PatientBucket(bucket, patience), disk, directory, gap, patience.clock)
    if restored is None:
        directory.begin()
        disk.remove_tree(directory.restoring_path)
        return bucket, StartingPoint(holder, BEGINNING, "", 0, 0, known_s)
    directory.fill(Meta(disk.boot_id(), False, 0))
    place, owner, position, time_ms = restored.place, restored.owner, restored.position, restored.time_ms
    return bucket, StartingPoint(holder, place, owner, position, time_ms, known_s, restored.whole)


def _make_vacant(directory: DataDirectory, note: Note | None, known: KnownBucket, now_ms: int) -> None:
    if directory.vacant:
        return
    if note is None:
        raise DataDirIncompatible(
            f"{directory.path} has data of a server without a bucket, which a standby would not keep; start the "
            "standby on an empty directory",
            directory=directory.path,
        )
    if note.standby:
        check_copy(note, known, directory.path)
    if note.standby or (note.complete == directory.runs_noted and not is_of_another(note, known)):
        logger.info("there is nothing here that the bucket does not have: the directory is filled anew")
        directory.empty()
        return
    when = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = directory.set_aside(f"aside-{when}", NOTE)
    logger.warning(
        "this directory was a primary's, and may have writes that the bucket does not have: it is set aside in %s, "
        "which a server with a bucket of its own can serve (TOPICS_BUCKET=file:///an/empty/directory); remove it when "
        "you do not need it",
        aside,
    )


def _restored(
    bucket: PatientBucket, disk: Disk, directory: DataDirectory, gap: _Gap, clock: Callable[[], float]
) -> tuple[Restored | None, float]:
    """What the bucket had, None if nothing, and when that was: the files may take long after it."""
    removed = 0
    while True:
        directory.clear_unfinished()
        known_s = clock()
        try:
            # What comes after that is followed.
            restored = restore_into(
                bucket, disk, directory.restoring_path, whole_only=not gap.stays, listed_only=not gap.stays
            )
        except NotInBucket as error:
            if "key" not in error.detail:
                return None, known_s
            # The primary has removed that snapshot since it was listed: there is a newer one.
            removed += 1
            if removed == REMOVED_MAX:
                raise
        else:
            if restored.whole or gap.stays:
                return restored, known_s
            gap.look(restored)
        gap.pause()


class _Gap:
    """A gap in the log: its primary ends it with a snapshot, or has died before and leaves what comes before it."""

    def __init__(self, bucket: ObjectBucket, patience: Patience) -> None:
        self._bucket, self._ask = bucket, patience.ask
        self._pause, self._clock = patience.pause, patience.clock
        self._watched = Watched()
        self._said = self._has_nothing = False
        # No primary ends it: the log before it is what the next one goes on with.
        self.stays = False

    def pause(self) -> None:
        self._pause(0.0 if self.stays else GAP_PAUSE_S)

    def look(self, found: Restored) -> None:
        """Whether somebody may end the gap; what is found of the log before it."""
        if not self._said:
            logger.warning("the log in the bucket has a gap: waiting for the primary's next snapshot")
            self._said = True
        sent_s = self._clock()
        seen = self._ask(lambda: run(self._bucket, read_primary()))
        if seen is not None and seen.primary.term < found.place.term:
            # The one that has the term since has not said so yet.
            seen = structs.replace(seen, primary=structs.replace(seen.primary, released=False))
        if self._watched.look(seen, sent_s * 1000, self._clock() * 1000):
            self._has_nothing = False
        elif found.time_ms:
            logger.warning("no primary is there to end the gap: this standby goes on with the log before it")
            self.stays = True
        elif not self._has_nothing:
            logger.error(
                "%s was primary last, and is gone before it had sent its first snapshot: start it again on its "
                "directory, or start a server without --standby to begin with nothing",
                found.owner,
            )
            self._has_nothing = True

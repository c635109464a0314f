"""The start of a server with a bucket: wait for the lease of another, own a term, and find out where the log goes on.

empty directory, empty bucket      begin
empty directory, log in the bucket restore it, up to the end of the term that was closed for that
the directory that had the last term    go on after what the bucket has
any other directory                refused: its log is not the one in the bucket
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from topics.model.errors import DamagedData, DataDirIncompatible
from topics.storage.bucket.bucket import ObjectBucket
from topics.storage.bucket.chain import End, check_end, read_manifest, snapshots_in, walk
from topics.storage.bucket.lease import Primary, Seen, Watched, announce, read_primary
from topics.storage.bucket.restoring import Restored, restore_into
from topics.storage.bucket.starting.connecting import check, connect
from topics.storage.bucket.starting.identity import KnownBucket, identify
from topics.storage.bucket.starting.patience import Patience, PatientBucket
from topics.storage.bucket.terms import Steps, run, take_term
from topics.storage.directory import DataDirectory, Meta
from topics.storage.disk import Disk, read_file, replace_file

logger = logging.getLogger("topics.bucket")

T = TypeVar("T")

NOTE = "bucket.json"


class InUse(DataDirIncompatible):
    """Another server is primary, and its lease lives."""


class Note(msgspec.Struct, frozen=True):
    """What a data directory knows of its bucket: the name under which it holds terms there."""

    holder: str
    # It is a standby's: everything in it came from the bucket.
    standby: bool = False
    # Its server has ended with everything in the bucket, when the directory's `runs_noted` was this; 0: it has not.
    complete: int = 0
    # None: an earlier version did not note it.
    bucket: KnownBucket | None = None


class Joined(NamedTuple):
    """A term of one's own. The log in the bucket ends at `position`; `whole`: it leads there from a snapshot.

    Its last piece was cut at `time_ms`; 0: there is none.
    """

    term: int
    holder: str
    token: str
    position: int
    whole: bool
    seen: Seen
    restored: Restored | None
    time_ms: int


class Directory(NamedTuple):
    """What the bucket is compared with: the holder that the directory has noted, None if it never had a bucket."""

    path: str
    holder: str | None
    # without any data: it may be filled
    vacant: bool
    bucket: KnownBucket | None = None


def read_note(disk: Disk, path: str) -> Note | None:
    try:
        return msgspec.json.decode(read_file(disk, os.path.join(path, NOTE)), type=Note)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise DataDirIncompatible(
            f"{path}/{NOTE} is damaged, so this may not be the log that is in the bucket; move the directory away and "
            "start on an empty one, which is then restored from the bucket",
            directory=path,
        ) from None


def write_note(disk: Disk, path: str, note: Note) -> None:
    replace_file(disk, os.path.join(path, NOTE), msgspec.json.encode(note))


def is_of_another(note: Note, known: KnownBucket) -> bool:
    """Whether the directory's log was in another bucket before: this one need not have any of it."""
    return note.bucket is not None and note.bucket.identity != known.identity


def check_copy(note: Note, known: KnownBucket, path: str) -> None:
    """Before a standby's copy is removed; it may be the only one."""
    if note.bucket is not None and is_of_another(note, known):
        raise DataDirIncompatible(
            f"{path} is a standby's copy of the log in {note.bucket.url}, and {known.url} is another bucket: start "
            "with that one, or move the directory away and start on an empty one",
            directory=path,
            setting="bucket",
        )


def new_holder() -> str:
    return f"{os.uname().nodename}-{secrets.token_hex(6)}"


class Joining:
    """One start. Every call blocks; all of them run in one thread that is not the owner's."""

    def __init__(
        self,
        bucket: ObjectBucket,
        disk: Disk,
        directory: Directory,
        *,
        url: str,
        lease_ms: int,
        now_ms: Callable[[], int],
        local_bytes: int = 0,
        patience: Patience,
    ) -> None:
        self._bucket = bucket
        self._disk = disk
        self._directory = directory
        self._url = url
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self._local_bytes = local_bytes
        self._reads = PatientBucket(bucket, patience)
        self._pause, self._ask = patience.pause, patience.ask
        self._holder = directory.holder or new_holder()
        self._token = secrets.token_hex(16)

    def join(self, restore_to: str) -> Joined:
        """Own a term; a vacant directory gets its data in `restore_to`."""
        while True:
            seen = self._wait_for_lease()
            end = self._find_end()
            if self._owns_next_term(seen, end):
                break
        term, position, whole, time_ms, restored = end.place.term + 1, end.position, end.whole, end.time_ms, None
        if self._directory.vacant and end.time_ms:
            restored = restore_into(
                self._reads, self._disk, restore_to, until=end.place, local_bytes_max=self._local_bytes
            )
            position, whole = restored.position, restored.whole
            before = seen.primary if seen is not None else None
            if before is not None and (before.term + 1, before.end_position) == (term, position):
                # It stopped with everything in the bucket, so no reader has seen anything else.
                restored = restored._replace(time_ms=0)
        mine = Primary(term, self._holder, self._token, self._url, self._lease_ms)
        announced = self._repeated(lambda: announce(mine, seen))
        if announced.must_wait:
            # Another server has started at the same time, or the answer was lost: its lease ends within this time.
            self._pause(self._lease_ms / 1000)
        after = f", after {end.owner}" if end.owner not in ("", self._holder) else ""
        logger.info("primary in term %d%s, as %s", term, after, self._holder)
        return Joined(term, self._holder, self._token, position, whole, announced, restored, time_ms)

    def _find_end(self) -> End:
        """The end of the log, if this directory may go on there."""
        newest = snapshots_in(self._reads)[-1:]
        end = walk(self._reads, read_manifest(self._reads, newest[0].key) if newest else None)
        try:
            check_end(self._reads, end.place)
        except DamagedData:
            if snapshots_in(self._reads)[-1:] == newest:
                raise
            # Meanwhile a primary has made a snapshot, and removed the log before it.
            return self._find_end()
        if not self._directory.vacant and end.owner not in ("", self._directory.holder):
            raise DataDirIncompatible(
                f"the log in the bucket is not the one in {self._directory.path}: {end.owner} was primary last, with "
                f"term {end.place.term}; move the directory away and start on an empty one, which is then restored "
                "from the bucket, start with --standby, which sets it aside, or use another prefix of the bucket",
                directory=self._directory.path,
            )
        return end

    def _owns_next_term(self, seen: Seen | None, end: End) -> bool:
        """Close the term at the end of the log, unless another server has gone on since."""
        note = Note(self._holder, bucket=self._directory.bucket)
        if read_note(self._disk, self._directory.path) != note:
            # Noted before the term is owned: a start after a crash must know that the term is its own. And not sooner:
            # one that is refused has written nothing here.
            write_note(self._disk, self._directory.path, note)
        # Looked at again: only what is seen after the last slot was read tells that nobody has the lease.
        again = self._repeated(read_primary)
        if (again and again.etag) != (seen and seen.etag):
            return False
        return self._repeated(lambda: take_term(self._holder, self._token, self._now_ms(), end.place))

    def _wait_for_lease(self) -> Seen | None:
        """Until another server has let its lease end; raises InUse if it renews it."""
        watched, said = Watched(), False
        while True:
            sent_ms = time.monotonic() * 1000
            seen = self._repeated(read_primary)
            if seen is None or seen.primary.holder == self._directory.holder:
                # The lock of the directory is ours, so the server that had this lease has ended.
                return seen
            if watched.renewed(seen) and not seen.primary.released:
                raise InUse(
                    f"{seen.primary.holder} is primary with term {seen.primary.term} and renews its lease"
                    f"{f' ({seen.primary.url})' if seen.primary.url else ''}; stop it first, start this "
                    "server with --standby, or use another prefix of the bucket",
                    directory=self._directory.path,
                )
            left_ms = watched.look(seen, sent_ms, time.monotonic() * 1000)
            if left_ms == 0.0:
                return seen
            if not said:
                logger.warning("waiting up to %.0f s for the lease of %s to end", left_ms / 1000, seen.primary.holder)
                said = True
            self._pause(min(left_ms / 1000, self._lease_ms / 8000))

    def _repeated(self, attempt: Callable[[], Steps[T]]) -> T:
        return self._ask(lambda: run(self._bucket, attempt()))


def join_bucket(
    url: str,
    environ: Mapping[str, str],
    disk: Disk,
    directory: DataDirectory,
    *,
    own_url: str,
    lease_ms: int,
    now_ms: Callable[[], int],
    local_bytes: int = 0,
    patience: Patience,
) -> tuple[ObjectBucket, Joined]:
    """Check the bucket and own a term in it; a directory without data is filled, or begins. Blocks."""
    bucket = connect(url, environ)
    check(bucket, url, patience)
    note = read_note(disk, directory.path)
    known = patience.ask(lambda: identify(bucket, url, note.bucket if note is not None else None, directory.path))
    if note is not None and note.standby:
        # A standby was here, and may have stopped anywhere: the bucket has all of it.
        if not directory.vacant:
            check_copy(note, known, directory.path)
        directory.empty()
        note = None
    compared = Directory(directory.path, note.holder if note is not None else None, directory.vacant, known)
    if directory.vacant:
        directory.clear_unfinished()
    joining = Joining(
        bucket,
        disk,
        compared,
        url=own_url,
        lease_ms=lease_ms,
        now_ms=now_ms,
        local_bytes=local_bytes,
        patience=patience,
    )
    try:
        joined = joining.join(directory.restoring_path)
    except BaseException:
        if directory.vacant:
            disk.remove_tree(directory.restoring_path)
        raise
    if joined.restored is not None:
        directory.fill(_meta_of(joined.restored, disk))
    elif directory.vacant:
        directory.begin()
        disk.remove_dir(directory.restoring_path)
    return bucket, joined


def _meta_of(restored: Restored, disk: Disk) -> Meta:
    """How the run ended whose log was restored, for the recovery of it."""
    if restored.time_ms:
        return Meta("", True, restored.position, restored.time_ms)
    # The log is whole, but the last checkpoint is not in the bucket, and only that has the exact heads of `ephemeral`
    # topics: they continue as after a kill, which leaves just such a log.
    return Meta(disk.boot_id(), False, restored.position)

"""The bucket of a store: how a start joins it as primary, or follows it as a standby, and what sends the log there."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import structs

from topics.engine.core.commit_log import CommitLog
from topics.engine.core.state import State
from topics.model.clock import Clock
from topics.model.errors import DataDirIncompatible, NotPrimary
from topics.model.settings import Settings
from topics.storage.bucket.bucket import ObjectBucket
from topics.storage.bucket.following import Advertised, Following
from topics.storage.bucket.shipping import Shipping, ShippingPace, ShippingSource
from topics.storage.bucket.starting.joining import Joined, Note, join_bucket, read_note, write_note
from topics.storage.bucket.starting.patience import Patience, Pauses
from topics.storage.bucket.starting.standby_start import begin_standby
from topics.storage.bucket.terms import TakenOver
from topics.storage.directory import DataDirectory
from topics.storage.disk import Disk
from topics.storage.steps import Steps, in_thread

# Where no standby waits for it, a lease is renewed rarely.
LEASE_MS_ALONE = 150_000


class BucketSide:
    """Made with every store; it does something only if there is a bucket."""

    def __init__(
        self, settings: Settings, disk: Disk, directory: DataDirectory, clock: Clock, notify: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._notify = notify
        self.bucket: ObjectBucket | None = None
        # where others reach this server, unless that is a setting
        self.port = settings.port
        # False: the directory is only checked, so no write waits for a bucket.
        self.accepts_writes = True
        self._pauses = Pauses()
        # how long a start waits for the bucket
        self.patience = Patience(self._pauses.pause)

    @property
    def _mine(self) -> Advertised:
        settings = self._settings
        scheme = "http" if settings.tls_cert is None else "https"
        url = settings.advertise_url or f"{scheme}://{settings.host}:{self.port}"
        lease_ms = settings.bucket_lease_ms
        return Advertised(url, max(lease_ms, LEASE_MS_ALONE) if settings.bucket_takeover == "off" else lease_ms)

    def join(self) -> Steps[Joined]:
        """Own a term in the bucket; a directory without data gets what is there."""
        url, mine = self._settings.bucket, self._mine
        assert url is not None
        self.bucket, joined = yield from in_thread(
            lambda: join_bucket(
                url,
                os.environ,
                self._disk,
                self._directory,
                own_url=mine.url,
                lease_ms=mine.lease_ms,
                now_ms=self._clock.now_ms,
                local_bytes=self._settings.local_bytes,
                patience=self.patience,
            ),
            self._pauses.give_up,
        )
        return joined

    def follow(self) -> Steps[Following]:
        """Fill the directory from the bucket; it goes on from there when it is started."""
        url = self._settings.bucket
        assert url is not None
        self.bucket, start = yield from in_thread(
            lambda: begin_standby(
                url, os.environ, self._disk, self._directory, now_ms=self._clock.now_ms, patience=self.patience
            ),
            self._pauses.give_up,
        )
        return Following(
            self.bucket,
            start,
            self._mine,
            by_itself=self._settings.bucket_takeover == "auto",
            notify=self._notify,
            now_ms=self._clock.now_ms,
        )

    def ship(self, joined: Joined, source: ShippingSource) -> Shipping:
        """Send the log to the bucket from now on, in a term of one's own."""
        settings = self._settings
        assert self.bucket is not None
        if source.wal.written_to < joined.position:
            raise DataDirIncompatible(
                f"the log in {self._directory.path} ends before the one in the bucket, which it had been sent to: the "
                "disk has lost data, or the directory is an old copy; move it away and start on an empty one, which is "
                "then restored from the bucket",
                directory=self._directory.path,
            )
        pace = ShippingPace(
            settings.bucket_piece_ms,
            settings.bucket_piece_bytes,
            settings.bucket_backlog_bytes,
            settings.bucket_keep_ms,
        )
        return Shipping(
            self.bucket,
            joined,
            source,
            pace=pace,
            notify=self._notify,
            now_ms=self._clock.now_ms,
            made_by="topics",
        )

    def shut_out(self, commit_log: CommitLog, fenced: TakenOver) -> None:
        """Another server has taken over: nothing is acknowledged any more; a host may start again as a standby."""
        if self._settings.bucket_takeover != "off":
            primary = fenced.detail.get("primary")
            commit_log.closed = lambda: NotPrimary(fenced.message, primary=primary, role="standby")
        commit_log.refuse_writes(fenced.message)

    def own_directory(self, holder: str) -> None:
        """A standby has become primary: a start after a crash goes on with what is here, which the bucket may not have.

        Blocks.
        """
        self._directory.mark_open()
        note = read_note(self._disk, self._directory.path)
        write_note(self._disk, self._directory.path, Note(holder, bucket=note.bucket if note is not None else None))

    def note_complete(self) -> None:
        """The server stops, and the bucket has everything. Blocks."""
        note = read_note(self._disk, self._directory.path)
        if note is not None:
            complete = structs.replace(note, complete=self._directory.runs_noted)
            write_note(self._disk, self._directory.path, complete)

    def check_classes(self, state: State, *, has_bucket: bool) -> None:
        """Refuse topics whose records must be in a bucket if there is none."""
        names = replicated_topics(state)
        if names and self.accepts_writes and not has_bucket:
            raise DataDirIncompatible(
                f"{self._directory.path} has topics with durability replicated ({', '.join(names[:5])}), which "
                "need a bucket: set TOPICS_BUCKET, for a copy of another server to a prefix of its own; "
                "file:///an/empty/directory will do",
                directory=self._directory.path,
                setting="bucket",
            )


def replicated_topics(state: State) -> list[str]:
    """The topics whose records must be in the bucket before any reader sees them."""
    return [topic.name for topic in state.by_id.values() if topic.config.durability == "replicated"]

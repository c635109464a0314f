"""The packs of a store that are only in its bucket.

settings ─▶ check_settings           local_bytes needs a bucket
a start  ─▶ RemoteHistory.checking   so do packs that are only in it: in this one, not in another
settle   ─▶ RemoteHistory.poll       reads that have come, and packs that may leave the disk
"""

from __future__ import annotations

from collections.abc import Callable

from topics.model.errors import DataDirIncompatible
from topics.model.setting_types import WrongSetting
from topics.model.settings import Settings, find
from topics.storage.bucket.bucket import ObjectBucket
from topics.storage.bucket.shipping import Shipping
from topics.storage.bucket.starting.patience import Patience
from topics.storage.pack import Packs
from topics.storage.remote.offloading import Offloading
from topics.storage.remote.range_reader import RangeReader
from topics.storage.steps import Steps, in_thread
from topics.storage.worker import Worker, Workers

# Requests for packs in the bucket that are under way at once, and how long a stop waits for them.
READERS_MAX = 8
STOP_S = 2.0


def check_settings(settings: Settings) -> None:
    """Raises WrongSetting if old packs have nowhere to go, or two places."""
    if not settings.local_bytes:
        return
    given = find("local_bytes")
    if settings.bucket is None:
        raise WrongSetting(
            f"{given.variable} is set, but {find('bucket').variable} is not: packs that leave the disk go there; set "
            f"it, or unset {given.variable}",
            setting="local_bytes",
        )
    if settings.cold_dir is not None:
        raise WrongSetting(
            f"{given.variable} and {find('cold_dir').variable} are both set: old packs go to the bucket or to the cold "
            "directory, not to both; unset one of them",
            setting="local_bytes",
        )


class RemoteHistory:
    """Packs that are only in the bucket, as the owner of a store sees them."""

    def __init__(self, packs: Packs, settings: Settings, notify: Callable[[], None]) -> None:
        self._packs = packs
        self._settings = settings
        self._offloading: Offloading | None = None
        self._worker: Worker | None = None
        self.readers = Workers(notify, "topics-bucket-read", READERS_MAX)

    def checking(self, bucket: ObjectBucket | None, patience: Patience, path: str) -> Steps[None]:
        """Read them from this bucket from now on; raises DataDirIncompatible if it is not the one."""
        remotes = self._packs.remotes()
        if bucket is None:
            if remotes:
                raise DataDirIncompatible(
                    f"{len(remotes)} packs of {path} are only in its bucket: set TOPICS_BUCKET, or restore the bucket "
                    "into another directory, which gets all of them (`topics restore`)",
                    directory=path,
                    setting="bucket",
                )
            return
        ranges = self._packs.ranges = RangeReader(bucket, self._settings.bucket_cache_bytes)
        if remotes and not (yield from in_thread(lambda: patience.ask(lambda: ranges.check(remotes[-1])))):
            raise DataDirIncompatible(
                f"{len(remotes)} packs of {path} are only in its bucket, and this one does not have them "
                f"({remotes[-1].key}): start with the bucket and the prefix that the directory had",
                directory=path,
                setting="bucket",
            )

    def start(self, worker: Worker) -> None:
        self._worker = worker
        if self._settings.local_bytes:
            self._offloading = Offloading(self._packs, worker, self._settings.local_bytes)

    @property
    def copier(self) -> Worker | Workers:
        """Who reads for a backup, which may have to wait for the bucket."""
        assert self._worker is not None
        return self._worker if self._packs.ranges is None else self.readers

    def poll(self, shipping: Shipping | None) -> None:
        """A standby ships nothing, and its packs stay where they are."""
        self.readers.poll()
        if self._offloading is not None and shipping is not None and shipping.fenced is None:
            self._offloading.poll(shipping.stored)

    def stop(self) -> None:
        if self._packs.ranges is not None:
            self._packs.ranges.close()
        self.readers.stop(STOP_S)
        self.readers.poll()

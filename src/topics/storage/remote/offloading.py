"""Old packs leave the disk: the oldest first, once the bucket has them, until the others take at most `local_bytes`.

    shipping: files, then the manifest that names them ─▶ owner: poll ─▶ worker: Packs.let_go
                                                                        1 an empty file in the place of each, synced
                                                                        2 reads go to the bucket
                                                                        3 the pack is unlinked

A crash before 3 leaves the pack, which counts; after it, the name of the empty file says where the pack is. A pack with
a lower number has older records: a checkpoint packs what is new, and copies of older records lie among those.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from topics.model.errors import Throttled
from topics.storage.bucket.chain import StoredFile
from topics.storage.pack import Packs
from topics.storage.remote.remote_pack import RemotePack, pack_of_object
from topics.storage.worker import Worker, WorkerJob

logger = logging.getLogger("topics.bucket")

# Packs that leave in one job of the worker: cold reads wait for it.
PACKS_PER_JOB = 64


class Offloading:
    """For the owner thread."""

    def __init__(self, packs: Packs, worker: Worker, local_bytes_max: int) -> None:
        self._packs = packs
        self._worker = worker
        self._local_bytes_max = local_bytes_max
        # the files of the last manifest that was looked at, and of that whose packs are leaving
        self._seen: Sequence[StoredFile] = ()
        self._taken: Sequence[StoredFile] = ()
        self._under_way = False

    def poll(self, stored: Sequence[StoredFile]) -> None:
        """`stored` are the files of the newest manifest that is in the bucket: another object for another manifest."""
        if self._under_way or stored is self._seen:
            return
        leaving = self._leaving(stored)
        if not leaving:
            self._seen = stored
            return
        try:
            self._worker.submit(lambda: self._packs.let_go(leaving), self._done)
        except Throttled:
            # The worker has enough to do; the next poll tries again.
            return
        self._under_way, self._taken = True, stored

    def _leaving(self, stored: Sequence[StoredFile]) -> list[RemotePack]:
        over = self._packs.local_bytes - self._local_bytes_max
        if over <= 0:
            return []
        in_bucket = {pack.number: pack for file in stored if (pack := pack_of_object(file.key, file.bytes)) is not None}
        leaving: list[RemotePack] = []
        for number, size_bytes in self._packs.local():
            pack = in_bucket.get(number)
            if over <= 0 or len(leaving) == PACKS_PER_JOB:
                break
            if pack is not None and pack.size_bytes == size_bytes:
                leaving.append(pack)
                over -= size_bytes
        return leaving

    def _done(self, job: WorkerJob[int]) -> None:
        self._under_way = False
        try:
            count = job.result()
        except OSError as error:
            # Tried again after the next manifest.
            self._seen = self._taken
            logger.warning("packs stay on this disk for now: %s", error)
            return
        logger.info("%d packs are only in the bucket now; %d bytes are here", count, self._packs.local_bytes)

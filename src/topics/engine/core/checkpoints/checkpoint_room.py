"""The space that the next checkpoint needs, reserved before anything is written that would need it.

    unpacked bytes   what a checkpoint would write into a pack: records that are only in memory and in the log
    log bytes        by how much the log has grown since the last checkpoint: a snapshot grows by a part of that, and by
                     the descriptions of new topics

With less space than that, only work that frees space continues: deletes, acks, checkpoints.
"""

from __future__ import annotations

from topics.engine.core.state import State
from topics.engine.log.on_disk.repacking import Copies
from topics.model.errors import StorageError, StorageFull, TopicsError
from topics.storage.disk import FULL
from topics.storage.pack import SPARSE_SHARE, Packs
from topics.storage.reserve import Reserve, Room
from topics.storage.snapshot import Snapshots
from topics.storage.wal.wal import Wal

FIRST_BYTES = 128 << 10
STEP_BYTES_MAX = 16 << 20
# Headers, tag orders and directories of packs, beyond the bytes that are counted.
OVERHEAD_SHARE = 8
PACK_BYTES_MIN = 64 << 10
SNAPSHOT_BYTES_MIN = 64 << 10
# How much smaller than in the log keys, blocks, deletions and claims are in a snapshot, and the size of a topic.
SNAPSHOT_SHARE = 4
TOPIC_BYTES = 512


class CheckpointRoom:
    """Called before every write that frees nothing: two comparisons as long as there is enough."""

    def __init__(self, state: State, wal: Wal, packs: Packs, snapshots: Snapshots, reserve: Reserve) -> None:
        self._state = state
        self._wal = wal
        self._packs = packs
        self._snapshots = snapshots
        self.reserve = reserve
        # what there is space for: unpacked bytes, and the log up to a position
        self._unpacked_max = 0
        self._log_end = 0
        self._log_start = snapshots.newest_position
        self._topics_known = 0
        # while a checkpoint runs: what it covers
        self._taken_bytes = 0
        self._taken_start = 0
        # the last one found the disk full
        self._sparing = False

    @property
    def short(self) -> bool:
        return self.reserve.short

    def check(self, pending_bytes: int) -> None:
        """Before a write: there is space for the checkpoint that the write makes larger, or it is refused."""
        unpacked_bytes = self._state.unpacked_bytes + pending_bytes
        if unpacked_bytes <= self._unpacked_max and self._wal.buffered_to <= self._log_end:
            return
        if self.renew(pending_bytes):
            return
        if self.short:
            raise StorageFull(
                "the disk is full: the rest is reserved for deletes and checkpoints; delete records or free some space"
            )
        error = self.reserve.error
        raise StorageError(f"no space can be reserved for the next checkpoint: {(error and error.strerror) or error}")

    def renew(self, pending_bytes: int = 0) -> bool:
        """Reserve space for the current state, and a step more if the disk has it; False if even the first fails."""
        unpacked = self._state.unpacked_bytes + pending_bytes
        log_bytes = self._wal.buffered_to - self._log_start
        if self._grow(unpacked + _step(unpacked), log_bytes + _step(log_bytes)) or self._grow(unpacked, log_bytes):
            return True
        self.reserve.grow_as_far_as_it_goes(self._pack_bytes(unpacked), self._snapshot_bytes(log_bytes))
        return False

    def _grow(self, unpacked_bytes: int, log_bytes: int) -> bool:
        if not self.reserve.grow(self._pack_bytes(unpacked_bytes), self._snapshot_bytes(log_bytes)):
            return False
        self._unpacked_max = unpacked_bytes
        self._log_end = self._log_start + log_bytes
        return True

    # --- checkpoints ---

    def begin(self) -> tuple[list[Room], Copies]:
        """A checkpoint uses the space for its pack and its snapshot; later writes need new space.

        The second value: how many bytes of old blocks it may copy.
        """
        state, reserve = self._state, self.reserve
        pack_bytes = reserve.pack.size_bytes
        pack, snapshot = reserve.detach()
        spare_bytes = max(0, pack_bytes - _with_overhead(state.unpacked_bytes))
        self._taken_bytes, state.unpacked_bytes = state.unpacked_bytes, 0
        self._taken_start, self._log_start = self._log_start, self._wal.buffered_to
        self._unpacked_max = self._log_end = 0
        return [pack, snapshot], Copies(spare_bytes if reserve.short or self._sparing else None)

    def failed(self, is_full: bool) -> None:
        """The work of the checkpoint is still to be done; if the disk was full, the next one copies only what fits."""
        self._sparing = is_full
        self._state.unpacked_bytes += self._taken_bytes
        self._log_start = self._taken_start

    def finished(self, left_bytes: int) -> None:
        """It is done except for blocks of `left_bytes` bytes, which have grown meanwhile."""
        self._topics_known = len(self._state.by_id)
        self._sparing = False
        self._state.unpacked_bytes += left_bytes

    def _pack_bytes(self, unpacked_bytes: int) -> int:
        # A nearly dead pack can be copied as well: any existing one, or the one that this space is for. After a
        # checkpoint that frees nothing, this much of its space is left for the next one.
        return _with_overhead(unpacked_bytes) + max(self._packs.largest_bytes, unpacked_bytes) // SPARSE_SHARE

    def _snapshot_bytes(self, log_bytes: int) -> int:
        topics_bytes = TOPIC_BYTES * max(0, len(self._state.by_id) - self._topics_known)
        return self._snapshots.newest_bytes + topics_bytes + log_bytes // SNAPSHOT_SHARE + SNAPSHOT_BYTES_MIN


def _step(size_bytes: int) -> int:
    return min(STEP_BYTES_MAX, max(FIRST_BYTES, size_bytes // 2))


def is_full(error: OSError | TopicsError) -> bool:
    return isinstance(error, StorageFull) or (isinstance(error, OSError) and error.errno in FULL)


def refusal(error: OSError) -> TopicsError:
    """The error for the writer when the disk refused a write."""
    if is_full(error):
        return StorageFull("the disk is full; the write was refused, free some space and try again")
    return StorageError(f"the disk refused the write, nothing of it was kept: {error.strerror or error}")


def uncertain_refusal(error: OSError) -> TopicsError:
    """The same when the log could not be truncated after that: recovery may find the write whole."""
    reason = error.strerror or error
    return StorageError(f"the disk refused the write, and it may be there after a restart all the same: {reason}")


def _with_overhead(unpacked_bytes: int) -> int:
    return unpacked_bytes + unpacked_bytes // OVERHEAD_SHARE + PACK_BYTES_MIN

"""Bodies that are only on disk: reading them back, and keeping a bounded number of them for the next reader."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.on_disk.extent import Salvaged, decode_body, salvage
from topics.model.errors import BucketAway, DamagedData, StorageError, TopicsError
from topics.storage.pack import Extent, Packs

log = logging.getLogger("topics.engine")

COLD_CACHE_BYTES = 32 * 1024 * 1024
DAMAGED_MAX = 8

# What comes of reading a body.
Found = bytes | DamagedData | BucketAway | OSError


class ColdMiss(Exception):
    """The verb needs a body that would block to read: `Cold.read` it elsewhere, `take` it, run the verb again."""

    def __init__(self, block: Block, extent: Extent) -> None:
        super().__init__(f"seqs {block.first_seq}…{block.last_seq} are only on disk")
        self.block = block
        self.extent = extent


class Reader(Protocol):
    """Reads the bodies that verbs miss, outside the thread that owns the engine."""

    def fetch(self, miss: ColdMiss, then: Callable[[TopicsError | None], None]) -> None:
        """Give the block its body, then call back in the owner's thread; with an error if it cannot be read."""
        ...


class DamagedBlock(DamagedData):
    """Records of a block fail their checksums; `salvaged` has those that do not, if they can be determined."""

    salvaged: Salvaged | None = None


class Cold:
    """The bodies loaded longest ago are dropped first; one always stays, so that a repeated verb finds its body."""

    def __init__(self, packs: Packs, cache_bytes: int = COLD_CACHE_BYTES) -> None:
        self.packs = packs
        self._cache_bytes = cache_bytes
        self._loaded: OrderedDict[Block, int] = OrderedDict()
        self._loaded_bytes = 0
        # Blocks found damaged when they were read for a verb: the verb runs again and decides how to proceed.
        self._damaged: OrderedDict[Extent, DamagedBlock] = OrderedDict()

    def load(self, block: Block) -> None:
        """Give the block its body, or raise ColdMiss if that would wait for the disk."""
        if block.body is not None:
            return
        extent = block.extent
        assert extent is not None, "a block is in memory, on disk, or both"
        if self._damaged and (damage := self._damaged.pop(extent, None)) is not None:
            raise damage
        try:
            data = self.packs.read_nowait(extent)
        except (DamagedData, OSError) as error:
            raise unreadable(block, extent, error) from error
        if data is None:
            raise ColdMiss(block, extent)
        self.attach(block, extent, data)

    def load_now(self, block: Block) -> None:
        """Give the block its body, waiting for the disk: only before requests are served."""
        if block.body is None and block.extent is not None:
            self.attach(block, block.extent, self.packs.read(block.extent))

    def load_unless_remote(self, block: Block) -> None:
        """As `load_now`, for retention, which goes on without a body that is only in the bucket."""
        if not self.is_remote(block):
            self.load_now(block)

    def is_remote(self, block: Block) -> bool:
        """Whether the body is neither in memory nor on this disk, only in the bucket."""
        extent = block.extent
        return block.body is None and extent is not None and self.packs.remote(extent.pack) is not None

    def read(self, miss: ColdMiss) -> Found:
        """The result of reading a missed body, for `take`. May be called from any thread, and blocks."""
        try:
            return self.packs.read(miss.extent)
        except (DamagedData, BucketAway, OSError) as error:
            return error

    def take(self, miss: ColdMiss, found: Found) -> None:
        """Attach the result. A failure counts only if the block is still at the place that was read."""
        if isinstance(found, bytes):
            try:
                self.attach(miss.block, miss.extent, found)
            except DamagedBlock as damage:
                self._damaged[miss.extent] = damage
                if len(self._damaged) > DAMAGED_MAX:
                    self._damaged.popitem(last=False)
        elif not miss.block.gone and miss.block.extent == miss.extent:
            raise unreadable(miss.block, miss.extent, found)

    def attach(self, block: Block, extent: Extent, data: bytes) -> None:
        """Give the block this body. If the block changed meanwhile, it keeps the one it has."""
        if block.body is not None or block.extent != extent:
            return
        block.body = decoded(block, extent, data)
        block.cold = True
        self._loaded[block] = len(data)
        self._loaded_bytes += len(data)
        while self._loaded_bytes > self._cache_bytes and len(self._loaded) > 1:
            oldest, size = self._loaded.popitem(last=False)
            self._loaded_bytes -= size
            oldest.body = None
            oldest.cold = False

    def forget(self, block: Block) -> None:
        """The block has left its topic, or its body is now owned elsewhere."""
        size = self._loaded.pop(block, None)
        if size is not None:
            self._loaded_bytes -= size
            block.cold = False


def decoded(block: Block, extent: Extent, data: bytes) -> Body:
    """The body of a block as it was read; raises DamagedBlock, which names the damaged records."""
    try:
        return decode_body(data, block.first_seq)
    except DamagedData as error:
        salvaged = salvage(data, block.first_seq, block.count)
        if salvaged is not None and salvaged.first_hit(0) == block.count:
            log.warning("pack %d is damaged at offset %d, but no record is affected: %s", *extent[:2], error.message)
            return salvaged.body
        raise unreadable(block, extent, error, salvaged) from None


def unreadable(
    block: Block, extent: Extent, reason: DamagedData | BucketAway | OSError, salvaged: Salvaged | None = None
) -> DamagedBlock | BucketAway | StorageError:
    """Names the seqs that cannot be read; only damage needs more than another attempt."""
    from_seq, to_seq = block.first_seq, block.last_seq
    if salvaged is not None:
        from_seq, to_seq = block.seq_at(salvaged.first_hit(0)), block.seq_at(salvaged.hit.rindex(1))
    seqs = f"seqs {from_seq} to {to_seq} cannot be read"
    where = {"from_seq": from_seq, "to_seq": to_seq, "pack": extent.pack, "offset": extent.offset}
    if isinstance(reason, BucketAway):
        return BucketAway(
            f"{seqs}: {reason.message}", detail={**where, **reason.detail}, retry_after_s=reason.retry_after_s
        )
    if isinstance(reason, OSError):
        return StorageError(f"{seqs}: {reason.strerror or reason}; try again", detail=where)
    # Readers learn which pack it is, not where the server keeps it.
    path = str(reason.detail.get("file", ""))
    why = reason.message.replace(path, os.path.basename(path)) if path else reason.message
    damage = DamagedBlock(f"{seqs}: {why}; `topics repair` turns them into an explicit gap", detail=where)
    damage.salvaged = salvaged
    return damage

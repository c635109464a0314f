"""What one checkpoint writes to its pack: which blocks, and their positions; the worker thread writes it.

block ─▶ pack ─▶ pending ─▶ after 1 MiB: to the worker ─▶ written ─▶ finish ─▶ install: blocks learn where they are
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator

from topics.engine.log.block import Block
from topics.engine.log.on_disk.extent import extent_of
from topics.engine.log.on_disk.hot_window import HotWindow
from topics.engine.log.topic import Topic
from topics.storage.pack import Extent, Packs, PackWriter
from topics.storage.worker import Worker

# Bytes that may wait for a slow disk before packing itself waits for the disk.
UNWRITTEN_BYTES_MAX = 16 * 1024 * 1024
# A larger block, of a large batch, takes longer than a slice may: the worker thread sums and writes it.
LARGE_BYTES = 1024 * 1024


class Packing:
    """The blocks of one pack. Created when a checkpoint begins, and installed or aborted at its end."""

    def __init__(self, packs: Packs, writer: PackWriter, worker: Worker) -> None:
        self._packs = packs
        self._writer = writer
        self._worker = worker
        self._packed: dict[Block, tuple[Topic, Extent, int]] = {}
        # Bytes in blocks that have grown since they were packed; known once installed.
        self.grown_bytes = 0

    def __contains__(self, block: Block) -> bool:
        return block in self._packed

    @property
    def bytes_added(self) -> int:
        return self._writer.bytes_added

    def pack(self, topic: Topic, block: Block) -> None:
        """Have the block written, unless all of it is on disk already."""
        known = self._packed.get(block)
        if block.packed == block.count or (known is not None and known[2] == block.count):
            return
        assert block.body is not None
        if known is not None:
            self._packs.release(known[1])
        content = extent_of(block.body, block.first_seq, block.seqs)
        large = len(content) > LARGE_BYTES
        extent = self._writer.add_deferred(content) if large else self._writer.add(content.buffers())
        self._packed[block] = topic, extent, block.count

    def copy(self, topic: Topic, block: Block, data: bytes) -> None:
        """Have a block written that is only on disk, as it is in another pack."""
        self._packed[block] = topic, self._writer.add([data]), block.packed

    def places(self, blocks: Iterable[Block]) -> dict[Block, Extent]:
        """The positions of those of the blocks that are in this pack."""
        return {block: self._packed[block][1] for block in blocks if block in self._packed}

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a write."""
        return self._writer.is_full

    def hand_over(self) -> Generator[bool, None, None]:
        """Let the worker write the added blocks, if they are enough; wait only for a disk that is too slow."""
        writer = self._writer
        if writer.is_full:
            job = self._worker.submit(writer.take())
            while writer.unwritten_bytes > UNWRITTEN_BYTES_MAX and not job.done:
                yield False

    def finish(self) -> Callable[[], None]:
        """The remaining work on the pack, which blocks: make it durable, or remove it if it is empty."""
        return self._writer.finish if self._packed else self._writer.abort

    def abort(self) -> None:
        """The checkpoint failed: the blocks stay where they were."""
        for _, extent, _ in self._packed.values():
            self._packs.release(extent)
        self._packed = {}
        self._writer.abort()

    def install(self, window: HotWindow) -> Iterator[None]:
        """The pack is durable: its blocks are read from it from now on, and other copies may be dropped."""
        for block, (topic, extent, count) in self._packed.items():
            if block.gone:
                self._packs.release(extent)
            else:
                if block.extent is not None:
                    self._packs.release(block.extent)
                block.extent, block.packed, block.image = extent, count, None
                if block.packed != block.count and block.body is not None:
                    self.grown_bytes += len(block.body.buf)
                window.packed(topic, block)
            yield
        while self._packed:
            # Freeing a hundred thousand of them at once would be a pause, too.
            self._packed.popitem()
            yield

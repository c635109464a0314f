"""Reading the log back: every frame is verified, a torn tail is cut, damage is refused.

What comes after a frame that does not verify decides what it is:

    | good | good | X bad | ………… | good, synced_to > X |     damage: X was durable once. Refused.
    | good | good | X bad | ………… | good |   same boot        damage: no power failed, so no write was lost. Refused.
    | good | good | X bad | ………… | good, synced_to ≤ X |     torn tail of a power failure: cut at X.
    | good | good | X bad | nothing good                    end of the log, or a torn last frame: cut at X.

Everything accepted is synced before it is served: a frame that was read from the page cache of a killed process may not
be on disk yet, and later frames will be acknowledged on top of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from typing import NamedTuple

from topics.model.errors import DamagedData
from topics.storage.disk import Disk
from topics.storage.steps import Steps, in_thread
from topics.storage.wal.frame import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHead
from topics.storage.wal.log_file import LogFile, LogTail
from topics.storage.wal.log_scan import (
    WINDOW_BYTES,
    FoundFile,
    HeaderState,
    Split,
    SplitBody,
    find_files,
    good_frames,
    read_large,
    read_window,
    whole_frame_bytes,
)

logger = logging.getLogger("topics.storage")


class DamagedLog(DamagedData):
    """Bytes of the log that had been durable do not verify."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{file} is damaged at offset {offset}: {reason}. The start is refused, so that no data is lost "
            "silently; `topics repair` keeps what verifies and reports the rest as a gap",
            file=file,
            offset=offset,
            reason=reason,
        )


class LogGap(NamedTuple):
    """A stretch of the log that is lost; the bytes at `offset` of `file` are the first bad ones."""

    file: str
    offset: int
    from_position: int
    to_position: int
    reason: str


class Stop(NamedTuple):
    """Where reading met something that is not a good frame: `offset` in the file at `file_index`."""

    file_index: int
    offset: int
    position: int


class LargeFrame(NamedTuple):
    """A frame that is larger than a window."""

    position: int
    body: bytes | SplitBody


# The frames of a part of a file, as (end_position, body).
Window = list[tuple[int, bytes]] | LargeFrame


class Replay:
    """Reads the frames of a log as (end_position, body); at the end the log is cut and synced, and `tail` is set.

    Iterating gives the frames. `windows` gives them as they are read, and None wherever reading may pause: no step
    between two of them takes more than about a millisecond, however long a frame or the search for the next one is.
    """

    def __init__(
        self,
        disk: Disk,
        wal_path: str,
        start: int = 0,
        *,
        shard: int = 0,
        same_boot: bool,
        durable_to: int,
        repair: bool,
        split: Split | None = None,
    ) -> None:
        self._disk = disk
        self._path = wal_path
        self._start = start
        self._shard = shard
        self._same_boot = same_boot
        self._durable_to = durable_to
        self._repair = repair
        self._split = split
        self._tail: LogTail | None = None
        self._files: list[FoundFile] = []
        self._dropped_to = 0  # where the last good frame after a torn spot ends
        self._bytes_done = 0

        self.progress = 0.0
        self.frames = 0
        self.torn: LogGap | None = None
        self.repaired: list[LogGap] = []

    @property
    def tail(self) -> LogTail:
        """Where the log continues; known once all frames are read."""
        assert self._tail is not None
        return self._tail

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        assert self._split is None
        for frames in self.windows():
            if isinstance(frames, LargeFrame):
                assert isinstance(frames.body, bytes)
                yield frames.position, frames.body
            else:
                yield from frames or ()

    def windows(self) -> Iterator[Window | None]:
        self._files = find_files(self._disk, self._path, self._shard, self._same_boot)
        index = self._first_index()
        first_index = index
        stop = None
        if index is not None:
            self._bytes_total = sum(file.size for file in self._files[index:])
            position = max(self._start, self._files[index].base_position)
            while stop is None:
                reached = yield from self._read_file(index, position)
                index, position, ended = yield from self._after(reached)
                stop = reached if ended else None
        yield from self._finish(first_index, stop)
        self.progress = 1.0

    # --- reading ---

    def _first_index(self) -> int | None:
        """The file that holds `start`, or the one to begin with if a repair continues without it."""
        good = [index for index, file in enumerate(self._files) if file.state is HeaderState.GOOD]
        below = [index for index in good if self._files[index].base_position <= self._start]
        if below:
            return below[-1]
        damaged = [file for file in self._files if file.state is HeaderState.DAMAGED]
        if not good and not damaged and self._durable_to <= self._start:
            return None
        if good:
            first = self._files[good[0]]
            gap = LogGap(first.path, 0, self._start, first.base_position, "the log before this file is missing")
        elif damaged:
            gap = LogGap(damaged[0].path, 0, self._start, self._start, "the header of the file does not verify")
        else:
            gap = LogGap(self._path, 0, self._start, self._durable_to, "the log is missing")
        self._refuse_or_note(gap)
        return good[0] if good else None

    def _limit(self, index: int) -> int:
        """Where the frames of a file must end: where the next file begins, or at the end of the last one."""
        file = self._files[index]
        if index + 1 < len(self._files) and self._files[index + 1].state is HeaderState.GOOD:
            return file.offset_of(self._files[index + 1].base_position)
        return file.size

    def _read_file(self, index: int, position: int) -> Generator[Window | None, None, Stop]:
        """Yield the frames from `position` on; returns where they end."""
        file = self._files[index]
        limit = self._limit(index)
        offset = file.offset_of(position)
        fd = self._disk.open(file.path, os.O_RDONLY)
        try:
            while offset < limit:
                wanted_bytes = min(WINDOW_BYTES, limit - offset)
                data = self._disk.pread(fd, wanted_bytes, offset)
                frames, reached = read_window(data, file.position_of(offset), file.header.salt)
                if reached:
                    self.frames += len(frames)
                    offset += reached
                    self.progress = min(0.99, (self._bytes_done + offset) / self._bytes_total)
                    yield frames
                    continue
                frame_bytes = whole_frame_bytes(data, file.position_of(offset), file.header.salt)
                if frame_bytes is None or frame_bytes <= len(data) or offset + frame_bytes > limit:
                    break
                if len(data) < wanted_bytes:
                    break  # the file ends before the next one begins
                body = yield from read_large(self._disk, fd, file, offset, self._split)
                if body is None:
                    break
                offset += frame_bytes
                self.frames += 1
                yield LargeFrame(file.position_of(offset), body)
        finally:
            self._disk.close(fd)
        self._bytes_done += file.size
        return Stop(index, offset, file.position_of(offset))

    def _after(self, stop: Stop) -> Steps[tuple[int, int, bool]]:
        """Where reading continues, as (index, position), and whether the log ends instead."""
        following = stop.file_index + 1
        if stop.offset == self._limit(stop.file_index) and following < len(self._files):
            file = self._files[following]
            if file.state is HeaderState.GOOD and file.number == self._files[stop.file_index].number + 1:
                return following, file.base_position, False
        damage = yield from self._damage_at(stop)
        if damage is None:
            self._note_torn(stop)
            return stop.file_index, stop.position, True
        resume = next(filter(None, self._good_frames_after(stop)), None) if self._repair else None
        if resume is None:
            self._refuse_or_note(damage._replace(to_position=max(stop.position, self._durable_to)))
            return stop.file_index, stop.position, True
        index, offset, head = resume
        logger.warning("the log continues at offset %d of %s", offset, self._files[index].path)
        self._refuse_or_note(damage._replace(to_position=head.position))
        return index, head.position, False

    # --- judging ---

    def _damage_at(self, stop: Stop) -> Steps[LogGap | None]:
        """The proof that the bytes at `stop` were lost after they had been durable; None if there is none."""
        here = self._files[stop.file_index]
        gap = LogGap(here.path, stop.offset, stop.position, stop.position, "")
        if stop.position < self._durable_to:
            return gap._replace(reason=f"the log had been synced up to position {self._durable_to}")
        number = here.number
        for file in self._files[stop.file_index + 1 :]:
            if file.state is HeaderState.DAMAGED:
                return gap._replace(file=file.path, offset=0, reason="the header of the file does not verify")
            if file.state is HeaderState.GOOD and file.number != number + 1:
                return gap._replace(file=file.path, offset=0, reason="the log file before this one is missing")
            number = file.number
        for found in self._good_frames_after(stop):
            if found is None:
                yield
                continue
            index, offset, head = found
            self._dropped_to = head.position + FRAME_HEADER_BYTES + head.body_len
            if self._same_boot or head.synced_to > stop.position:
                where = f"a good frame follows at offset {offset} of {os.path.basename(self._files[index].path)}"
                return gap._replace(reason=f"{where}, so this is not a torn end of the log")
        return None

    def _good_frames_after(self, stop: Stop) -> Iterator[tuple[int, int, FrameHead] | None]:
        """Every good frame after `stop`, as (file index, offset, head); None wherever the search may pause."""
        for index in range(stop.file_index, len(self._files)):
            file = self._files[index]
            if file.state is not HeaderState.GOOD:
                continue
            offset = stop.offset + 1 if index == stop.file_index else FILE_HEADER_BYTES
            fd = self._disk.open(file.path, os.O_RDONLY)
            try:
                for found in good_frames(self._disk, fd, file, offset, min(self._limit(index), file.size)):
                    yield None if found is None else (index, *found)
            finally:
                self._disk.close(fd)

    def _refuse_or_note(self, gap: LogGap) -> None:
        if not self._repair:
            raise DamagedLog(gap.file, gap.offset, gap.reason)
        logger.warning(
            "%s is damaged at offset %d (%s): positions %d to %d are lost",
            gap.file, gap.offset, gap.reason, gap.from_position, gap.to_position,
        )  # fmt: skip
        self.repaired.append(gap)

    def _note_torn(self, stop: Stop) -> None:
        """Log what is cut, unless the log simply ends: an incomplete frame, or frames after a hole."""
        file = self._files[stop.file_index]
        to_position = max(self._dropped_to, stop.position + self._begun_bytes(stop))
        if to_position > stop.position:
            self.torn = LogGap(file.path, stop.offset, stop.position, to_position, "torn tail")
            logger.warning("%s has a torn tail and was cut at offset %d", file.path, stop.offset)

    def _begun_bytes(self, stop: Stop) -> int:
        """How many bytes of an incomplete frame there are at `stop`."""
        file = self._files[stop.file_index]
        fd = self._disk.open(file.path, os.O_RDONLY)
        try:
            begun = self._disk.pread(fd, FRAME_HEADER_BYTES, stop.offset)
        finally:
            self._disk.close(fd)
        if len(begun) < FRAME_HEADER_BYTES:
            return len(begun)
        frame_bytes = whole_frame_bytes(begun, stop.position, file.header.salt)
        return 0 if frame_bytes is None else min(frame_bytes, file.size - stop.offset)

    # --- the end ---

    def _finish(self, first_index: int | None, stop: Stop | None) -> Steps[None]:
        """Cut the log at its end and make durable what was accepted."""
        position = stop.position if stop is not None else self._start
        if self._repair:
            position = max([position, self._durable_to, *(gap.to_position for gap in self.repaired)])
        last = stop.file_index if stop is not None else -1

        def cut_and_sync() -> None:
            for file in reversed(self._files[last + 1 :]):
                self._put_away(file)
            for index in range(first_index if first_index is not None else 0, last + 1):
                self._sync_file(self._files[index], cut_at=stop.offset if stop is not None and index == last else None)
            self._disk.fsync_dir(self._path)

        yield from in_thread(cut_and_sync)
        next_number = self._files[last].number + 1 if last >= 0 else 1
        self._tail = LogTail(next_number, position, self._kept_files(last, position))

    def _put_away(self, file: FoundFile) -> None:
        """Remove a file after the end of the log; one that a repair gave up is kept under another name."""
        if file.state is HeaderState.DAMAGED:
            self._disk.rename(file.path, file.path + ".damaged")
        else:
            self._disk.unlink(file.path)

    def _sync_file(self, file: FoundFile, cut_at: int | None) -> None:
        fd = self._disk.open(file.path, os.O_RDWR)
        try:
            if cut_at is not None and file.size > cut_at:
                self._disk.truncate(fd, cut_at)
                file.size = cut_at
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)

    def _kept_files(self, last: int, position: int) -> list[LogFile]:
        kept: list[LogFile] = []
        end_position = position
        for file in reversed(self._files[: last + 1]):
            good = file.state is HeaderState.GOOD
            header = file.header if good else FileHeader(self._shard, file.number, end_position, 0)
            # A file with an unclear history is not recycled: its bytes may claim a future number.
            kept.append(LogFile(file.path, header, file.size if good else 0, end_position=end_position))
            end_position = header.base_position
        kept.reverse()
        return kept

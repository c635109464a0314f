"""A log driven by hand: opened, filled, abandoned and opened again in a test's own thread."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from topics.storage.disk import Disk
from topics.storage.wal.log_file import LogFile, LogTail
from topics.storage.wal.log_scan import Split
from topics.storage.wal.replay import Replay
from topics.storage.wal.wal import Wal

FILE_BYTES = 4096
# What the fixture every_file_closed closes after a test.
opened: list[Wal] = []


def new_log(
    disk: Disk,
    path: Path,
    file_bytes: int = FILE_BYTES,
    position: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Wal:
    path.mkdir(parents=True, exist_ok=True)
    return _opened(disk, path, LogTail(1, position, []), file_bytes, clock)


def salts(seed: int = 0) -> Callable[[], int]:
    """Salts that differ from file to file and are the same in every run."""
    state = [0x9E3779B97F4A7C15 + seed]

    def next_salt() -> int:
        state[0] = (state[0] * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return state[0]

    return next_salt


def replay(
    disk: Disk,
    path: Path,
    start: int = 0,
    *,
    same_boot: bool = True,
    durable_to: int = 0,
    repair: bool = False,
    split: Split | None = None,
) -> Replay:
    return Replay(disk, str(path), start, same_boot=same_boot, durable_to=durable_to, repair=repair, split=split)


def bodies(path: Path, start: int = 0, *, same_boot: bool = True) -> list[bytes]:
    """What another process would find now; reads a copy, as a log in use must not be cut."""
    with tempfile.TemporaryDirectory() as aside:
        shutil.copytree(path, aside, dirs_exist_ok=True)
        return [body for _, body in replay(Disk(), Path(aside), start, same_boot=same_boot)]


def reopen(
    disk: Disk, path: Path, file_bytes: int = FILE_BYTES, *, same_boot: bool = True, start: int = 0
) -> tuple[list[bytes], Wal]:
    reading = replay(disk, path, start, same_boot=same_boot)
    found = [body for _, body in reading]
    return found, _opened(disk, path, reading.tail, file_bytes)


def _opened(disk: Disk, path: Path, tail: LogTail, file_bytes: int, clock: Callable[[], float] = time.monotonic) -> Wal:
    opened.append(Wal(disk, str(path), tail, file_bytes=file_bytes, random_u64=salts(), clock=clock))
    return opened[-1]


def log_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def sync_by_hand(wal: Wal) -> None:
    """What the committer does, in this thread."""
    target = wal.written_to
    for file in tuple(wal.unsynced_files):
        wal.disk.fdatasync(file.fd)
        wal.disk.fsync_dir(wal.path)
        if file.end_position is not None:
            wal.unsynced_files.remove(file)
            close_file(wal, file)
    wal.synced_to = target


def unlink_trimmed(wal: Wal) -> None:
    while wal.unlink_one_trimmed():
        pass


def close_file(wal: Wal, file: LogFile) -> None:
    wal.disk.close(file.fd)
    file.fd = -1


def fill(wal: Wal, wanted: list[bytes], flush_every: int = 1) -> list[int]:
    """Append every body; returns where the frames end."""
    ends: list[int] = []
    for number, body in enumerate(wanted, 1):
        ends.append(wal.append(body))
        if number % flush_every == 0:
            wal.flush()
    wal.flush()
    return ends


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)

"""The simulated disk: files in memory, what of them is durable, and what the seed makes of a power failure or a fault.

    SimulatedDisk (one process: descriptors, locks) ─▶ Platter (the machine's: survives kills) ─▶ after_power_loss

A killed process leaves everything it wrote; a machine without power keeps what was synced and some of the rest.
Directories are durable at once when they are made, moved or removed, as is a file that moves to another directory.
A failed sync forgets what it could not write: programs still read it, and no later sync makes it durable.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.platter import (
    PAGE_BYTES,
    SECTOR_BYTES,
    Change,
    EntryChange,
    Image,
    Mode,
    PlatterDirectory,
    PlatterFile,
    after_power_loss,
    apply_entry,
)
from tests.simulation.scheduler import Killed, Process, Scheduler
from topics.storage.disk import Buffer, Disk

Kind = Literal["open", "pwritev", "pread", "fdatasync", "fsync_dir", "truncate", "allocate", "rename", "unlink"]

# Usual times of a sync, and of one that is stalled, which hands the writing over to the commit thread.
SYNC_S_MAX, STALL_S_MAX = 0.004, 3.0
CALL_S = 1e-5


@dataclass(eq=False)
class SimulatedFile(PlatterFile):
    """A file as the platter has it, and as programs see it."""

    content: bytearray = field(default_factory=bytearray)
    number: int = 0
    locked_by: SimulatedDisk | None = None


@dataclass
class DiskFault:
    """An error, or a short write, at the next calls of a kind whose path contains `path`."""

    kind: Kind
    path: str = ""
    error: int = 0
    times: int = 1
    keep: float | None = None

    def __str__(self) -> str:
        what = os.strerror(self.error) if self.error else "short"
        return f"{self.kind}({self.path}) × {self.times}: {what}"


class Platter:
    """The disk of a machine, apart from the processes that use it."""

    def __init__(self, rng: random.Random, above: str = "/") -> None:
        self.rng = rng
        # The directory that the data is in: a world is the same however far down that is.
        self._above = above
        self.directories: dict[str, PlatterDirectory] = {}
        # By path: what identifies a directory, wherever it moves.
        self.directory_numbers: dict[str, int] = {}
        self._directories_made = 0
        self.make_directory("/")
        self.boot = 1
        self._numbers = 0
        self.faults: list[DiskFault] = []
        # What the disk holds at most; None: more than anybody writes.
        self.room_bytes: int | None = None
        # Calls until the process is killed in the middle of one.
        self.kill_in_calls: int | None = None
        self.stalled = 0.0
        # Syncs of the log are answered and nothing is made durable: to see that it is found.
        self.lies = False
        self.calls: Counter[str] = Counter()
        self.failed_syncs = self.faults_met = 0
        self.on_failed_sync: Callable[[str], None] = lambda _: None
        # The next write that is synced to a file with this in its path lands elsewhere on the disk: the kernel's pages
        # are as they should be, until the power is gone. Where it was meant for and where it went.
        self.misdirect: str | None = None
        self.misdirected = ""
        self.on_misdirected: Callable[[str], None] = lambda _: None

    def new_file(self) -> SimulatedFile:
        self._numbers += 1
        return SimulatedFile(number=self._numbers)

    # --- directories ---

    def make_directory(self, path: str) -> None:
        self.directories[path] = PlatterDirectory()
        self.directory_numbers[path] = self._directories_made
        self._directories_made += 1

    def tree(self, path: str) -> list[str]:
        """A directory and those below it, the deepest last."""
        return sorted(name for name in self.directories if name == path or name.startswith(path + "/"))

    def move_tree(self, source: str, target: str) -> None:
        for path in self.tree(source):
            moved = target + path.removeprefix(source)
            self.directories[moved] = self.directories.pop(path)
            self.directory_numbers[moved] = self.directory_numbers.pop(path)

    def remove_directory(self, path: str) -> None:
        del self.directories[path], self.directory_numbers[path]

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self.boot += 1
        for path in reversed(self.tree("")):
            self.remove_directory(path)
        self.make_directory("/")

    @property
    def used_bytes(self) -> int:
        return sum(len(file.content) for file in self.files().values())

    def files(self) -> dict[str, SimulatedFile]:
        """Every file by its path."""
        found: dict[str, SimulatedFile] = {}
        for path, directory in sorted(self.directories.items()):
            for name, node in sorted(directory.current.items()):
                assert isinstance(node, SimulatedFile)
                found[os.path.join(path, name)] = node
        return found

    def lose_power(self, mode: Mode) -> None:
        """Keep what a machine finds when the power comes back."""
        self.boot += 1
        for path, directory in sorted(self.directories.items()):
            if path != "/" and f"{self._above}/".startswith(f"{path}/"):
                continue
            entries = dict(directory.durable)
            count = len(directory.changes)
            kept = {"keep": count, "drop": 0}.get(mode, self.rng.randint(0, count))
            for change in directory.changes[:kept]:
                apply_entry(entries, change)
            fresh: dict[str, PlatterFile] = {}
            for name, node in sorted(entries.items()):
                image = after_power_loss(node, mode, self.rng)
                file = self.new_file()
                file.pages, file.size = dict(image.pages), image.size
                file.content = _content(image)
                fresh[name] = file
            directory.durable, directory.current, directory.changes = fresh, dict(fresh), []

    def sync(self, path: str, file: SimulatedFile, count: int) -> None:
        """Make the first changes of a file durable; one of its writes in a wrong place, if that is due."""
        writes = [index for index, op in enumerate(file.ops[:count]) if op.data]
        if self.misdirect is None or self.misdirect not in path or not writes:
            file.sync(count)
            return
        self.misdirect = None
        strayed = file.ops.pop(self.rng.choice(writes))
        file.sync(count - 1)
        # Its length is the file system's, which knows nothing of it.
        file.size = max(file.size, strayed.offset + len(strayed.data))
        name, other = self.rng.choice([(name, one) for name, one in self.files().items() if one.size] or [(path, file)])
        offset = strayed.offset % SECTOR_BYTES + SECTOR_BYTES * self.rng.randrange(max(1, other.size // SECTOR_BYTES))
        image = Image(dict(other.pages), other.size)
        image.write(offset, strayed.data[: max(0, other.size - offset)])
        other.pages = image.pages
        self.misdirected = f"{_base(path)} {strayed.offset} → {_base(name)} {offset}, {len(strayed.data)} bytes"
        self.on_misdirected(self.misdirected)


def _content(image: Image) -> bytearray:
    content = bytearray(image.size)
    for number, page in image.pages.items():
        start = number * PAGE_BYTES
        piece = page[: max(0, image.size - start)]
        content[start : start + len(piece)] = piece
    return content


def _base(path: str) -> str:
    return os.path.basename(path)


def _make_entries_durable(directory: PlatterDirectory, count: int) -> None:
    for change in directory.changes[:count]:
        apply_entry(directory.durable, change)
    del directory.changes[:count]


class SimulatedDisk(Disk):
    """What one process has of it: descriptors and locks, which are gone when it is."""

    def __init__(
        self, platter: Platter, scheduler: Scheduler, process: Process, kill: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__()
        self._platter = platter
        self._scheduler = scheduler
        self._process = process
        self._kill = kill
        self._open: dict[int, tuple[str, SimulatedFile]] = {}
        self._open_directories: dict[int, str] = {}
        self._next_fd = 3

    # --- faults ---

    def _enter(self, kind: Kind, path: str) -> DiskFault | None:
        """Take a little time, and find the fault that is meant for this call."""
        if self._process.dead:
            raise Killed
        platter, scheduler = self._platter, self._scheduler
        platter.calls[kind] += 1
        scheduler.now_s += CALL_S
        if platter.rng.random() < 0.1:
            scheduler.sleep(platter.rng.random() ** 2 * 0.002)
        if platter.kill_in_calls is not None:
            platter.kill_in_calls -= 1
            if platter.kill_in_calls <= 0:
                platter.kill_in_calls = None
                # The name of the file, not its directory: worlds in other directories are the same.
                self._die(f"in {kind} of {_base(path)}")
        for fault in platter.faults:
            if fault.kind == kind and fault.path in path:
                fault.times -= 1
                if fault.times <= 0:
                    platter.faults.remove(fault)
                platter.faults_met += 1
                return fault
        return None

    def _die(self, where: str) -> None:
        self._kill(where)
        raise Killed

    def _check(self, kind: Kind, path: str) -> None:
        fault = self._enter(kind, path)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), path)

    # --- files ---

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._check("open", path)
        directory, name = self._parent(path)
        file = directory.current.get(name)
        if file is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file = self._platter.new_file()
            directory.change(EntryChange(name, file))
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        assert isinstance(file, SimulatedFile)
        if flags & os.O_TRUNC and file.content:
            file.content.clear()
            file.ops.append(Change("truncate", 0))
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = (path, file)
        return fd

    def _file(self, fd: int) -> tuple[str, SimulatedFile]:
        found = self._open.get(fd)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    def close(self, fd: int) -> None:
        if self._process.dead:
            raise Killed
        _, file = self._file(fd)
        del self._open[fd]
        if file.locked_by is self:
            file.locked_by = None

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        path, file = self._file(fd)
        data = b"".join(buffers)
        fault = self._enter("pwritev", path)
        share = 1.0
        if fault is not None:
            # A write that fails may have written some of it, or all.
            share = fault.keep if fault.keep is not None else self._platter.rng.choice((0.0, 0.5, 1.0))
        kept = data[: int(len(data) * share)]
        self._take_room(file, offset + len(kept), path)
        if kept:
            if len(file.content) < offset + len(kept):
                file.content.extend(bytes(offset + len(kept) - len(file.content)))
            file.content[offset : offset + len(kept)] = kept
            file.ops.append(Change("write", offset, kept))
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error), path)
        return len(kept)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        path, file = self._file(fd)
        self._check("pread", path)
        return bytes(file.content[offset : offset + length])

    def pread_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        if self._process.dead:
            raise Killed
        if self._platter.rng.random() < 0.3:
            return None
        _, file = self._file(fd)
        data = bytes(file.content[offset : offset + length])
        return data if len(data) == length else None

    def fdatasync(self, fd: int) -> None:
        path, file = self._file(fd)
        count = len(file.ops)
        self._wait_for_platter()
        fault = self._enter("fdatasync", path)
        if fault is not None:
            # As the kernel does: the pages that could not be written are forgotten, and count as clean.
            del file.ops[:count]
            self._platter.failed_syncs += 1
            self._platter.on_failed_sync(path)
            raise OSError(fault.error, os.strerror(fault.error), path)
        if not (self._platter.lies and path.endswith(".log")):
            self._platter.sync(path, file, min(count, len(file.ops)))

    def truncate(self, fd: int, length: int) -> None:
        path, file = self._file(fd)
        self._check("truncate", path)
        if length < len(file.content):
            del file.content[length:]
        else:
            file.content.extend(bytes(length - len(file.content)))
        file.ops.append(Change("truncate", length))

    def allocate(self, fd: int, length: int) -> None:
        path, file = self._file(fd)
        self._check("allocate", path)
        self._take_room(file, length, path)
        if length > len(file.content):
            file.content.extend(bytes(length - len(file.content)))
            file.ops.append(Change("allocate", length))

    def size(self, fd: int) -> int:
        return len(self._file(fd)[1].content)

    def _take_room(self, file: SimulatedFile, end: int, path: str) -> None:
        room = self._platter.room_bytes
        more = end - len(file.content)
        if room is not None and more > 0 and self._platter.used_bytes + more > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _wait_for_platter(self) -> None:
        platter = self._platter
        if platter.rng.random() < platter.stalled:
            self._scheduler.sleep(platter.rng.random() * STALL_S_MAX)
        else:
            self._scheduler.sleep(platter.rng.random() ** 2 * SYNC_S_MAX)

    # --- directories ---

    def _parent(self, path: str) -> tuple[PlatterDirectory, str]:
        head, name = os.path.split(path)
        directory = self._platter.directories.get(head)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory, name

    def hold_dir(self, path: str) -> None:
        """Syncing needs no descriptor here."""

    def release_dir(self, path: str) -> None:
        """See `hold_dir`."""

    def fsync_dir(self, path: str) -> None:
        directory = self._platter.directories[path]
        count = len(directory.changes)
        self._wait_for_platter()
        self._check("fsync_dir", path)
        _make_entries_durable(directory, count)

    def rename(self, source: str, target: str) -> None:
        self._check("rename", source)
        if source in self._platter.directories:
            self._platter.move_tree(source, target)
            return
        directory, name = self._parent(source)
        if name not in directory.current:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        other, new = self._parent(target)
        if other is directory:
            directory.change(EntryChange(new, directory.current[name], renamed_from=name))
            return
        other.change(EntryChange(new, directory.current[name]))
        directory.change(EntryChange(name, None))
        for changed in (other, directory):
            _make_entries_durable(changed, len(changed.changes))

    def remove_dir(self, path: str) -> None:
        self._check("unlink", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._platter.remove_directory(path)

    def remove_tree(self, path: str) -> None:
        """File by file: it may end at any of them."""
        for folder in reversed(self._platter.tree(path)):
            for name in sorted(self._platter.directories[folder].current):
                self.unlink(os.path.join(folder, name))
            self.remove_dir(folder)

    def unlink(self, path: str) -> None:
        self._check("unlink", path)
        directory, name = self._parent(path)
        if name not in directory.current:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        directory.change(EntryChange(name, None))

    def listdir(self, path: str) -> list[str]:
        if self._process.dead:
            raise Killed
        prefix = path.rstrip("/") + "/"
        below = {name[len(prefix) :].partition("/")[0] for name in self._platter.directories if name.startswith(prefix)}
        return sorted({*self._platter.directories[path].current, *below} - {""})

    def makedirs(self, path: str) -> None:
        while path not in self._platter.directories:
            self._platter.make_directory(path)
            path = os.path.dirname(path)

    def exists(self, path: str) -> bool:
        if path in self._platter.directories:
            return True
        head, name = os.path.split(path)
        directory = self._platter.directories.get(head)
        return directory is not None and name in directory.current

    # --- locks and identity ---

    def try_lock(self, fd: int) -> bool:
        if fd in self._open_directories:
            return True
        file = self._open[fd][1]
        holder = file.locked_by
        if holder is not None and holder is not self and not holder._process.dead:
            return False
        file.locked_by = self
        return True

    def open_dir(self, path: str) -> int:
        fd = self._next_fd
        self._next_fd += 1
        self._open_directories[fd] = path
        return fd

    def close_dir(self, fd: int) -> None:
        del self._open_directories[fd]

    def identity(self, file: str | int) -> tuple[int, int]:
        if isinstance(file, int):
            if file in self._open_directories:
                return 2, self._directory_number(self._open_directories[file])
            return 1, self._open[file][1].number
        if file in self._platter.directories:
            return 2, self._directory_number(file)
        directory, name = self._parent(file)
        node = directory.current.get(name)
        if not isinstance(node, SimulatedFile):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return 1, node.number

    def _directory_number(self, path: str) -> int:
        return self._platter.directory_numbers[path]

    def boot_id(self) -> str:
        return f"boot-{self._platter.boot}"

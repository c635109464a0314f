"""A disk that fails on demand: errors and short writes at the n-th call, calls that hang, and power failures.

`FaultyDisk` does every call on the real file system and keeps, beside it, what would be on the platter: per file the
pages that were synced and the writes that were not yet, per directory the entries that were synced and the changes
that were not yet. `power_loss` builds from that a directory as a machine would find it after the power came back.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.patience import PATIENCE_S
from tests.platter import (
    PAGE_BYTES,
    Change,
    EntryChange,
    Image,
    Mode,
    PlatterDirectory,
    PlatterFile,
    after_power_loss,
    apply_entry,
)
from topics.storage.disk import Buffer, Disk

# How long a test waits for what is bound to happen; none of them is decided by it.
WAIT_S_MAX = PATIENCE_S

Kind = Literal["open", "pwritev", "pread", "fdatasync", "fsync_dir", "truncate", "allocate", "rename", "unlink"]


class Gate:
    """Holds calls back: `reached` is set when one has come, `open` lets it and all later ones through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._opened.wait(WAIT_S_MAX), "a gate was never opened"


@dataclass
class _Fault:
    """What happens to the calls of a kind from the `countdown`-th on, for `times` of them."""

    kind: Kind
    countdown: int
    times: int
    path: str
    error: int = 0
    keep_bytes: int | None = None
    gate: Gate | None = None

    def applies(self, kind: Kind, path: str) -> bool:
        if kind != self.kind or self.path not in path or self.times == 0:
            return False
        if self.countdown > 1:
            self.countdown -= 1
            return False
        self.times -= 1
        return True


class _Verdict(NamedTuple):
    """How much a write may write (None: all of it), and the error it ends with (0: none)."""

    keep_bytes: int | None
    error: int


class QuickDisk(Disk):
    """A real one that does not wait for the platter: a killed process loses nothing by it, and no test cuts the power.

    What is durable after a power failure is for `FaultyDisk` to say; servers under test have real disks.
    """

    def fdatasync(self, fd: int) -> None:
        os.fstat(fd)

    def fsync_dir(self, path: str) -> None:
        os.stat(path)

    def pread_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        """A file system in memory does not say that it never blocks."""
        data = self.pread(fd, length, offset)
        return data if len(data) == length else None


class SmallDisk(Disk):
    """A disk of a fixed number of bytes, counted in pages of the files that are created on it; then it is full.

    `allocate` takes its pages at once, a write those up to its end; unlinking, replacing and cutting give back.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.size_bytes = size_bytes
        self._lock = threading.Lock()
        # by inode: a name may change
        self._pages: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        return PAGE_BYTES * sum(self._pages.values())

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        fd = super().open(path, flags, mode)
        if flags & os.O_TRUNC:
            self._cut(fd, 0)
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._take(fd, offset + sum(map(len, buffers)))
        return super().pwritev(fd, buffers, offset)

    def allocate(self, fd: int, length: int) -> None:
        self._take(fd, length)
        if length > os.fstat(fd).st_size:
            os.ftruncate(fd, length)

    def truncate(self, fd: int, length: int) -> None:
        super().truncate(fd, length)
        self._cut(fd, length)

    def unlink(self, path: str) -> None:
        inode = os.stat(path).st_ino
        super().unlink(path)
        with self._lock:
            self._pages.pop(inode, None)

    def rename(self, source: str, target: str) -> None:
        replaced = os.stat(target).st_ino if os.path.exists(target) else 0
        super().rename(source, target)
        with self._lock:
            self._pages.pop(replaced, None)

    def _take(self, fd: int, end: int) -> None:
        inode, pages = os.fstat(fd).st_ino, -(-end // PAGE_BYTES)
        with self._lock:
            more = pages - self._pages.get(inode, 0)
            if more > 0:
                if self.used_bytes + PAGE_BYTES * more > self.size_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._pages[inode] = pages

    def _cut(self, fd: int, length: int) -> None:
        with self._lock:
            self._pages[os.fstat(fd).st_ino] = -(-length // PAGE_BYTES)


class FaultyDisk(Disk):
    """See the module. Faults are counted from the moment they are asked for; several may be pending."""

    def __init__(self, boot_id: str = "boot-1") -> None:
        super().__init__()
        self._boot_id = boot_id
        self._lock = threading.RLock()
        self._faults: list[_Fault] = []
        self._directories: dict[str, PlatterDirectory] = {}
        self._open_files: dict[int, tuple[str, PlatterFile]] = {}
        # by kind, and by kind and suffix of the file: calls["pwritev"], calls["pwritev.log"]
        self.calls: Counter[str] = Counter()

    # --- asking for faults ---

    def fail(
        self,
        kind: Kind,
        *,
        nth: int = 1,
        times: int = 1,
        error: int = errno.EIO,
        path: str = "",
        keep_bytes: int | None = None,
    ) -> None:
        """The nth call of `kind` (whose path contains `path`) raises; so do `times` in all, -1 for ever.

        For the log, say path=".log": beside it lies `synced`, which the commit thread writes when it comes to it.
        A pwritev with `keep_bytes` writes that many bytes before it raises.
        """
        self._faults.append(_Fault(kind, nth, times, path, error=error, keep_bytes=keep_bytes))

    def shorten(self, *, nth: int = 1, times: int = 1, keep_bytes: int = 1, path: str = "") -> None:
        """The nth pwritev writes `keep_bytes` only, and says so."""
        self._faults.append(_Fault("pwritev", nth, times, path, keep_bytes=keep_bytes))

    def hold(self, kind: Kind, *, nth: int = 1, path: str = "") -> Gate:
        """Calls of `kind` hang from the nth on until the gate is opened."""
        gate = Gate()
        self._faults.append(_Fault(kind, nth, -1, path, gate=gate))
        return gate

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()

    def _enter(self, kind: Kind, path: str) -> _Verdict:
        """Count a call and apply what is asked for; the verdict is for writes, which may fail half-way."""
        with self._lock:
            self.calls[kind] += 1
            if suffix := os.path.splitext(path)[1]:
                self.calls[kind + suffix] += 1
            due = [fault for fault in self._faults if fault.applies(kind, path)]
        verdict = _Verdict(None, 0)
        for fault in due:
            if fault.gate is not None:
                fault.gate.pass_through()
            elif fault.keep_bytes is not None:
                verdict = _Verdict(fault.keep_bytes, fault.error)
            elif fault.error:
                raise OSError(fault.error, os.strerror(fault.error), path)
        return verdict

    # --- the calls ---

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        path = os.path.abspath(path)
        self._enter("open", path)
        with self._lock:
            directory = self._directory(os.path.dirname(path))
            fd = super().open(path, flags, mode)
            name = os.path.basename(path)
            node = directory.current.get(name)
            if node is None:
                node = PlatterFile()
                directory.change(EntryChange(name, node))
            elif flags & os.O_TRUNC:
                node.ops.append(Change("truncate", 0))
            self._open_files[fd] = (path, node)
        return fd

    def close(self, fd: int) -> None:
        with self._lock:
            del self._open_files[fd]
            super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        path, node = self._open_files[fd]
        verdict = self._enter("pwritev", path)
        data = b"".join(buffers)[: verdict.keep_bytes]
        with self._lock:
            written = os.pwrite(fd, data, offset) if data else 0
            node.ops.append(Change("write", offset, data[:written]))
        if verdict.error:
            raise OSError(verdict.error, os.strerror(verdict.error), path)
        return written

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._enter("pread", self._open_files[fd][0])
        return super().pread(fd, length, offset)

    def fdatasync(self, fd: int) -> None:
        path, node = self._open_files[fd]
        with self._lock:
            count = len(node.ops)
        try:
            self._enter("fdatasync", path)
        except OSError:
            # As the kernel does: the pages that could not be written are forgotten, and no later sync brings them back.
            with self._lock:
                del node.ops[:count]
            raise
        with self._lock:
            node.sync(count)

    def fsync_dir(self, path: str) -> None:
        path = os.path.abspath(path)
        with self._lock:
            directory = self._directory(path)
            count = len(directory.changes)
        self._enter("fsync_dir", path)
        with self._lock:
            for entry in directory.changes[:count]:
                apply_entry(directory.durable, entry)
            del directory.changes[:count]

    def truncate(self, fd: int, length: int) -> None:
        path, node = self._open_files[fd]
        self._enter("truncate", path)
        with self._lock:
            super().truncate(fd, length)
            node.ops.append(Change("truncate", length))

    def allocate(self, fd: int, length: int) -> None:
        path, node = self._open_files[fd]
        self._enter("allocate", path)
        with self._lock:
            super().allocate(fd, length)
            node.ops.append(Change("allocate", length))

    def rename(self, source: str, target: str) -> None:
        source, target = os.path.abspath(source), os.path.abspath(target)
        assert os.path.dirname(source) == os.path.dirname(target)
        self._enter("rename", source)
        with self._lock:
            directory = self._directory(os.path.dirname(source))
            super().rename(source, target)
            name = os.path.basename(source)
            directory.change(EntryChange(os.path.basename(target), directory.current[name], renamed_from=name))

    def unlink(self, path: str) -> None:
        path = os.path.abspath(path)
        self._enter("unlink", path)
        with self._lock:
            directory = self._directory(os.path.dirname(path))
            super().unlink(path)
            directory.change(EntryChange(os.path.basename(path), None))

    def listdir(self, path: str) -> list[str]:
        self._directory(os.path.abspath(path))
        return super().listdir(path)

    def boot_id(self) -> str:
        return self._boot_id

    def _directory(self, path: str) -> PlatterDirectory:
        """A directory is taken as durable as it is when it is first met; so is its own existence, always."""
        with self._lock:
            directory = self._directories.get(path)
            if directory is None:
                directory = self._directories[path] = PlatterDirectory()
                for entry in os.scandir(path):
                    if entry.is_file():
                        directory.durable[entry.name] = _load_node(entry.path)
                directory.current = dict(directory.durable)
            return directory

    # --- power failure ---

    def kill(self, root: str | os.PathLike[str], into: str | os.PathLike[str]) -> FaultyDisk:
        """Write to `into` what a process killed now leaves of `root`, even while its threads are at work."""
        self.power_loss(root, into, "keep")
        return FaultyDisk(self._boot_id)

    def power_loss(
        self, root: str | os.PathLike[str], into: str | os.PathLike[str], mode: Mode, seed: int = 0
    ) -> FaultyDisk:
        """Write to `into` what `root` is after a power failure now; returns a disk of the next boot to open it with.

        keep: everything written is there (a kill, in effect)     drop: only what was synced is there
        torn: of each file a prefix of its un-synced writes, the last one cut at a multiple of 512 or 4096
        reorder: each un-synced page (or sector) of each file is there in any of its states, whatever came first
        Directory changes that were not synced are kept up to some point in the last two.
        """
        root, into = os.path.abspath(root), os.path.abspath(into)
        rng = random.Random(seed)
        with self._lock:
            for path, _, _ in os.walk(root):
                self._directory(path)
            for path, directory in sorted(self._directories.items()):
                if path == root or path.startswith(root + os.sep):
                    self._write_directory(directory, into + path[len(root) :], mode, rng)
        return FaultyDisk(boot_id=f"{self._boot_id}+")

    def _write_directory(self, directory: PlatterDirectory, target: str, mode: Mode, rng: random.Random) -> None:
        os.makedirs(target, exist_ok=True)
        entries = dict(directory.durable)
        count = len(directory.changes)
        kept = {"keep": count, "drop": 0}.get(mode, rng.randint(0, count))
        for entry in directory.changes[:kept]:
            apply_entry(entries, entry)
        for name, node in entries.items():
            after_power_loss(node, mode, rng).save(os.path.join(target, name))


def _load_node(path: str) -> PlatterFile:
    node = PlatterFile()
    with open(path, "rb") as file:
        image = Image({}, 0)
        while data := file.read(PAGE_BYTES):
            if data.strip(b"\0"):
                image.pages[image.size // PAGE_BYTES] = data.ljust(PAGE_BYTES, b"\0")
            image.size += len(data)
    node.pages, node.size = image.pages, image.size
    return node

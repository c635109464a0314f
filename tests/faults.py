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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.patience import PATIENCE_S
from topics.storage.disk import Buffer, Disk

PAGE_BYTES = 4096
SECTOR_BYTES = 512
# How long a test waits for what is bound to happen; none of them is decided by it.
WAIT_S_MAX = PATIENCE_S

Kind = Literal["open", "pwritev", "pread", "fdatasync", "fsync_dir", "truncate", "allocate", "rename", "unlink"]
Mode = Literal["keep", "drop", "torn", "reorder"]


class Gate:
    """Holds calls back: `reached` tells that one has come, `open` lets it and all later ones through."""

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


class _Op(NamedTuple):
    """A change of a file that is not synced: bytes at an offset, or a new length."""

    kind: Literal["write", "truncate", "allocate"]
    offset: int
    data: bytes = b""


@dataclass
class _Node:
    """A file apart from its names: what is durable, and what came after, in order."""

    pages: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    ops: list[_Op] = field(default_factory=list)

    def sync(self, count: int) -> None:
        image = _Image(dict(self.pages), self.size)
        for op in self.ops[:count]:
            image.apply(op)
        self.pages, self.size = image.pages, image.size
        del self.ops[:count]


class _Entry(NamedTuple):
    """A change of a directory that is not synced; a node of None unlinks the name."""

    name: str
    node: _Node | None
    renamed_from: str = ""


@dataclass
class _Directory:
    durable: dict[str, _Node] = field(default_factory=dict)
    current: dict[str, _Node] = field(default_factory=dict)
    changes: list[_Entry] = field(default_factory=list)

    def change(self, entry: _Entry) -> None:
        _apply_entry(self.current, entry)
        self.changes.append(entry)


class _Image:
    """The content of a file, by pages; pages of zeros are left out."""

    def __init__(self, pages: dict[int, bytes], size: int) -> None:
        self.pages = pages
        self.size = size

    def apply(self, op: _Op) -> None:
        if op.kind == "write":
            self.write(op.offset, op.data)
        elif op.kind == "allocate":
            self.size = max(self.size, op.offset)
        else:
            self.truncate(op.offset)

    def write(self, offset: int, data: bytes) -> None:
        for number, start, piece in _pieces(offset, data):
            page = self.pages.get(number, bytes(PAGE_BYTES))
            self.pages[number] = page[:start] + piece + page[start + len(piece) :]
        self.size = max(self.size, offset + len(data))

    def truncate(self, length: int) -> None:
        for number in list(self.pages):
            kept = length - number * PAGE_BYTES
            if kept <= 0:
                del self.pages[number]
            elif kept < PAGE_BYTES:
                self.pages[number] = self.pages[number][:kept].ljust(PAGE_BYTES, b"\0")
        self.size = length

    def save(self, path: str) -> None:
        """Write the content as a file with holes, as most of a preallocated file is empty."""
        with open(path, "wb") as file:
            file.truncate(self.size)
            for number, page in self.pages.items():
                start = number * PAGE_BYTES
                file.seek(start)
                file.write(page[: max(0, self.size - start)])


class QuickDisk(Disk):
    """A real one that does not wait for the platter: a killed process loses nothing by it, and no test cuts the power.

    What is durable after a power failure is for `FaultyDisk` to say; servers under test have real disks.
    """

    def fdatasync(self, fd: int) -> None:
        os.fstat(fd)

    def fsync_dir(self, path: str) -> None:
        os.stat(path)


class SmallDisk(Disk):
    """A disk that holds so many bytes, counted in pages of the files that are made on it, and is then full.

    `allocate` takes its pages at once, a write those up to its end; unlinking and cutting give back.
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
        self._directories: dict[str, _Directory] = {}
        self._open_files: dict[int, tuple[str, _Node]] = {}
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
                node = _Node()
                directory.change(_Entry(name, node))
            elif flags & os.O_TRUNC:
                node.ops.append(_Op("truncate", 0))
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
            node.ops.append(_Op("write", offset, data[:written]))
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
                _apply_entry(directory.durable, entry)
            del directory.changes[:count]

    def truncate(self, fd: int, length: int) -> None:
        path, node = self._open_files[fd]
        self._enter("truncate", path)
        with self._lock:
            super().truncate(fd, length)
            node.ops.append(_Op("truncate", length))

    def allocate(self, fd: int, length: int) -> None:
        path, node = self._open_files[fd]
        self._enter("allocate", path)
        with self._lock:
            super().allocate(fd, length)
            node.ops.append(_Op("allocate", length))

    def rename(self, source: str, target: str) -> None:
        source, target = os.path.abspath(source), os.path.abspath(target)
        assert os.path.dirname(source) == os.path.dirname(target)
        self._enter("rename", source)
        with self._lock:
            directory = self._directory(os.path.dirname(source))
            super().rename(source, target)
            name = os.path.basename(source)
            directory.change(_Entry(os.path.basename(target), directory.current[name], renamed_from=name))

    def unlink(self, path: str) -> None:
        path = os.path.abspath(path)
        self._enter("unlink", path)
        with self._lock:
            directory = self._directory(os.path.dirname(path))
            super().unlink(path)
            directory.change(_Entry(os.path.basename(path), None))

    def listdir(self, path: str) -> list[str]:
        self._directory(os.path.abspath(path))
        return super().listdir(path)

    def boot_id(self) -> str:
        return self._boot_id

    def _directory(self, path: str) -> _Directory:
        """A directory is taken as durable as it is when it is first met; so is its own existence, always."""
        with self._lock:
            directory = self._directories.get(path)
            if directory is None:
                directory = self._directories[path] = _Directory()
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
        Changes of directories that were not synced are there up to some point in the last two.
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

    def _write_directory(self, directory: _Directory, target: str, mode: Mode, rng: random.Random) -> None:
        os.makedirs(target, exist_ok=True)
        entries = dict(directory.durable)
        count = len(directory.changes)
        kept = {"keep": count, "drop": 0}.get(mode, rng.randint(0, count))
        for entry in directory.changes[:kept]:
            _apply_entry(entries, entry)
        for name, node in entries.items():
            _after_power_loss(node, mode, rng).save(os.path.join(target, name))


def _apply_entry(entries: dict[str, _Node], entry: _Entry) -> None:
    if entry.renamed_from:
        entries.pop(entry.renamed_from, None)
    if entry.node is None:
        entries.pop(entry.name, None)
    else:
        entries[entry.name] = entry.node


def _load_node(path: str) -> _Node:
    node = _Node()
    with open(path, "rb") as file:
        image = _Image({}, 0)
        while data := file.read(PAGE_BYTES):
            if data.strip(b"\0"):
                image.pages[image.size // PAGE_BYTES] = data.ljust(PAGE_BYTES, b"\0")
            image.size += len(data)
    node.pages, node.size = image.pages, image.size
    return node


def _pieces(offset: int, data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Cut a write at the bounds of pages: (page number, start in it, bytes)."""
    at = 0
    while at < len(data):
        number, start = divmod(offset + at, PAGE_BYTES)
        piece = data[at : at + PAGE_BYTES - start]
        yield number, start, piece
        at += len(piece)


def _after_power_loss(node: _Node, mode: Mode, rng: random.Random) -> _Image:
    image = _Image(dict(node.pages), node.size)
    match mode:
        case "keep":
            for op in node.ops:
                image.apply(op)
        case "drop":
            pass
        case "torn":
            _tear(image, node.ops, rng)
        case "reorder":
            _reorder(image, node.ops, rng)
    return image


def _tear(image: _Image, ops: list[_Op], rng: random.Random) -> None:
    kept = rng.randint(0, len(ops))
    for op in ops[:kept]:
        image.apply(op)
    if kept < len(ops) and ops[kept].kind == "write":
        op = ops[kept]
        unit = rng.choice((SECTOR_BYTES, PAGE_BYTES))
        end = rng.randint(op.offset, op.offset + len(op.data)) // unit * unit
        image.write(op.offset, op.data[: max(0, end - op.offset)])


def _reorder(image: _Image, ops: list[_Op], rng: random.Random) -> None:
    """Lengths change in order, up to some point; what was written under a later length than that cannot be there."""
    lengths = [index for index, op in enumerate(ops) if op.kind != "write"]
    kept_lengths = lengths[: rng.randint(0, len(lengths))]
    cuts = [index for index in lengths if ops[index].kind == "truncate"]
    earliest = max((index + 1 for index in kept_lengths if index in cuts), default=0)
    latest = min((index for index in cuts if index not in kept_lengths), default=len(ops))
    for index in kept_lengths:
        image.apply(ops[index])
    writes = [op for op in ops[earliest:latest] if op.kind == "write"]
    unit = rng.choice((SECTOR_BYTES, PAGE_BYTES))
    units = {at // unit for op in writes for at in range(op.offset // unit * unit, op.offset + len(op.data), unit)}
    for number in sorted(units):
        start, end = number * unit, (number + 1) * unit
        touching = [op for op in writes if op.offset < end and op.offset + len(op.data) > start]
        for op in touching[: rng.randint(0, len(touching))]:
            first, last = max(start, op.offset), min(end, op.offset + len(op.data))
            image.write(first, op.data[first - op.offset : last - op.offset])

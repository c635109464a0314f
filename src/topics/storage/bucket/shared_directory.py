"""A bucket in a directory that several machines may share: `file:///a/shared/directory`.

    create   write aside, sync, link(2) under the final name, which fails if that exists
    swap     the same with rename(2), under a lock of the directory, after a look at the present version

Both need a file system with working locks and links: a local one, or NFS from version 4.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from xxhash import xxh3_64_hexdigest

from topics.storage.bucket.bucket import Changed, Exists, Found, Listed, Refused, Unreachable
from topics.storage.disk import Buffer, Disk, read_file, write_all

LOCK = ".lock"
ASIDE = ".aside"
# Errors that asking again does not cure.
_LASTING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EOPNOTSUPP})


class SharedDirectory:
    """A `ObjectBucket` of files. Objects are files below `path`; its own files begin with a dot."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self._path = os.path.abspath(path)
        self._disk = disk or Disk()
        self._expected: tuple[str, bytes] | None = None

    def create(self, key: str, data: Buffer) -> None:
        with self._errors(key), self._written_aside(lambda fd: write_all(self._disk, fd, [data], 0)) as aside:
            self._link(aside, key)

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        written = self._written_aside(lambda fd: write_all(self._disk, fd, [data], 0))
        with self._errors(key), written as aside, self._locked():
            found = self._read(key)
            if (found.etag if found is not None else None) != etag:
                raise Changed(f"{key} was changed by another server", key=key)
            self._rename(aside, key)
        return _etag(bytes(data))

    def upload(self, key: str, path: str) -> None:
        def copy(fd: int) -> None:
            source = self._disk.open(path, os.O_RDONLY)
            try:
                offset = 0
                while chunk := self._disk.pread(source, 1 << 20, offset):
                    offset += write_all(self._disk, fd, [chunk], offset)
            finally:
                self._disk.close(source)

        with self._errors(key), self._written_aside(copy) as aside:
            self._rename(aside, key)

    def read(self, key: str) -> Found | None:
        with self._errors(key):
            return self._read(key)

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        with self._errors(key):
            try:
                fd = self._disk.open(os.path.join(self._path, key), os.O_RDONLY)
            except FileNotFoundError:
                self._check()
                return None
            try:
                return self._disk.pread(fd, length, offset)
            finally:
                self._disk.close(fd)

    def download(self, key: str, path: str) -> bool:
        with self._errors(key):
            try:
                self._disk.copy_file(os.path.join(self._path, key), path)
            except FileNotFoundError:
                self._check()
                return False
            return True

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        with self._errors(prefix):
            folder = os.path.join(self._path, prefix)
            found: list[Listed] = []
            for where, folders, names in os.walk(folder, onerror=_unless_absent):
                at = os.path.relpath(where, self._path)
                # Folders before `after` need not be looked at; there may be many.
                folders[:] = [name for name in folders if f"{at}/{name}/" >= after[: len(at) + len(name) + 2]]
                for name in names:
                    key = f"{at}/{name}"
                    if key > after:
                        try:
                            status = os.stat(os.path.join(where, name))
                        except FileNotFoundError:
                            continue
                        found.append(Listed(key, status.st_size, int(status.st_mtime * 1000)))
            self._check()
        yield from sorted(found)

    def expect(self, key: str, data: bytes) -> None:
        self._expected = key, data

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            with self._errors(key):
                try:
                    os.unlink(os.path.join(self._path, key))
                except FileNotFoundError:
                    pass

    # --- files ---

    def _read(self, key: str) -> Found | None:
        try:
            data = read_file(self._disk, os.path.join(self._path, key))
        except FileNotFoundError:
            self._check()
            return None
        return Found(data, _etag(data))

    def _check(self) -> None:
        """A share that is not mounted any more is an empty directory, not an empty bucket.

        Looked at after a file was written aside, and before it gets its name, which only works in the same place.
        """
        if self._expected is None:
            return
        key, data = self._expected
        try:
            found = read_file(self._disk, os.path.join(self._path, key))
        except FileNotFoundError:
            found = None
        if found != data:
            raise Unreachable(f"{self._path} is not the bucket that it was: is it mounted?", key=key)

    def _place(self, key: str) -> str:
        self._check()
        target = os.path.join(self._path, key)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        return target

    def _rename(self, aside: str, key: str) -> None:
        target = self._place(key)
        os.rename(aside, target)
        self._disk.fsync_dir(os.path.dirname(target))

    def _link(self, aside: str, key: str) -> None:
        target = self._place(key)
        try:
            os.link(aside, target)
        except FileExistsError:
            raise Exists(f"{key} exists", key=key) from None
        self._disk.fsync_dir(os.path.dirname(target))

    @contextmanager
    def _written_aside(self, write: Callable[[int], object]) -> Generator[str]:
        """A synced file without a name of its own; it is removed at the end, unless it was renamed."""
        folder = os.path.join(self._path, ASIDE)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, secrets.token_hex(8))
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                write(fd)
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
            yield path
        finally:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    @contextmanager
    def _locked(self) -> Generator[None]:
        fd = self._disk.open(os.path.join(self._path, LOCK), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._disk.close(fd)

    @contextmanager
    def _errors(self, key: str) -> Generator[None]:
        try:
            if not os.path.isdir(self._path):
                raise Refused(f"{self._path} is not a directory: create it, or mount it", key=key)
            yield
        except OSError as error:
            kind = Refused if error.errno in _LASTING else Unreachable
            raise kind(f"{key} in {self._path}: {error.strerror}", key=key) from error


def _unless_absent(error: OSError) -> None:
    """A folder that cannot be read is not an empty one: `os.walk` would leave it out."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _etag(data: bytes) -> str:
    return xxh3_64_hexdigest(data)

"""`topics backup` and `topics restore`: a checked copy of a running server in one file, and a data directory from it.

    backup   server ─▶ check every byte on the way ─▶ FILE.partial ─▶ FILE
    restore  FILE ─▶ check every byte ─▶ DIR/restoring ─▶ open and read all of it, as `topics verify` does ─▶ DIR
             s3://… ─▶ a snapshot and the log after it ─▶ the same

A file under its final name is complete; after a failure there is none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Generator
from typing import IO, TYPE_CHECKING, Annotated

import typer

from topics.cli.connection import takes_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import say
from topics.cli.progress import progress
from topics.cli.spans import moment_ms, shown_bytes
from topics.storage.archive import ArchiveReader, DamagedBackup, Manifest
from topics.storage.directory import META, META_COPY, RESTORING, forget_copying
from topics.storage.disk import Disk, write_all
from topics.storage.lock import LOCK

if TYPE_CHECKING:
    from topics.client import Client

READ_BYTES = 1 << 20
PARTIAL_SUFFIX = ".partial"


@takes_client
def backup(
    client: Client,
    file: Annotated[
        str, typer.Argument(help="The file to write; - is standard output.", metavar="FILE", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Copy a running server into one file: everything acknowledged before, at one point in time.

    The key needs the scope admin and must not be limited to prefixes. The copy is checked while it is written; FILE
    appears when it is complete and on disk. `topics restore` makes a data directory from it.
    """
    if file == "-":
        manifest = _copy(client, sys.stdout.buffer)
    else:
        if os.path.exists(file) and not force:
            raise CommandFailed(f"{file} exists; --force replaces it")
        with _file_made_whole(file) as out:
            manifest = _copy(client, out)
    say(f"{len(manifest.files)} files, {shown_bytes(manifest.bytes)}, as of {_shown_time(manifest)}")


def restore(
    file: Annotated[
        str,
        typer.Argument(
            help="A backup, - is standard input; or the bucket of a server, as in TOPICS_BUCKET.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    data_dir: Annotated[str, typer.Argument(help="An empty or new directory.", metavar="DIR", show_default=False)],
    moved: Annotated[
        bool,
        typer.Option("--moved", help="The server accepted no write after the backup: seqs continue without a gap."),
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            help="Of a bucket: the state at that time, like 10m (ago) or 2026-11-16T08:00Z; else the newest.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Open and read everything; without it, run `topics repair` next."),
    ] = True,
) -> None:
    """Make a data directory from a backup or a bucket, after checking every byte of it.

    Topics continue above every seq that the server can have assigned since the backup, so that no reader's cursor
    ever meets other records under seqs it has seen. Readers see the gap.
    """
    at_ms = moment_ms(at, "--at") if at is not None else None
    if at_ms is not None and "://" not in file:
        raise CommandFailed("--at is for buckets; a backup has one moment")
    with _directory_made_whole(data_dir) as aside:
        if "://" in file:
            files, time_ms = _fetch(file, aside, at_ms)
        else:
            manifest = _unpack(file, aside)
            files, time_ms = len(manifest.files), manifest.server_time_ms
        if moved:
            forget_copying(Disk(), aside)
        found = _verified(aside) if verify else f"{files} files, not verified"
    say(f"{data_dir}: {found}, as of {_shown_ms(time_ms)}")


# --- making one ---


def _copy(client: Client, out: IO[bytes]) -> Manifest:
    reader = ArchiveReader()
    with client.backup() as pieces, progress("backup", pieces.bytes_total, "bytes") as step:
        try:
            for piece in pieces:
                reader.feed(piece)
                out.write(piece)
                step(len(piece))
            manifest = reader.finish()
        except DamagedBackup as error:
            raise CommandFailed(f"{error.message}; the server sent it like this, try again", NOT_SO) from None
    out.flush()
    return manifest


@contextlib.contextmanager
def _file_made_whole(path: str) -> Generator[IO[bytes]]:
    """A file that gets its name once all its bytes are on disk; otherwise there is no file."""
    partial = path + PARTIAL_SUFFIX
    try:
        with open(partial, "wb", opener=_for_the_owner_alone) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
        _sync_directory(os.path.dirname(os.path.abspath(path)))
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise CommandFailed(f"cannot write {path}: {error.strerror or error}", NOT_SO) from None
        raise


def _for_the_owner_alone(path: str, flags: int) -> int:
    """A backup contains all records."""
    return os.open(path, flags, 0o600)


# --- using one ---


def _fetch(url: str, target: str, at_ms: int | None) -> tuple[int, int]:
    """From a bucket, which is only read: how many files, and from when the newest piece of the log is."""
    from topics.storage.bucket.restoring import restore_into
    from topics.storage.bucket.starting.connecting import connect
    from topics.storage.directory import DataDirectory, Meta

    restored = restore_into(connect(url, os.environ), Disk(), target, at_ms=at_ms)
    DataDirectory(Disk(), target).replace_meta(Meta("", True, restored.position, restored.time_ms))
    return restored.files, restored.time_ms


def _unpack(file: str, target: str) -> Manifest:
    reader = ArchiveReader(_Unpacked(target))
    try:
        with _opened(file) as source:
            total = os.fstat(source.fileno()).st_size if file != "-" else None
            with progress("restore", total, "bytes") as step:
                while piece := source.read(READ_BYTES):
                    reader.feed(piece)
                    step(len(piece))
        return reader.finish()
    except DamagedBackup as error:
        raise CommandFailed(f"{file}: {error.message}; nothing was restored", NOT_SO) from None


@contextlib.contextmanager
def _opened(file: str) -> Generator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as closing:
        try:
            source = closing.enter_context(open(file, "rb"))
        except OSError as error:
            raise CommandFailed(f"cannot read {file}: {error.strerror}") from None
        yield source


class _Unpacked:
    """Writes the files of an archive into a directory, and syncs each of them."""

    def __init__(self, target: str) -> None:
        self._disk = Disk()
        self._target = target
        self._fd = -1
        self._offset = 0

    def begin(self, name: str, length: int) -> None:
        path = os.path.join(self._target, name)
        self._disk.makedirs(os.path.dirname(path))
        self._fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._offset = 0
        if length:
            self._disk.allocate(self._fd, length)

    def write(self, data: bytes | memoryview) -> None:
        self._offset += write_all(self._disk, self._fd, [data], self._offset)

    def end(self) -> None:
        self._disk.fdatasync(self._fd)
        self._disk.close(self._fd)


def _verified(path: str) -> str:
    """What `topics verify` reads; this is the first start of the directory."""
    from topics.engine.opening.repair import damaged_blocks, packed_bytes
    from topics.engine.opening.store import Store
    from topics.model.errors import TopicsError

    store = Store(path)
    store.bucket_side.accepts_writes = False
    hint = "`--no-verify` restores it unchanged, for `topics repair`"
    try:
        with progress("verify: log", 100, "%") as step:
            done = 0
            for share in store.opening():
                done, before = int(100 * share), done
                step(done - before)
    except TopicsError as error:
        raise CommandFailed(f"the server that was backed up had damage: {error.message}; {hint}", NOT_SO) from None
    try:
        with progress("verify: records", packed_bytes(store.state), "bytes") as step:
            damaged = damaged_blocks(store.state, store.packs, step)
        for damage in damaged:
            line = next(iter(damage.lines()), damage.reason)
            raise CommandFailed(f"the server that was backed up had damage: {line}; {hint}", NOT_SO)
        return f"{len(store.state.names)} topics, {store.state.count} records"
    finally:
        store.close()


@contextlib.contextmanager
def _directory_made_whole(path: str) -> Generator[str]:
    """A directory beside the final one; at the end its content is moved up, `meta.json` last.

    A directory with data and without `meta.json` is refused at every start, so an unfinished restore is never served.
    """
    is_new = not os.path.exists(path)
    aside = os.path.join(path, RESTORING)
    with contextlib.ExitStack() as closing:
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            closing.enter_context(_locked(path))
            _check_empty(path)
            os.mkdir(aside, 0o700)
        except OSError as error:
            raise CommandFailed(f"cannot restore to {path}: {error.strerror}") from None
        with _cleared_on_failure(path, aside, is_new):
            yield aside
            _move_up(aside, path)


@contextlib.contextmanager
def _cleared_on_failure(path: str, aside: str, is_new: bool) -> Generator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        if isinstance(error, OSError):
            raise CommandFailed(f"cannot restore to {path}: {error.strerror}; nothing was kept", NOT_SO) from None
        raise


@contextlib.contextmanager
def _locked(path: str) -> Generator[None]:
    """Lock the directory against servers and other restores."""
    disk = Disk()
    fd = disk.open_dir(path)
    try:
        if not disk.try_lock(fd):
            raise CommandFailed(f"{path} is in use: by a server, or another restore")
        yield
    finally:
        disk.close_dir(fd)


def _check_empty(path: str) -> None:
    """Remove the files of an interrupted restore; refuse any other file."""
    left = set(os.listdir(path)) - {"lost+found", LOCK}
    interrupted = RESTORING in left and all(name == RESTORING or name.startswith("shard-") for name in left)
    if left and not interrupted:
        raise CommandFailed(f"{path} is not empty; give a new directory, or empty this one first")
    # In this order: until it is gone, data without `meta.json` is marked as an unfinished restore.
    for name in sorted(left, reverse=True):
        shutil.rmtree(os.path.join(path, name))


def _move_up(aside: str, path: str) -> None:
    names = [name for name in os.listdir(aside) if name not in (META, META_COPY, LOCK)]
    for name in names:
        os.rename(os.path.join(aside, name), os.path.join(path, name))
    _sync_directory(path)
    os.rename(os.path.join(aside, META), os.path.join(path, META))
    with contextlib.suppress(FileNotFoundError):
        os.rename(os.path.join(aside, META_COPY), os.path.join(path, META_COPY))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(aside, LOCK))
    os.rmdir(aside)
    _sync_directory(path)


def _sync_directory(path: str) -> None:
    Disk().fsync_dir(path)


def _shown_time(manifest: Manifest) -> str:
    return _shown_ms(manifest.server_time_ms)


def _shown_ms(time_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ms / 1000))

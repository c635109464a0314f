"""Maintenance of a data directory that no server uses: verify and repair."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Annotated

import typer

from topics.cli.failure import FINE, NOT_SO, CommandFailed
from topics.cli.output import say
from topics.engine.opening.inspection import Inspection
from topics.engine.opening.repair import damaged_blocks, gap_lines, may_come_back
from topics.engine.opening.store import Store
from topics.model.errors import DamagedData
from topics.model.settings import Settings
from topics.storage.directory import META, DataDirectory, UnknownPast
from topics.storage.viewing import ViewDisk

DataDir = Annotated[str, typer.Argument(help="The data directory.", metavar="DIR", envvar="TOPICS_DATA_DIR")]
ColdDir = Annotated[
    str | None,
    typer.Option(
        "--cold-dir", help="The directory of older segments, if the server uses one.", envvar="TOPICS_COLD_DIR"
    ),
]


def verify(data_dir: DataDir, cold_dir: ColdDir = None) -> None:
    """Read a data directory that no server uses, and report damage (exit code 1 then).

    Nothing is created or changed.
    """
    raise typer.Exit(verify_directory(data_dir, cold_dir))


def repair(
    data_dir: DataDir,
    cold_dir: ColdDir = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make a damaged data directory usable: records that cannot be read become a gap that readers see.

    First it shows what would be lost, and what may reappear because the log no longer says that it was deleted
    or acked; then it asks.
    """
    raise typer.Exit(repair_directory(data_dir, cold_dir, yes=yes))


# --- verify ---


def verify_directory(path: str, cold_dir: str | None = None) -> int:
    """Read like a start, and every pack, without writing anything."""
    disk = ViewDisk()
    directory = DataDirectory(disk, _existing(path), cold_dir)
    try:
        directory.open_to_read()
    except UnknownPast as error:
        print(error.message)
        return NOT_SO
    with contextlib.closing(directory):
        try:
            found = Inspection(disk, directory, thorough=True)
        except DamagedData as error:
            print(error.message)
            return NOT_SO
        except FileNotFoundError as error:
            print(f"{error.filename} is missing")
            return NOT_SO
        with contextlib.closing(found):
            return _report(found, directory)


def _report(found: Inspection, directory: DataDirectory) -> int:
    damaged = damaged_blocks(found.state, found.packs)
    lost = [line for damage in damaged for line in damage.lines()]
    harmless = {damage.reason for damage in damaged if not damage.lost_runs()}
    harmless.update(directory.damaged_meta)
    harmless.update(f"snapshot {file} is damaged" for file in found.snapshots.damaged)
    for line in lost:
        print(line)
    for line in sorted(harmless):
        print(f"{line}; no record is lost")
    summary = f"{len(found.state.names)} topics, {found.state.count} records, {found.state.bytes} bytes"
    if remotes := found.packs.remotes():
        print(f"{len(remotes)} packs are only in the bucket and were not read")
    if not lost and not harmless:
        print(f"{summary}: all fine")
        return FINE
    print(f"{summary}: {len(lost) + len(harmless)} places damaged; `topics repair` shows what would be lost")
    return NOT_SO


# --- repair ---


def repair_directory(path: str, cold_dir: str | None = None, *, yes: bool = False) -> int:
    if not any(os.path.exists(os.path.join(_existing(path), name)) for name in (META, "shard-00")):
        raise CommandFailed(f"{path} is not a data directory: it has no {META}")
    if not _plan(path, cold_dir):
        return FINE
    if not yes:
        _ask(path)
    store = Store(path, Settings(cold_dir=cold_dir), repair=True)
    show = _progress_line("repairing")
    for progress in store.opening():
        show(progress)
    for line in store.given_up:
        print(f"given up: {line}")
    store.close()
    left = f"{len(store.state.names)} topics, {store.state.count} records are usable"
    print(f"{left}; {len(store.given_up)} gaps, reported to readers" if store.given_up else f"{left}; nothing was lost")
    return FINE


def _plan(path: str, cold_dir: str | None) -> bool:
    """Print what a repair would do; returns whether there is anything to do."""
    with _inspected(path, cold_dir) as (found, directory):
        damaged = damaged_blocks(found.state, found.packs)
        gaps = found.log.repaired
        lost = [*found.given_up, *gap_lines(gaps), *(line for damage in damaged for line in damage.lines())]
        for line in lost:
            print(f"would be lost: {line}")
        for line in may_come_back(found.state, gaps):
            print(f"may reappear: {line}")
        others = {damage.reason for damage in damaged if not damage.lost_runs()}
        others.update(directory.damaged_meta)
        others.update(f"snapshot {file} is damaged" for file in found.snapshots.damaged)
        for line in sorted(others):
            print(f"would be written again: {line}")
        if not lost and not others:
            print(f"{len(found.state.names)} topics, {found.state.count} records are usable; nothing was damaged")
        return bool(lost or others)


@contextlib.contextmanager
def _inspected(path: str, cold_dir: str | None) -> Generator[tuple[Inspection, DataDirectory]]:
    disk = ViewDisk()
    directory = DataDirectory(disk, path, cold_dir)
    directory.open_to_read(repair=True)
    with (
        contextlib.closing(directory),
        contextlib.closing(Inspection(disk, directory, repair=True, thorough=True)) as it,
    ):
        yield it, directory


def _ask(path: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"nothing was changed: a repair of {path} needs --yes where there is no terminal to confirm on"
        )
    if not typer.confirm(f"Repair {path}? Lost records cannot be recovered; copy the directory first.", err=True):
        say("nothing was changed")
        raise typer.Exit(NOT_SO)


def _progress_line(what: str) -> Callable[[float], None]:
    """A progress line on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda progress: print(
        f"\r{what}: {progress:4.0%}", end="" if progress < 1 else "\n", file=sys.stderr, flush=True
    )


def _existing(path: str) -> str:
    if not os.path.isdir(path):
        raise CommandFailed(f"there is no directory {path}")
    return path

"""Looking after a data directory that no server has open: verify it, repair it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from topics.cli.failure import FINE, NOT_SO
from topics.engine.repair import damaged_blocks
from topics.engine.store import Store
from topics.model.errors import DamagedData, InvalidRequest

DataDir = Annotated[str, typer.Argument(help="The data directory.", metavar="DIR", envvar="TOPICS_DATA_DIR")]


def verify(data_dir: DataDir) -> None:
    """Read everything in a data directory that no server has open, and say what is damaged (exit code 1 then)."""
    raise typer.Exit(verify_directory(data_dir))


def repair(data_dir: DataDir) -> None:
    """Make a damaged data directory usable: what cannot be read becomes a gap that readers are told of."""
    raise typer.Exit(repair_directory(data_dir))


def verify_directory(path: str) -> int:
    """Recover as a start would, then read every pack; nothing is changed that a start would not change."""
    store = Store(_existing(path))
    try:
        _open(store, "reading the log")
    except DamagedData as error:
        print(error.message)
        return NOT_SO
    try:
        damaged = damaged_blocks(store.state, store.packs)
        for topic, block, reason in damaged:
            print(f"topic {topic.name}: seqs {block.first_seq} to {block.last_seq}: {reason}")
        found = f"{len(store.state.names)} topics, {store.state.count} records, {store.state.bytes} bytes"
        print(f"{found}: {len(damaged)} blocks damaged" if damaged else f"{found}: all fine")
        return NOT_SO if damaged else FINE
    finally:
        store.close()


def repair_directory(path: str) -> int:
    store = Store(_existing(path), repair=True)
    _open(store, "repairing")
    for line in store.given_up:
        print(f"given up: {line}")
    store.close()
    left = f"{len(store.state.names)} topics, {store.state.count} records are usable"
    print(
        f"{left}; {len(store.given_up)} gaps, announced to readers"
        if store.given_up
        else f"{left}; nothing was damaged"
    )
    return FINE


def _open(store: Store, what: str) -> None:
    say = _progress_line(what)
    for progress in store.opening():
        say(progress)


def _progress_line(what: str) -> Callable[[float], None]:
    """A line that grows on a terminal; silence elsewhere, where the outcome is what counts."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda progress: print(
        f"\r{what}: {progress:4.0%}", end="" if progress < 1 else "\n", file=sys.stderr, flush=True
    )


def _existing(path: str) -> str:
    if not os.path.isdir(path):
        raise InvalidRequest(f"there is no directory {path}")
    return path

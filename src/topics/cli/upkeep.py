"""Looking after a data directory that no server has open: verify it, repair it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from topics.engine.repair import damaged_blocks
from topics.engine.store import Store
from topics.model.errors import DamagedData, InvalidRequest

EXIT_FINE = 0
EXIT_DAMAGED = 1


def verify_directory(path: str) -> int:
    """Recover as a start would, then read every pack; nothing is changed that a start would not change."""
    store = Store(_existing(path))
    try:
        _open(store, "reading the log")
    except DamagedData as error:
        print(error.message)
        return EXIT_DAMAGED
    try:
        damaged = damaged_blocks(store.state, store.packs)
        for topic, block, reason in damaged:
            print(f"topic {topic.name}: seqs {block.first_seq} to {block.last_seq}: {reason}")
        found = f"{len(store.state.names)} topics, {store.state.count} records, {store.state.bytes} bytes"
        print(f"{found}: {len(damaged)} blocks damaged" if damaged else f"{found}: all fine")
        return EXIT_DAMAGED if damaged else EXIT_FINE
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
    return EXIT_FINE


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

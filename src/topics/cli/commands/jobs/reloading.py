"""`--reload`: the command in a process of its own, which ends and starts again when a source file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final

from topics.cli.output import say

LOOK_EVERY_S: Final = 0.3
PROGRAM: Final = "from topics.cli import main; main()"
FILES_MAX: Final = 20_000
LEFT_OUT: Final = frozenset(("__pycache__", "node_modules", "site-packages", "build", "dist"))


def run_and_reload(arguments: list[str]) -> int:
    """Run `topics` with these arguments until a signal; its exit code."""
    stopping = threading.Event()
    process: subprocess.Popen[bytes] | None = None

    def stop(number: int, _: object) -> None:
        again = stopping.is_set()
        stopping.set()
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL if again else number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        # In a group of its own: Ctrl-C in a terminal reaches it once, from here.
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], process_group=0)
        if stopping.is_set():
            process.send_signal(signal.SIGTERM)
        changed = _wait_for_change(stopping)
        if changed is None:
            code = process.wait()
            return code if code >= 0 else 128 - code
        say(f"{changed} has changed: starting again")
        if process.poll() is None:
            process.terminate()
        process.wait()


def _wait_for_change(stopping: threading.Event) -> str | None:
    """The file that has changed; None: a signal came. A process that has ended waits for a change as well."""
    before = dict(_sources("."))
    while not stopping.wait(LOOK_EVERY_S):
        now = dict(_sources("."))
        if now != before:
            return min(path for path in {*before, *now} if before.get(path) != now.get(path))
    return None


def _sources(top: str) -> Iterator[tuple[str, int]]:
    """The Python files below a directory, and when each was changed."""
    count = 0
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in LEFT_OUT]
        for name in names:
            if name.endswith(".py"):
                count += 1
                if count > FILES_MAX:
                    return
                path = os.path.join(folder, name)
                try:
                    yield os.path.relpath(path, top), os.stat(path).st_mtime_ns
                except OSError:
                    continue

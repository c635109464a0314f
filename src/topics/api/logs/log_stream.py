"""The stream of the log: a write never waits, also not for a reader of stderr that has stopped reading.

any thread ── write ─▶ texts, bounded ─▶ thread ── os.write ─▶ stderr
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Condition, Thread

# Lines that wait for a slow reader; those beyond are dropped and counted.
WAITING_CHARS_MAX = 8 * 1024 * 1024
# How long the end of a server waits for the last lines to be read.
LAST_LINES_S = 2.0


class LogStream:
    """As much of a text stream as a handler of `logging` uses.

    It writes to the descriptor, not to `sys.stderr`, whose lock the thread would hold when the interpreter ends.
    """

    def __init__(self, fd: int, dropped_line: Callable[[int], str]) -> None:
        self._fd = fd
        self._dropped_line = dropped_line
        self._texts: list[str] = []
        self._waiting_chars = 0
        self._dropped = 0
        self._changed = Condition()
        Thread(target=self._run, name="topics-log", daemon=True).start()

    def write(self, text: str) -> None:
        with self._changed:
            if self._waiting_chars > WAITING_CHARS_MAX:
                self._dropped += text.count("\n")
                return
            self._texts.append(text)
            self._waiting_chars += len(text)
            self._changed.notify_all()

    def flush(self) -> None:
        """The thread writes all it is given."""

    def drain(self) -> None:
        """Wait until the last lines are written, for a bounded time: what ended the server is reported after them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_chars, LAST_LINES_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts)
                texts, self._texts = self._texts, []
                if self._dropped:
                    texts.append(f"{self._dropped_line(self._dropped)}\n")
                    self._dropped = 0
            self._write("".join(texts).encode("utf-8", "backslashreplace"))
            with self._changed:
                self._waiting_chars = sum(map(len, self._texts))
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            pass  # there is nowhere to report it

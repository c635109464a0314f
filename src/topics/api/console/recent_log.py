"""The last lines of the server's log, kept in memory for those who look at the server from elsewhere."""

from __future__ import annotations

import logging
from collections import deque

import msgspec

LINES_MAX = 500
MESSAGE_CHARS_MAX = 2_000


class LogLine(msgspec.Struct):
    ts: int
    level: str
    logger: str
    message: str


class RecentLog(logging.Handler):
    """Handlers are called under a lock of their own, from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()[:MESSAGE_CHARS_MAX]
        self._lines.append(LogLine(int(record.created * 1000), record.levelname.lower(), record.name, message))

    def last(self, count: int) -> list[LogLine]:
        """The newest lines, oldest first."""
        lines = list(self._lines)
        return lines[-count:] if count else []

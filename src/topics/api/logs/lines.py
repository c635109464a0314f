"""Lines of the log: text for people or JSON for machines; those of requests are handed over many at once.

log.info ─▶ handler ──────────────────────────────────▶ stream, whose thread writes (log_stream.py)
request ─▶ buffer ─▶ after 50 ms, all of them at once ─▶ stream
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping

import msgspec

from topics.api.console.recent_log import RecentLog
from topics.api.logs.log_stream import LogStream

SECONDS = "%Y-%m-%dT%H:%M:%S"
FLUSH_S = 0.05

_encode = msgspec.json.Encoder().encode


class Lines(logging.Formatter):
    """Makes lines of records as `logging` has them, and of requests without one: a record costs as much as the line."""

    def line(self, now_s: float, level: str, logger: str, message: str, fields: Mapping[str, object]) -> str:
        raise NotImplementedError


class TextLines(Lines):
    """A line for people; times are UTC."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", SECONDS)
        # the second of the last line, as text
        self._second = 0
        self._shown = ""

    def line(self, now_s: float, level: str, logger: str, message: str, fields: Mapping[str, object]) -> str:
        del fields  # the message has what people look for
        second = int(now_s)
        if second != self._second:
            self._second, self._shown = second, time.strftime(SECONDS, time.gmtime(second))
        return f"{self._shown}.{int(now_s * 1000) % 1000:03d}Z {level:<7} {logger}: {message}"


class JsonLines(Lines):
    """One JSON object per line; `fields` of a record are members of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return self.line(record.created, record.levelname, record.name, record.getMessage(), fields)

    def line(self, now_s: float, level: str, logger: str, message: str, fields: Mapping[str, object]) -> str:
        line = {"ts": int(now_s * 1000), "level": level.lower(), "logger": logger, "message": message, **fields}
        try:
            return _encode(line).decode()
        except (TypeError, ValueError):
            # half a surrogate pair, or a value that only `str` knows
            return json.dumps(line, default=str)


def start_logging(log_format: str, level: str, recent_log: RecentLog) -> logging.StreamHandler[LogStream]:
    """The handler of all lines."""
    lines: Lines = JsonLines() if log_format == "json" else TextLines()
    handler = logging.StreamHandler(LogStream(sys.stderr.fileno(), lambda count: _dropped_line(lines, count)))
    handler.setFormatter(lines)
    logging.basicConfig(level=level.upper(), handlers=[handler, recent_log], force=True)
    return handler


def _dropped_line(lines: Lines, count: int) -> str:
    message = f"{count} lines of the log were dropped: nobody reads them as fast as they come"
    return lines.line(time.time(), "WARNING", "topics.server", message, {})


class BufferedLines:
    """Lines that are handed to the log's stream later, many at once."""

    def __init__(
        self, handler: logging.StreamHandler[LogStream], recent_log: RecentLog, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._stream = handler.stream
        assert isinstance(handler.formatter, Lines), "set by `start_logging`"
        self._formatter = handler.formatter
        self._recent_log = recent_log
        self._loop = loop
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, level: int, logger: str, message: str, fields: dict[str, object]) -> None:
        if level >= logging.WARNING:
            self._recent_log.emit(logging.LogRecord(logger, level, "", 0, message, None, None))
        self._lines.append(self._formatter.line(time.time(), logging.getLevelName(level), logger, message, fields))
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def close(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()

    def _flush(self) -> None:
        self._timer = None
        lines, self._lines = self._lines, []
        self._stream.write("\n".join(lines) + "\n")

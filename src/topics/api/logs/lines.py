"""Lines of the log: text for people or JSON for machines, and lines of requests, which a thread writes.

log.info ─▶ handler ─▶ stderr                                    at once, few
request ─▶ buffer ─▶ after 50 ms, all of them at once ─▶ thread ─▶ stderr   a slow reader of stderr holds no request
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from topics.api.console.recent_log import RecentLog

log = logging.getLogger("topics.server")

SECONDS = "%Y-%m-%dT%H:%M:%S"
FLUSH_S = 0.05
# Lines that wait for a slow reader of stderr; those beyond are dropped and counted.
WAITING_BYTES_MAX = 8 * 1024 * 1024

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


def start_logging(log_format: str, level: str, recent_log: RecentLog) -> logging.StreamHandler[Any]:
    """The handler of all lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler, recent_log], force=True)
    return handler


class BufferedLines:
    """Lines that are written later, many at once, without holding the loop."""

    def __init__(
        self, handler: logging.StreamHandler[Any], recent_log: RecentLog, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._handler = handler
        assert isinstance(handler.formatter, Lines), "set by `start_logging`"
        self._formatter = handler.formatter
        self._recent_log = recent_log
        self._loop = loop
        self._lines: list[str] = []
        self._waiting_bytes = 0
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._thread: ThreadPoolExecutor | None = None

    def add(self, level: int, logger: str, message: str, fields: dict[str, object]) -> None:
        if level >= logging.WARNING:
            self._recent_log.emit(logging.LogRecord(logger, level, "", 0, message, None, None))
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._dropped += 1
            return
        line = self._formatter.line(time.time(), logging.getLevelName(level), logger, message, fields)
        self._lines.append(line)
        self._waiting_bytes += len(line)
        if self._timer is None and not self._writing:
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def close(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        if self._lines:
            self._write(self._lines)

    def _flush(self) -> None:
        self._timer = None
        self._writing = True
        lines, self._lines = self._lines, []
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="topics-log")
        self._loop.run_in_executor(self._thread, self._write, lines).add_done_callback(self._written)

    def _written(self, _: asyncio.Future[None]) -> None:
        self._writing = False
        self._waiting_bytes = sum(map(len, self._lines))
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            log.warning("%d lines about requests were dropped: nobody reads them as fast as they come", dropped)
        if self._lines and self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def _write(self, lines: list[str]) -> None:
        """On the thread. The handler's lock keeps other lines from getting between the parts of one."""
        self._handler.acquire()
        try:
            self._handler.stream.write("\n".join(lines) + "\n")
            self._handler.flush()
        except OSError:
            pass  # as for every other line, there is nowhere to report it
        finally:
            self._handler.release()

"""Output of commands: data as lines on standard output, everything else as sentences on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

BUFFER_BYTES_MAX = 256 << 10
WARNINGS_HANDLER = "topics.cli"


class Out:
    """Lines of bytes for standard output, written in large pieces; `flush` when a reader may be waiting."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def line(self, line: bytes) -> None:
        self._pieces.append(line)
        self._bytes += len(line)
        if self._bytes > BUFFER_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        # Removed before they are written: an interrupt in between must not print them twice.
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if pieces:
            write_out(b"\n".join(pieces) + b"\n")
        sys.stdout.buffer.flush()

    def __enter__(self) -> Out:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(error, BrokenPipeError):
            self.flush()


def write_out(data: bytes) -> None:
    """Write everything: with PYTHONUNBUFFERED standard output accepts only as much as fits into a pipe."""
    view = memoryview(data)
    while view:
        view = view[sys.stdout.buffer.write(view) :]


def say(line: str) -> None:
    """A sentence for people, never part of the data."""
    print(f"topics: {line}", file=sys.stderr, flush=True)


def print_warnings() -> None:
    """From now on, print what the client logs: warnings of the server, and pauses while it is down."""
    import logging

    class Saying(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # A command that shows its whole log shows these lines there.
            if not any(type(other) is logging.StreamHandler for other in logging.root.handlers):
                say(f"warning: {record.getMessage()}")

    log = logging.getLogger("topics.client")
    if all(handler.name != WARNINGS_HANDLER for handler in log.handlers):
        handler = Saying(logging.WARNING)
        handler.name = WARNINGS_HANDLER
        log.addHandler(handler)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns aligned by spaces; numbers to the right. Only the header if there are no rows."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in [list(head), *lines]) for place in range(len(head))]
    right = [_are_numbers([row[place] for row in lines]) for place in range(len(head))]
    for line in [[name.upper() for name in head], *lines]:
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(cells).rstrip())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One `name  value` a line, the values below each other."""
    pairs = [(name, str(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {value}")


def _are_numbers(cells: list[str]) -> bool:
    """Dashes stand for missing values."""
    numbers = [cell for cell in cells if cell != "-"]
    return bool(numbers) and all(cell.replace(".", "", 1).removeprefix("-").isdigit() for cell in numbers)

"""Times, spans and sizes as typed by people: 90s, 10m, 2h, 7d, 64MiB, 2026-11-16T08:00, or plain numbers."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import Final

from topics.cli.failure import CommandFailed

SPAN_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_BYTES: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def span_ms(text: str, flag: str) -> int:
    """A plain number is milliseconds, as everywhere in the API."""
    found = _AMOUNT.fullmatch(text.strip())
    unit = found[2].lower() or "ms" if found else ""
    if found is None or unit not in SPAN_MS:
        raise CommandFailed(f"{flag} is {text!r}, but must be a time like 500ms, 90s, 10m, 2h or 7d")
    return round(float(found[1]) * SPAN_MS[unit])


def size_bytes(text: str, flag: str) -> int:
    found = _AMOUNT.fullmatch(text.strip())
    unit = found[2].lower() if found else "?"
    if found is None or unit not in SIZE_BYTES:
        raise CommandFailed(f"{flag} is {text!r}, but must be a size like 4096, 64KiB, 10MiB or 1GiB")
    return round(float(found[1]) * SIZE_BYTES[unit])


def moment_ms(text: str, flag: str, now_ms: int | None = None) -> int:
    """A span ago, a date and time (local if it names no zone), or milliseconds since 1970."""
    text = text.strip()
    if text.isdigit() and len(text) > 10:
        return int(text)
    if _AMOUNT.fullmatch(text) and not text.isdigit():
        return (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - span_ms(text, flag)
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(
            f"{flag} is {text!r}, but must be a span like 10m, a time like 2026-11-16T08:00Z, or ms since 1970"
        ) from None
    return int(when.astimezone(dt.UTC).timestamp() * 1000)


def shown_time(ts_ms: int | None) -> str:
    """A time as it is printed: UTC, to the millisecond."""
    if ts_ms is None:
        return "never"
    when = dt.datetime.fromtimestamp(ts_ms / 1000, dt.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ts_ms % 1000:03}Z"


def shown_bytes(size: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} B"

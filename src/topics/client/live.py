"""What comes over a live stream: events with a topic, whatever carries them."""

from __future__ import annotations

import msgspec


class StreamFault(msgspec.Struct, kw_only=True):
    """A problem of the stream, with a code as HTTP has them."""

    code: int
    error: str = ""
    retry_after_ms: int | None = None
    topics: list[str] = []

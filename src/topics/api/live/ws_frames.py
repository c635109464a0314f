"""WebSocket frames: where a slice of input ends, and the size of the unfinished message.

FIN, opcode u8 | masked, length 7 bits | longer length u16 or u64 | mask (4) | payload
"""

from __future__ import annotations

from typing import Final

from topics.http.frame_scanner import FrameScanner, RateLimit

# A slice of input is a millisecond or two of work: this many frames, or as many times 16 KiB.
SLICE_WEIGHT_MAX = 512
FRAME_WEIGHT = 16
# Control frames and small fragments that a client may send at once, and per second after that.
BURST_MAX, PER_S_MAX = 500, 20
FRAGMENT_BYTES_MIN = 1024

_FINAL, _CONTROL, _MASKED, _LENGTH = 0x80, 0x08, 0x80, 0x7F
_LONGER: Final = {126: 2, 127: 8}


class WsFrameScanner(FrameScanner):
    """Control frames and small fragments count against the limit.

    `message_bytes` is the announced size of the unfinished message so far, 0 between two messages; `is_last` is whether
    its last frame has begun.
    """

    __slots__ = ("is_last", "message_bytes")

    def __init__(self, now_s: float) -> None:
        super().__init__(RateLimit(BURST_MAX, PER_S_MAX, now_s), SLICE_WEIGHT_MAX)
        self.message_bytes = 0
        self.is_last = False

    def _header_bytes(self, start: bytes) -> int:
        if len(start) < 2:
            return 2
        return 2 + _LONGER.get(start[1] & _LENGTH, 0) + (4 if start[1] & _MASKED else 0)

    def _frame_began(self, header: bytes) -> int:
        length = header[1] & _LENGTH
        width = _LONGER.get(length, 0)
        self._payload_bytes = int.from_bytes(header[2 : 2 + width], "big") if width else length
        if header[0] & _CONTROL:
            self.limit.allowance -= 1
            return FRAME_WEIGHT
        self.is_last = bool(header[0] & _FINAL)
        self.message_bytes += self._payload_bytes
        if not self.is_last and self._payload_bytes < FRAGMENT_BYTES_MIN:
            self.limit.allowance -= 1
        return FRAME_WEIGHT

    def _frame_ended(self) -> None:
        if self.is_last:
            self.message_bytes, self.is_last = 0, False

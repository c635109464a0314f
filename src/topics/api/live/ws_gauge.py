"""WebSocket frames watched as they arrive: where a slice of input ends, how large the unfinished message is.

FIN, opcode u8 | masked, length 7 bits | longer length u16 or u64 | mask (4) | payload
"""

from __future__ import annotations

from typing import Final

# A slice of input is a millisecond or two of work: so many frames, or so many bytes.
SLICE_WEIGHT_MAX = 32
WEIGHT_BYTES_SHIFT = 14
# Control frames and small fragments that a client may send at once, and later on.
CREDIT_MAX, CREDIT_PER_S = 500, 20
FRAGMENT_BYTES_MIN = 1024

_FINAL, _CONTROL, _MASKED, _LENGTH = 0x80, 0x08, 0x80, 0x7F
_LONGER: Final = {126: 2, 127: 8}


class WsGauge:
    """Counts its way from frame header to frame header.

    `message_bytes` is what the unfinished message has announced so far, 0 between two messages; `is_last` says whether
    its last frame has begun. `credit` below 0 means that the client floods the server with frames that carry nothing.
    """

    __slots__ = ("_credited_s", "_header", "_skip_bytes", "credit", "is_last", "message_bytes")

    def __init__(self, now_s: float) -> None:
        self._header = b""
        self._skip_bytes = 0
        self._credited_s = now_s
        self.credit = float(CREDIT_MAX)
        self.message_bytes = 0
        self.is_last = False

    def earn(self, now_s: float) -> None:
        """Raise the credit by the time that has passed."""
        self.credit = min(CREDIT_MAX, self.credit + (now_s - self._credited_s) * CREDIT_PER_S)
        self._credited_s = now_s

    def measure(self, data: bytes, position: int) -> int:
        """Go through the next bytes of the connection from `position`; returns where the slice ends."""
        weight = 0
        end = len(data)
        while position < end and weight < SLICE_WEIGHT_MAX:
            if self._skip_bytes:
                step_bytes = min(self._skip_bytes, end - position)
                self._skip_bytes -= step_bytes
                position += step_bytes
                weight += step_bytes >> WEIGHT_BYTES_SHIFT
            else:
                missing_bytes = _header_bytes(self._header) - len(self._header)
                self._header += data[position : position + missing_bytes]
                position = min(position + missing_bytes, end)
                if len(self._header) >= 2 and len(self._header) == _header_bytes(self._header):
                    weight += 1
                    self._begin_frame(self._header)
                    self._header = b""
            if self.is_last and not self._skip_bytes:
                self.message_bytes, self.is_last = 0, False
        return position

    def _begin_frame(self, header: bytes) -> None:
        length = header[1] & _LENGTH
        width = _LONGER.get(length, 0)
        self._skip_bytes = int.from_bytes(header[2 : 2 + width], "big") if width else length
        if header[0] & _CONTROL:
            self.credit -= 1
            return
        self.is_last = bool(header[0] & _FINAL)
        self.message_bytes += self._skip_bytes
        if not self.is_last and self._skip_bytes < FRAGMENT_BYTES_MIN:
            self.credit -= 1


def _header_bytes(start: bytes) -> int:
    """How long the header is, as far as its start tells."""
    if len(start) < 2:
        return 2
    return 2 + _LONGER.get(start[1] & _LENGTH, 0) + (4 if start[1] & _MASKED else 0)

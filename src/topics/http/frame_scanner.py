"""Frames followed as they arrive, for protocols whose library parses all input it gets: HTTP/2 and WebSocket.

header ─▶ payload ─▶ header ─▶ payload ─▶ …      a slice of input ends where the work of a millisecond or two ends
"""

from __future__ import annotations

# The bytes of a payload cost about as much as one small frame per KiB.
WEIGHT_BYTES_SHIFT = 10


class RateLimit:
    """How many cheap frames a client may still send: a burst at once, then a number per second.

    An `allowance` below 0 means that the client floods the server.
    """

    __slots__ = ("_burst", "_per_s", "_refilled_s", "allowance")

    def __init__(self, burst: int, per_s: float, now_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._refilled_s = now_s
        self.allowance = float(burst)

    def refill(self, now_s: float, earned: int = 0) -> None:
        """Raise the allowance by the elapsed time, and by credit that the client has earned otherwise."""
        self.allowance = min(self._burst, self.allowance + earned + (now_s - self._refilled_s) * self._per_s)
        self._refilled_s = now_s


class FrameScanner:
    """Counts its way from frame header to frame header. A protocol defines how long a header is and what it means."""

    __slots__ = ("_header", "_payload_bytes", "_weight_max", "limit")

    def __init__(self, limit: RateLimit, weight_max: int, preface_bytes: int = 0) -> None:
        self.limit = limit
        self._weight_max = weight_max
        self._header = b""
        self._payload_bytes = preface_bytes

    def scan(self, data: bytes, position: int) -> int:
        """Go through the next bytes of the connection from `position`; returns where the slice ends."""
        weight = 0
        end = len(data)
        while position < end and weight < self._weight_max:
            if self._payload_bytes:
                step_bytes = min(self._payload_bytes, end - position)
                self._payload_bytes -= step_bytes
                position += step_bytes
                weight += step_bytes >> WEIGHT_BYTES_SHIFT
                if not self._payload_bytes:
                    self._frame_ended()
                continue
            missing_bytes = self._header_bytes(self._header) - len(self._header)
            self._header += data[position : position + missing_bytes]
            position = min(position + missing_bytes, end)
            if len(self._header) == self._header_bytes(self._header):
                weight += self._frame_began(self._header)
                self._header = b""
                if not self._payload_bytes:
                    self._frame_ended()
        return position

    def _header_bytes(self, start: bytes) -> int:
        """The length of the header, as far as its start shows."""
        raise NotImplementedError

    def _frame_began(self, header: bytes) -> int:
        """Set `_payload_bytes` and charge the limit; returns the weight of the frame without its payload."""
        raise NotImplementedError

    def _frame_ended(self) -> None:
        """The frame is complete."""

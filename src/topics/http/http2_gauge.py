"""Frame lengths of HTTP/2 watched as they arrive: the library keeps a whole frame before it looks at its length.

preface (24) | length u24, type, flags, stream (9) | payload (length) | length u24 ...
"""

from __future__ import annotations

from h2.exceptions import FrameTooLargeError

FRAME_BYTES_MAX = 16_384  # what the server announces by not announcing anything else
FRAME_HEADER_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class FrameGauge:
    """Counts its way from frame header to frame header and stops at the first that announces too much."""

    __slots__ = ("_header", "_skip_bytes")

    def __init__(self) -> None:
        self._skip_bytes = len(PREFACE)
        self._header = b""

    def measure(self, data: bytes) -> None:
        """Go through the next bytes of the connection."""
        position = 0
        while position < len(data):
            if self._skip_bytes:
                step_bytes = min(self._skip_bytes, len(data) - position)
                self._skip_bytes -= step_bytes
                position += step_bytes
                continue
            missing_bytes = FRAME_HEADER_BYTES - len(self._header)
            self._header += data[position : position + missing_bytes]
            position += missing_bytes
            if len(self._header) == FRAME_HEADER_BYTES:
                self._skip_bytes = int.from_bytes(self._header[:3], "big")
                self._header = b""
                if self._skip_bytes > FRAME_BYTES_MAX:
                    raise FrameTooLargeError(f"a frame of {self._skip_bytes} bytes")

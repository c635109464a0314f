"""HTTP/2 frames watched as they arrive, since the library parses all it is given, and keeps a whole frame before that.

preface (24) | length u24, type u8, flags u8, stream u32 (9) | payload (length) | length u24 ...

The gauge finds where a slice of input ends, and what the control frames in it cost the client.
"""

from __future__ import annotations

from h2.exceptions import DenialOfServiceError, FrameTooLargeError

FRAME_BYTES_MAX = 16_384  # what the server announces by not announcing anything else
FRAME_HEADER_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# A slice of input is a millisecond or two of work: a request weighs as much as eight control frames.
SLICE_WEIGHT_MAX = 64
REQUEST_WEIGHT = 8
WEIGHT_BYTES_SHIFT = 10  # and the bytes of a frame as much as one control frame a KiB

_DATA, _HEADERS = 0, 1


class FrameGauge:
    """Counts its way from frame header to frame header.

    The credit is what the client may still spend on control frames. It grows with time and with every frame of data
    that is sent to the client, up to a maximum: a client that takes in much has window updates to send.
    """

    __slots__ = ("_credit", "_credit_max", "_credited_s", "_header", "_per_s", "_skip_bytes")

    def __init__(self, credit_max: int, per_s: int, now_s: float) -> None:
        self._skip_bytes = len(PREFACE)
        self._header = b""
        self._credit_max = credit_max
        self._per_s = per_s
        self._credit = float(credit_max)
        self._credited_s = now_s

    def earn(self, frames: int, now_s: float) -> None:
        """Raise the credit by the time that has passed and by what was sent."""
        earned = frames + (now_s - self._credited_s) * self._per_s
        self._credited_s = now_s
        self._credit = min(self._credit_max, self._credit + earned)

    def measure(self, data: bytes, position: int) -> int:
        """Go through the next bytes of the connection from `position`; returns where the slice ends."""
        weight = 0
        end = len(data)
        while position < end and weight < SLICE_WEIGHT_MAX:
            if self._skip_bytes:
                step_bytes = min(self._skip_bytes, end - position)
                self._skip_bytes -= step_bytes
                position += step_bytes
                continue
            missing_bytes = FRAME_HEADER_BYTES - len(self._header)
            self._header += data[position : position + missing_bytes]
            position = min(position + missing_bytes, end)
            if len(self._header) == FRAME_HEADER_BYTES:
                weight += self._weigh(self._header)
                self._header = b""
        return position

    def _weigh(self, header: bytes) -> int:
        frame_bytes = self._skip_bytes = int.from_bytes(header[:3], "big")
        if frame_bytes > FRAME_BYTES_MAX:
            raise FrameTooLargeError(f"a frame of {frame_bytes} bytes")
        kind = header[3]
        if kind == _HEADERS:
            return REQUEST_WEIGHT
        if kind != _DATA or not frame_bytes:
            self._credit -= 1
            if self._credit < 0:
                raise DenialOfServiceError("too many control frames")
        return 1 + (frame_bytes >> WEIGHT_BYTES_SHIFT)

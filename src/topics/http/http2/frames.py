"""HTTP/2 frames: where a slice of input ends, and which frames a client may send only at a limited rate.

preface (24) | length u24, type u8, flags u8, stream u32 (9) | payload (length) | length u24 ...
"""

from __future__ import annotations

from h2.exceptions import DenialOfServiceError, FrameTooLargeError

from topics.http.frame_scanner import FrameScanner, RateLimit

FRAME_BYTES_MAX = 16_384  # the default: the server announces no other size
FRAME_HEADER_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# A slice of input is a millisecond or two of work: a request weighs as much as eight control frames.
SLICE_WEIGHT_MAX = 64
REQUEST_WEIGHT = 8

_DATA, _HEADERS = 0, 1


class Http2FrameScanner(FrameScanner):
    """Control frames and empty ones count against the limit.

    The allowance also grows with every frame of data that is sent to the client, which sends window updates in return.
    """

    __slots__ = ()

    def __init__(self, limit: RateLimit) -> None:
        super().__init__(limit, SLICE_WEIGHT_MAX, len(PREFACE))

    def _header_bytes(self, start: bytes) -> int:  # noqa: ARG002  (they are all the same)
        return FRAME_HEADER_BYTES

    def _frame_began(self, header: bytes) -> int:
        frame_bytes = self._payload_bytes = int.from_bytes(header[:3], "big")
        if frame_bytes > FRAME_BYTES_MAX:
            raise FrameTooLargeError(f"a frame of {frame_bytes} bytes")
        kind = header[3]
        if kind == _HEADERS:
            return REQUEST_WEIGHT
        if kind != _DATA or not frame_bytes:
            self.limit.allowance -= 1
            if self.limit.allowance < 0:
                raise DenialOfServiceError("too many control frames")
        return 1

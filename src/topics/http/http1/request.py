"""A request of an HTTP/1 connection: what its connection needs to know until the reply is sent."""

from __future__ import annotations

from topics.http.content_coding import accepts_gzip
from topics.http.received import ReceivedRequest
from topics.http.request import Bytes, Header, ReplyWriter


class Http1Request(ReceivedRequest):
    """Replies are sent in the order of requests, so a request also holds the bytes of a reply that is not yet due."""

    __slots__ = ("is_last", "is_plain", "takes_gzip", "unsent")

    def __init__(self, writer: ReplyWriter, method: str, headers: list[Header]) -> None:
        ReceivedRequest.__init__(self, writer, method, "1.1", headers)
        self.is_last = False  # the connection ends after its reply
        self.is_plain = True  # ready for its handler as soon as it is complete, and for a reply with the usual head
        self.takes_gzip: bool | None = None  # None: not checked yet
        self.unsent: list[Bytes] | None = None

    def make_last(self) -> None:
        self.is_last = True
        self.is_plain = False

    def accepts_gzip(self) -> bool:
        if self.takes_gzip is None:
            self.takes_gzip = accepts_gzip(self.header(b"accept-encoding"))
        return self.takes_gzip

"""Which of the given servers is asked: the one that was primary last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topics.client.errors import (
    BadAnswer,
    ConnectionFailed,
    NotPrimary,
    NotReady,
    ShuttingDown,
    Timeout,
    TopicsError,
)

# Every reply of a standby has it: how old its copy may be.
AGE_HEADER: Final = "Topics-Age-Ms"
# Proxies reply with these when their server is down or slow: the request may have been executed.
GATEWAY_STATUSES: Final = (502, 503, 504)


def leads_elsewhere(error: TopicsError) -> bool:
    """Whether another server may do what this one did not."""
    match error:
        case ConnectionFailed(detail={"tls": True}):
            return False
        case ConnectionFailed() | NotPrimary() | NotReady() | ShuttingDown() | Timeout():
            return True
        case BadAnswer(status=status):
            return status in GATEWAY_STATUSES
        case _:
            return False


class Servers:
    """The servers that the caller has given: the primary, and those that may take over from it.

    All requests go to `current`. When it fails, or says that another one is primary, the next request goes elsewhere.
    A server that is not given is never asked, even if another server names it: it would receive the API key.
    """

    __slots__ = ("current", "urls")

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self.current = urls[0]

    @property
    def others(self) -> int:
        return len(self.urls) - 1

    def failed(self, url: str, error: TopicsError) -> TopicsError:
        """The error, once it is known here. Of several threads that one server fails, the first leaves it."""
        if self.others and url == self.current and leads_elsewhere(error):
            primary = error.detail.get("primary") if isinstance(error, NotPrimary) else None
            self.current = self._given(primary, url) or self.urls[(self.urls.index(url) + 1) % len(self.urls)]
        return error

    def _given(self, primary: object, asked: str) -> str | None:
        named = primary.rstrip("/").lower() if isinstance(primary, str) else None
        return next((url for url in self.urls if url.lower() == named and url != asked), None)

    def judged(self, url: str, headers: Mapping[str, str], failure: TopicsError | None) -> TopicsError | None:
        """The error of a reply; None: it is the primary's, and a success.

        If other servers are given, what a standby replies does not count: it may lack what was read from the primary
        before. A caller that wants to read from a standby names that one alone.
        """
        if self.others and AGE_HEADER in headers and not isinstance(failure, NotPrimary):
            failure = NotPrimary(
                f"{url} is a standby, and no other server given is known to be primary", role="standby"
            )
        return None if failure is None else self.failed(url, failure)

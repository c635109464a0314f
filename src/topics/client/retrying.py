"""When a failed request is retried, and after what pause: a decision that neither reads a clock nor sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable

from topics.client.errors import (
    BadAnswer,
    ConnectionFailed,
    NotPrimary,
    NotReady,
    NotReplicated,
    ShuttingDown,
    Throttled,
    Timeout,
    TopicsError,
)
from topics.client.servers import GATEWAY_STATUSES, leads_elsewhere

RETRIES_MAX = 50
RETRY_S_MAX = 60.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 2.0
# With several servers: one that takes over is found this soon.
ROUND_S_MAX = 1.0

NO_TLS = "check its certificate (TOPICS_CA_FILE names an authority of your own); a server without TLS is reached with http://"


def is_tls_refusal(error: BaseException | None) -> bool:
    """Whether a handshake failed for good; one that was only cut short may succeed the next time."""
    import ssl

    while error is not None:
        if isinstance(error, ssl.SSLError):
            return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
        error = error.__cause__ or error.__context__
    return False


class Retrying:
    """The attempts at one request. `unsent` failures changed nothing; others are retried only if that is `safe`.

    A pause that would end after the deadline is not started: the error is raised at once. With `others`, the servers
    are tried in rounds: a failure that another server may not share is retried there at once, and a pause follows when
    all of them have failed. `retries_max` then counts rounds.
    """

    __slots__ = ("_at_once", "_deadline_s", "_left", "_others", "_pause_s", "_spread", "paused_s", "safe", "warned")

    def __init__(
        self,
        *,
        safe: bool,
        now_s: float,
        retries_max: int = RETRIES_MAX,
        retry_s_max: float = RETRY_S_MAX,
        others: int = 0,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self.safe = safe
        # The reason for waiting has been logged.
        self.warned = False
        # the sum of all pauses
        self.paused_s = 0.0
        self._left = retries_max
        self._others = self._at_once = others
        self._deadline_s = now_s + retry_s_max
        self._pause_s = PAUSE_S_MIN
        self._spread = spread

    def pause_s(self, error: TopicsError, now_s: float, *, unsent: bool = False) -> float | None:
        """How long to wait before the next attempt; None: give up."""
        if not self._may_repeat(error, unsent):
            return None
        elsewhere = self._others > 0 and leads_elsewhere(error)
        if elsewhere and self._at_once:
            self._at_once -= 1
            return 0.0 if now_s <= self._deadline_s else None
        if self._left <= 0:
            return None
        self._left -= 1
        self._at_once = self._others
        pause_s = self._backoff_s(ROUND_S_MAX if elsewhere else PAUSE_S_MAX)
        if error.retry_after_s is not None and not elsewhere:
            # Later than requested, never earlier, and not all clients at the same moment.
            pause_s += error.retry_after_s
        self.paused_s += pause_s
        return pause_s if now_s + pause_s <= self._deadline_s else None

    def _backoff_s(self, limit_s: float) -> float:
        backoff_s = min(limit_s, self._pause_s) * (0.5 + self._spread() / 2)
        self._pause_s = min(PAUSE_S_MAX, self._pause_s * 2)
        return backoff_s

    def _may_repeat(self, error: TopicsError, unsent: bool) -> bool:
        match error:
            case NotPrimary(detail={"written": True}):
                return self.safe
            case Throttled() | NotPrimary() | NotReady() | ShuttingDown():
                return True
            case NotReplicated(detail={"written": False}):
                return True
            case NotReplicated():
                return self.safe
            case ConnectionFailed(detail={"tls": True}):
                # A wrong certificate, or a server without TLS: another attempt would fail alike.
                return False
            case ConnectionFailed():
                return unsent or self.safe
            case Timeout():
                return self.safe
            case BadAnswer(status=status):
                return self.safe and status in GATEWAY_STATUSES
            case _:
                # A read-only server stays read-only until it is restarted.
                return error.status == 503 and error.retry_after_s is not None

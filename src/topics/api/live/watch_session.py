"""Watch sessions: the subscriptions of a client and their positions, kept while it may reconnect."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.api.auth import Principal
from topics.api.metrics import Usage
from topics.engine.live.feeds import FrameOptions
from topics.model.cursors import RESTARTS
from topics.model.errors import NotFound, Throttled, Unauthorized

if TYPE_CHECKING:
    from topics.api.live.watch import WatchStream

WID_BYTES = 16


class Position:
    """The position of the session in one topic; `epoch` distinguishes it from a later topic of the same name."""

    __slots__ = ("epoch", "head_seq", "restart", "seq")

    def __init__(self, seq: int, epoch: int) -> None:
        self.seq = seq
        self.epoch = epoch
        # The head when the topic was last seen.
        self.head_seq = seq
        # Which restart of the session reset the position, because the topic was replaced.
        self.restart = 0


class Session:
    __slots__ = ("heartbeat_ms", "options", "positions", "principal", "restarts", "stream", "used_s", "wid")

    def __init__(
        self, principal: Principal, options: FrameOptions, heartbeat_ms: int, positions: dict[str, Position]
    ) -> None:
        self.wid = "wid_" + secrets.token_urlsafe(WID_BYTES)
        self.principal = principal
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        self.positions = positions
        self.restarts = 0
        self.stream: WatchStream | None = None
        self.used_s = 0.0

    def restart(self, position: Position) -> None:
        """The topic was replaced: seqs start again, and earlier ids do not apply to it."""
        self.restarts += 1
        position.restart = self.restarts

    def rewind(self, seqs: dict[str, int]) -> None:
        """Go back to the client's position; never forward, since only the server knows what it sent."""
        known = seqs.get(RESTARTS, 0)
        for name, seq in seqs.items():
            position = self.positions.get(name)
            if position is None:
                continue
            if position.restart > known:
                # The client has seen nothing of the new topic: it starts there once more.
                position.epoch = 0
            elif seq < position.seq:
                position.seq = seq


class Sessions:
    """Sessions without a stream are kept in the order of their last use, so the expired ones come first."""

    def __init__(self, sessions_max: int, ttl_ms: int, usage: Usage, clock_s: Callable[[], float]) -> None:
        self._max = sessions_max
        self._ttl_s = ttl_ms / 1000
        self._usage = usage
        self._clock_s = clock_s
        self._by_wid: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_wid)

    def check_room(self) -> None:
        self.collect()
        if self._max and len(self._by_wid) >= self._max:
            raise Throttled(
                f"there are {self._max} watch sessions already, and no more are allowed",
                limit="max_watch_sessions",
                max=self._max,
            )

    def add(self, session: Session) -> None:
        self._by_wid[session.wid] = session
        self.rest(session)
        self._count()

    def find(self, wid: str, principal: Principal) -> Session:
        """The session, for the principal that created it."""
        self.collect()
        session = self._by_wid.get(wid)
        if session is None:
            raise NotFound("this watch session does not exist, or has expired: create a new one")
        if session.principal is not principal:
            raise Unauthorized("the watch session was created with another key")
        return session

    def in_use(self, session: Session) -> None:
        """It has a stream: it does not expire."""
        self._idle.pop(session.wid, None)

    def rest(self, session: Session) -> None:
        """It has no stream: it expires from now on."""
        session.used_s = self._clock_s()
        self._idle[session.wid] = session
        self._idle.move_to_end(session.wid)

    def collect(self) -> None:
        expired_s = self._clock_s() - self._ttl_s
        while self._idle:
            session = next(iter(self._idle.values()))
            if session.used_s > expired_s:
                break
            del self._idle[session.wid]
            del self._by_wid[session.wid]
        self._count()

    def _count(self) -> None:
        self._usage.watch_sessions = len(self._by_wid)

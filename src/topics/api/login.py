"""Logging in: a user and a password become tokens, a refresh token becomes new ones; guessing is slowed down.

login ─▶ wrong too often? 429 ─▶ a thread compares the password (scrypt takes its time) ─▶ ready ─▶ tokens, or 401
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from topics.api.auth import ANY_NAME, Headers, Key, Scope
from topics.api.call import Call
from topics.api.errors import Unauthorized, headers_of, status_of
from topics.api.replies import encode
from topics.api.routes import Route
from topics.api.tokens import CODES, TokenRefused, Tokens, bearer_of, error_type
from topics.api.users import PasswordHash, User, nobody
from topics.api.waiting import Turns
from topics.http.message import Request
from topics.model.errors import Throttled, TopicsError

FAILURES_PER_USER_MAX, FAILURES_PER_PEER_MAX = 10, 30
FAILURES_WINDOW_S = 60.0
PLACES_REMEMBERED_MAX = 10_000
WAITING_MAX = 64
PASSWORD_CHARS_MAX = 1_024
WRONG: Final = "Invalid credentials"


class LoginWish(msgspec.Struct):
    """`username` is another name for `user`."""

    user: str | None = None
    username: str | None = None
    password: str | None = None


class RefreshWish(msgspec.Struct):
    """The refresh token, unless it comes as the bearer token."""

    refresh_token: str | None = None


class UserReply(msgspec.Struct):
    id: str
    role: str
    email: str | None
    created_at: str
    updated_at: str


class LoginReply(msgspec.Struct):
    user: UserReply
    admin_ui_access: bool
    expires_at: str
    access_token: str
    refresh_token: str
    refresh_expires_at: str


class LoginErrorReply(msgspec.Struct):
    error: str
    message: str
    code: str | msgspec.UnsetType = msgspec.UNSET


class Doorstep:
    """An Entrance that anyone may use: this is where a token is to be had."""

    scheme = ""

    def __init__(self) -> None:
        self._anyone = Key(0, b"", Scope.NONE, ANY_NAME)

    def authenticate(self, headers: Headers) -> Key:
        del headers
        return self._anyone

    def answer(self, request: Request, error: TopicsError) -> None:
        status = status_of(error.code)
        body = LoginErrorReply("unauthorized", error.message)
        if status != 401:
            body = LoginErrorReply(error.message, error.message, CODES.get(status, error.code.upper()))
        request.reply(status, encode(body), headers=headers_of(error))

    def error_type(self, status: int) -> Any:
        usual = error_type(status)
        return usual if status in (408, 413, 414, 431) else LoginErrorReply


class Failures:
    """Who failed how often within the last minute, by user at an address and by address."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._times: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def check(self, peer: str, user: str) -> None:
        for place, most in (((peer, user), FAILURES_PER_USER_MAX), ((peer, ""), FAILURES_PER_PEER_MAX)):
            times = self._times.get(place)
            while times and times[0] <= self._now_s() - FAILURES_WINDOW_S:
                times.popleft()
            if times and len(times) >= most:
                wait_s = times[0] + FAILURES_WINDOW_S - self._now_s()
                raise Throttled("too many failed logins; try again later", retry_after_ms=int(wait_s * 1000))

    def add(self, peer: str, user: str) -> None:
        for place in ((peer, user), (peer, "")):
            self._times.setdefault(place, deque(maxlen=FAILURES_PER_PEER_MAX)).append(self._now_s())
            self._times.move_to_end(place)
        while len(self._times) > PLACES_REMEMBERED_MAX:
            self._times.popitem(last=False)


class Login:
    def __init__(self, tokens: Tokens, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._tokens = tokens
        self._turns = turns
        self._loop = loop
        self._failures = Failures(loop.time)
        self._nobody = nobody()
        self._since = _stamp(datetime.now(UTC).timestamp())
        # passwords being compared; the thread ends with the process
        self._threads = ThreadPoolExecutor(1, "password")
        self._waiting = 0

    def routes(self) -> list[Route]:
        doorstep = Doorstep()
        return [
            Route(
                method="POST",
                path="/v1/api/auth/login",
                handler=self.login,
                summary="Tokens for a user and a password.",
                body=LoginWish,
                replies={200: LoginReply},
                entrance=doorstep,
            ),
            Route(
                method="POST",
                path="/v1/api/auth/refresh",
                handler=self.refresh,
                summary="New tokens for a refresh token.",
                body=RefreshWish,
                replies={200: LoginReply},
                entrance=doorstep,
            ),
        ]

    def login(self, call: Call) -> None:
        wish: LoginWish = call.wish
        name = wish.user or wish.username or ""
        password = wish.password or ""
        peer = call.request.peer.rpartition(":")[0]
        user = self._tokens.users.get(name)
        if call.started is None:
            self._failures.check(peer, name)
            if not self._tokens.usable or not name or not password or len(password) > PASSWORD_CHARS_MAX:
                raise Unauthorized(WRONG)
            if self._waiting >= WAITING_MAX:
                raise Throttled("too many logins at once; try again", retry_after_ms=1000)
            self._compare(call, user.password if user is not None else self._nobody, password)
            return
        fits: bool = call.started
        if not fits or user is None:
            self._failures.add(peer, name)
            raise Unauthorized(WRONG)
        self._welcome(call, user)

    def _compare(self, call: Call, password_hash: PasswordHash, password: str) -> None:
        """Away from the loop; the call goes on with the outcome in `started`."""

        def compared(done: asyncio.Future[bool]) -> None:
            self._waiting -= 1
            call.started = done.result()
            self._turns.again(call)

        self._waiting += 1
        self._loop.run_in_executor(self._threads, password_hash.fits, password).add_done_callback(compared)

    def refresh(self, call: Call) -> None:
        wish: RefreshWish = call.wish
        try:
            token = bearer_of(call.headers) if wish.refresh_token is None else wish.refresh_token.encode()
            claims = self._tokens.check(token, "refresh")
        except (TokenRefused, UnicodeEncodeError):
            raise Unauthorized(WRONG) from None
        user = self._tokens.users.get(claims["sub"])
        if user is None:
            raise Unauthorized(WRONG)
        self._welcome(call, user)

    def _welcome(self, call: Call, user: User) -> None:
        issued = self._tokens.issue(user)
        reply = LoginReply(
            user=UserReply(user.name, user.role, None, self._since, self._since),
            admin_ui_access=False,
            expires_at=_stamp(issued.access_ends),
            access_token=issued.access,
            refresh_token=issued.refresh,
            refresh_expires_at=_stamp(issued.refresh_ends),
        )
        call.reply(200, encode(reply))


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")

"""Login: exchanges a user and a password, or a refresh token, for new tokens; guessing is slowed down.

login ─▶ wait in line ─▶ too many failures? 429 ─▶ a thread checks the password (scrypt is slow) ─▶ tokens, or 401
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from topics.api.auth import ANY_NAME, Headers, Principal, Scope
from topics.api.call import Call
from topics.api.errors import headers_of, status_of
from topics.api.groups.login_limits import LoginLimits, TrustedProxies
from topics.api.groups.tokens import ANYONE, CODES, TokenRefused, Tokens, bearer_of, error_type
from topics.api.groups.users import PasswordHash, UnknownUsers, User
from topics.api.replies import encode
from topics.api.routes import Route
from topics.engine.core.waiting.runner import Signal, Steps
from topics.http.request import Request
from topics.model.errors import Throttled, TopicsError, Unauthorized

WAITING_MAX = 256
NAME_CHARS_MAX, PASSWORD_CHARS_MAX = 256, 1_024
WRONG: Final = "Invalid credentials"


class LoginRequest(msgspec.Struct):
    """`username` is another name for `user`."""

    user: str | None = None
    username: str | None = None
    password: str | None = None


class RefreshRequest(msgspec.Struct):
    """The refresh token, unless it is sent as the bearer token."""

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


class LoginFamily:
    """The family of the login routes: callers do not authenticate, because this is where tokens are issued."""

    scheme = ""

    def __init__(self) -> None:
        self._anyone = Principal(Scope.NONE, ANY_NAME)

    def authenticate(self, headers: Headers) -> Principal:
        del headers
        return self._anyone

    def reply_error(self, request: Request, error: TopicsError) -> None:
        status = status_of(error.code)
        body = LoginErrorReply("unauthorized", error.message)
        if status != 401:
            body = LoginErrorReply(error.message, error.message, CODES.get(status, error.code.upper()))
        request.reply(status, encode(body), headers=headers_of(error))

    def error_type(self, status: int) -> Any:
        usual = error_type(status)
        return usual if status in (408, 413, 414, 431) else LoginErrorReply


class LoginAttempt(Signal):
    """A login that waits for its password to be checked: set when that is done, or refused."""

    __slots__ = ("address", "call", "fits", "name", "password", "password_hash", "refused")

    def __init__(self, call: Call, name: str, address: str, password_hash: PasswordHash, password: str) -> None:
        super().__init__()
        self.call = call
        self.name = name
        self.address = address
        self.password_hash = password_hash
        self.password = password
        self.fits = False
        self.refused: Throttled | None = None


class Login:
    def __init__(self, tokens: Tokens, loop: asyncio.AbstractEventLoop, proxies: TrustedProxies) -> None:
        self._tokens = tokens
        self._loop = loop
        self._proxies = proxies
        self._limits = LoginLimits(loop.time)
        self._unknown_users = UnknownUsers(tokens.users.values())
        self._since = _stamp(datetime.now(UTC).timestamp())
        # One password is checked at a time, the others wait; the thread ends with the process.
        self._threads = ThreadPoolExecutor(1, "password")
        self._waiting: deque[LoginAttempt] = deque()
        self._comparing = False

    def routes(self) -> list[Route]:
        family = LoginFamily()
        return [
            Route(
                method="POST",
                path="/v1/api/auth/login",
                changes=False,
                handler=self.login,
                summary="Tokens for a user and a password.",
                body=LoginRequest,
                replies={200: LoginReply},
                family=family,
            ),
            Route(
                method="POST",
                path="/v1/api/auth/refresh",
                changes=False,
                handler=self.refresh,
                summary="New tokens for a refresh token.",
                body=RefreshRequest,
                replies={200: LoginReply},
                family=family,
            ),
        ]

    def login(self, call: Call) -> Steps[None]:
        params: LoginRequest = call.params
        name = params.user or params.username or ""
        password = params.password or ""
        if not self._tokens.usable or not name or len(name) > NAME_CHARS_MAX or len(password) > PASSWORD_CHARS_MAX:
            raise Unauthorized(WRONG)
        if self._tokens.open:
            self._reply_with_tokens(call, self._tokens.guest(name))
            return
        user = self._tokens.users.get(name)
        address = self._proxies.address_of(call.request)
        self._limits.check(name, address)
        if not password:
            raise Unauthorized(WRONG)
        if len(self._waiting) >= WAITING_MAX:
            raise Throttled(f"more than {WAITING_MAX} logins at once; try again later", retry_after_ms=1000)
        password_hash = user.password if user is not None else self._unknown_users.password_of(name)
        attempt = LoginAttempt(call, name, address, password_hash, password)
        self._waiting.append(attempt)
        self._compare_next()
        yield attempt
        if attempt.refused is not None:
            raise attempt.refused
        if not attempt.fits or user is None:
            raise Unauthorized(WRONG)
        self._reply_with_tokens(call, user)

    def _compare_next(self) -> None:
        """Check passwords in a thread. Each attempt is counted before its password is hashed, even in a burst."""
        while self._waiting and not self._comparing:
            attempt = self._waiting.popleft()
            if not attempt.call.open:
                continue
            try:
                time_s = self._limits.begin(attempt.name, attempt.address)
            except Throttled as refused:
                attempt.refused = refused
                attempt.set()
                continue
            self._comparing = True
            comparing = self._loop.run_in_executor(self._threads, attempt.password_hash.fits, attempt.password)
            comparing.add_done_callback(partial(self._compared, attempt, time_s))

    def _compared(self, attempt: LoginAttempt, time_s: float, done: asyncio.Future[bool]) -> None:
        self._comparing = False
        attempt.fits = done.result()
        if attempt.fits:
            self._limits.forgive(attempt.name, attempt.address, time_s)
        attempt.set()
        self._compare_next()

    def refresh(self, call: Call) -> None:
        params: RefreshRequest = call.params
        try:
            token = bearer_of(call.headers) if params.refresh_token is None else params.refresh_token.encode()
            name = self._tokens.check(token, "refresh")["sub"]
        except (TokenRefused, UnicodeEncodeError):
            if not self._tokens.open:
                raise Unauthorized(WRONG) from None
            name = ANYONE
        user = self._tokens.guest(name) if self._tokens.open else self._tokens.users.get(name)
        if user is None:
            raise Unauthorized(WRONG)
        self._reply_with_tokens(call, user)

    def _reply_with_tokens(self, call: Call, user: User) -> None:
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

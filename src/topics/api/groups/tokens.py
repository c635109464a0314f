"""Tokens of the group routes: authenticating their bearers, issuing them at login, and how errors look there.

A token is a JWT signed with HS256. Any token with a valid signature that has not expired is accepted: its `role`
decides, and its `sub` need not be a configured user; if it is one, that user's prefixes apply.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, NamedTuple, cast

import jwt
import msgspec

from topics.api.auth import ANY_NAME, Authenticator, Headers, OpenAuthenticator, Principal, Scope, is_loopback
from topics.api.errors import headers_of, status_of
from topics.api.groups.users import User, no_password, parse_users
from topics.api.replies import encode
from topics.api.schema import ErrorReply
from topics.http.request import Request
from topics.model.errors import Forbidden, TopicsError, Unauthorized
from topics.model.setting_types import WrongSetting
from topics.model.settings import Settings, find

ISSUER: Final = "kalamdb"
ALGORITHM: Final = "HS256"
SECRET_CHARS_MIN = 32
LEEWAY_S = 60
REFRESH_HOURS_MIN = 7 * 24
TOKENS_REMEMBERED_MAX = 4_096
# The user and role of all requests where no token is needed.
ANYONE: Final = "anyone"
ROLE_OF_ANYONE: Final = "dba"

# What a role may do; other roles may do nothing.
SCOPES_OF: Final[Mapping[str, Scope]] = {
    "service": Scope.READ | Scope.WRITE,
    "dba": Scope.ALL,
    "system": Scope.ALL,
}
CODES: Final[Mapping[int, str]] = {400: "BAD_REQUEST", 403: "FORBIDDEN", 404: "NOT_FOUND", 500: "INTERNAL_ERROR"}


class TokenRefused(Unauthorized):
    """`reason` is the code that clients of these routes know."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class GroupErrorReply(msgspec.Struct):
    error: str
    code: str


class TokenErrorBody(msgspec.Struct):
    code: str
    message: str


class TokenErrorReply(msgspec.Struct):
    status: str
    error: TokenErrorBody
    results: list[Any]
    took: float


class TokenUser(Principal):
    """The bearer of a token: one principal for all requests with the same subject, role and prefixes."""

    __slots__ = ("role", "subject")
    noun = "user"

    def __init__(self, subject: str, role: str, prefixes: tuple[str, ...], inflight_max: int) -> None:
        super().__init__(SCOPES_OF.get(role, Scope.NONE), prefixes, inflight_max)
        self.subject = subject
        self.role = role

    def check_scopes(self, scopes: int) -> None:
        if scopes & ~self.scopes:
            roles = [role for role, granted in SCOPES_OF.items() if not scopes & ~granted]
            raise Forbidden(f"the role {self.role} may not do this; it needs one of the roles {', '.join(roles)}")


class IssuedTokens(NamedTuple):
    """An access token and the refresh token that renews it, with the times (in s) at which they expire."""

    access: str
    access_ends: int
    refresh: str
    refresh_ends: int


class Tokens:
    """The family of the group routes: authenticates by access tokens. Without a secret it accepts none.

    `open`: neither API keys nor a secret nor users are configured, and only this machine can reach the server. Then no
    token is needed, and one that is sent is ignored.
    """

    scheme = "token"

    def __init__(
        self, settings: Settings, authenticator: Authenticator, now_s: Callable[[], float] = time.time
    ) -> None:
        self._now_s = now_s
        self._secret = settings.jwt_secret
        if self._secret is not None and len(self._secret) < SECRET_CHARS_MIN:
            variable = find("jwt_secret").variable
            raise WrongSetting(f"{variable} must be at least {SECRET_CHARS_MIN} characters long", setting="jwt_secret")
        self.users = parse_users(settings.users)
        keyless = isinstance(authenticator, OpenAuthenticator) and is_loopback(settings.host)
        self.open = keyless and self._secret is None and not self.users
        self._anyone = TokenUser(ANYONE, ROLE_OF_ANYONE, ANY_NAME, 0)
        if self.open:
            # Clients expect a token when they log in; it is never checked.
            self._secret = secrets.token_hex()
        self._issuers = frozenset((ISSUER, *settings.jwt_trusted_issuers))
        self._access_s = settings.jwt_expiry_hours * 3600
        self._refresh_s = max(REFRESH_HOURS_MIN * 3600, self._access_s)
        self._inflight_max = settings.max_inflight_per_key
        # Tokens that were checked, by digest, each with the time at which it must be checked again.
        self._checked: OrderedDict[bytes, tuple[float, TokenUser]] = OrderedDict()
        # The principals of live tokens: the requests of one bearer are counted together.
        self._token_users: OrderedDict[tuple[str, str, tuple[str, ...]], TokenUser] = OrderedDict()

    @property
    def usable(self) -> bool:
        return self._secret is not None

    # --- authentication ---

    def authenticate(self, headers: Headers) -> TokenUser:
        if self.open:
            return self._anyone
        token = bearer_of(headers)
        digest = hashlib.sha256(token).digest()
        known = self._checked.get(digest)
        if known is not None and known[0] > self._now_s():
            return known[1]
        claims = self.check(token, "access")
        bearer = self._token_user(claims)
        _remember(self._checked, digest, (float(claims["exp"]) + LEEWAY_S, bearer))
        return bearer

    def _token_user(self, claims: Mapping[str, Any]) -> TokenUser:
        user = self.users.get(claims["sub"])
        prefixes = user.prefixes if user is not None else _prefixes_of(claims)
        role = str(claims.get("role", "user"))
        key = claims["sub"], role, prefixes
        bearer = self._token_users.get(key) or TokenUser(*key, self._inflight_max)
        _remember(self._token_users, key, bearer)
        return bearer

    def check(self, token: bytes, kind: str) -> dict[str, Any]:
        """The claims of a valid token of this kind; an access token may leave out its kind."""
        if self._secret is None:
            variable = find("jwt_secret").variable
            raise TokenRefused("INVALID_CREDENTIALS", f"this server accepts no tokens: {variable} is not set")
        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=[ALGORITHM],
                leeway=LEEWAY_S,
                options={"require": ["exp", "sub", "iss"], "verify_aud": False},
            )
        except jwt.ExpiredSignatureError:
            raise TokenRefused("TOKEN_EXPIRED", "the token has expired") from None
        except (jwt.PyJWTError, ValueError):
            raise _invalid() from None
        issuer = claims["iss"]
        if not isinstance(issuer, str) or issuer not in self._issuers or claims.get("token_type", "access") != kind:
            raise _invalid()
        return claims

    # --- new tokens ---

    def guest(self, name: str) -> User:
        """A user who logs in where no token is needed."""
        return User(name, ROLE_OF_ANYONE, no_password())

    def issue(self, user: User) -> IssuedTokens:
        now = int(self._now_s())
        access_ends, refresh_ends = now + self._access_s, now + self._refresh_s
        return IssuedTokens(
            self._sign(user, "access", now, access_ends),
            access_ends,
            self._sign(user, "refresh", now, refresh_ends),
            refresh_ends,
        )

    def _sign(self, user: User, kind: str, now: int, ends: int) -> str:
        assert self._secret is not None
        claims: dict[str, Any] = {
            "sub": user.name,
            "iss": ISSUER,
            "iat": now,
            "exp": ends,
            "role": user.role,
            "token_type": kind,
        }
        if user.prefixes != ANY_NAME:
            claims["prefixes"] = list(user.prefixes)
        return jwt.encode(claims, self._secret, ALGORITHM)

    # --- errors ---

    def reply_error(self, request: Request, error: TopicsError) -> None:
        status = status_of(error.code)
        if isinstance(error, TokenRefused):
            took_ms = (perf_counter() - request.received_s) * 1000 if request.received_s else 0.0
            body = TokenErrorBody(error.reason, error.message)
            request.reply(
                status, encode(TokenErrorReply("error", body, [], round(took_ms, 3))), headers=headers_of(error)
            )
            return
        code = CODES.get(status, error.code.upper())
        request.reply(status, encode(GroupErrorReply(error.message, code)), headers=headers_of(error))

    def error_type(self, status: int) -> Any:
        return error_type(status)


def error_type(status: int) -> Any:
    """Errors that the HTTP layer finds come in the usual envelope, whatever the route."""
    match status:
        case 401:
            return TokenErrorReply
        case 408 | 413 | 414 | 431:
            return ErrorReply
        case _:
            return GroupErrorReply


def bearer_of(headers: Headers) -> bytes:
    header = headers.get(b"authorization")
    if header is None:
        raise TokenRefused("MISSING_AUTHORIZATION", "a token is required: Authorization: Bearer <token>")
    if header[:7].lower() != b"bearer ":
        raise TokenRefused("MISSING_AUTHORIZATION", "the Authorization header is not of the form: Bearer <token>")
    return header[7:].strip(b" \t")


def _invalid() -> TokenRefused:
    return TokenRefused("INVALID_CREDENTIALS", "the token is not valid")


def _prefixes_of(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """The token of a user who was removed keeps the limits it was issued with."""
    prefixes = claims.get("prefixes")
    if prefixes is None:
        return ANY_NAME
    if not isinstance(prefixes, list):
        raise _invalid()
    return tuple(str(prefix) for prefix in cast("list[object]", prefixes) if prefix)


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > TOKENS_REMEMBERED_MAX:
        kept.popitem(last=False)

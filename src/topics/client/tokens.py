"""The tokens that authenticate a client at the consumer groups' routes, and how new ones are obtained."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.client.request import Request, body_of


class LoggedIn(msgspec.Struct, kw_only=True):
    """The user that logged in, and until when (ISO 8601) it need not log in again."""

    user: dict[str, Any]
    access_token: str
    refresh_token: str | None = None
    expires_at: str = ""
    refresh_expires_at: str = ""


logged_in_decoder = msgspec.json.Decoder(LoggedIn)


class Tokens:
    """A token is used until it is refused; with a user and a password, the client then logs in again."""

    __slots__ = ("_password", "_refresh", "_user", "access")

    def __init__(self, token: str | None, user: str | None, password: str | None) -> None:
        self.access = token
        self._refresh: str | None = None
        self._user = user
        self._password = password

    @property
    def renewable(self) -> bool:
        return self._refresh is not None or (self._user is not None and self._password is not None)

    def know(self, user: str | None, password: str | None) -> None:
        """Use this user from now on."""
        self._user, self._password = user, password

    def take(self, logged_in: LoggedIn) -> None:
        self.access = logged_in.access_token
        self._refresh = logged_in.refresh_token

    def renewals(self, *, after_refusal: bool) -> list[Request[LoggedIn]]:
        """The ways to log in, in the order in which they are tried."""
        requests: list[Request[LoggedIn]] = []
        if after_refusal and self._refresh is not None:
            requests.append(_auth("refresh", body_of(refresh_token=self._refresh)))
        if self._user is not None and self._password is not None:
            requests.append(self.login())
        return requests

    def login(self) -> Request[LoggedIn]:
        return _auth("login", body_of(user=self._user or "", password=self._password or ""))


def _auth(verb: str, body: bytes) -> Request[LoggedIn]:
    return Request(method="POST", path=f"/v1/api/auth/{verb}", decoder=logged_in_decoder, body=body, safe=True)

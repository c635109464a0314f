"""CORS: which pages of other origins may use the API, in the headers of replies and preflight replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from topics.http.request import Header, Request
from topics.model.setting_types import WrongSetting
from topics.model.settings import find

DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
REQUEST_HEADERS = (
    b"Authorization, Content-Encoding, Content-Type, Idempotency-Key, Last-Event-ID, traceparent, X-Request-Id"
)
EXPOSED_HEADERS = (
    b"Allow, Date, Retry-After, Topics-Age-Ms, Topics-Earliest-Seq, Topics-Epoch, Topics-Head-Seq, "
    b"Topics-Next-From-Seq, Topics-Tombstone, traceparent, WWW-Authenticate, X-Request-Id"
)
PREFLIGHT_S = b"7200"

VARY: Header = (b"Vary", b"Origin")


class Cors:
    """The configured origins. Cookies and other credentials of the browser are never used."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(parse_origin(origin) for origin in origins)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def allows(self, origin: bytes | None) -> bool:
        return origin is not None and origin in self._origins

    def reply_headers(self, request: Request) -> tuple[Header, ...]:
        """Headers of every reply, so that a page may read it; caches keep replies to other pages apart."""
        origin = request.header(b"origin")
        if origin is None or origin not in self._origins:
            return (VARY,)
        return (
            (b"Access-Control-Allow-Origin", origin),
            (b"Access-Control-Expose-Headers", EXPOSED_HEADERS),
            VARY,
        )

    def answer_preflight(self, request: Request) -> bool:
        """Whether this was a preflight request, which is then answered. It carries no key, so it needs none."""
        asked = request.header(b"access-control-request-method")
        if asked is None or not self.allows(request.header(b"origin")):
            return False
        headers = [
            (b"Access-Control-Allow-Methods", METHODS),
            (b"Access-Control-Allow-Headers", REQUEST_HEADERS),
            (b"Access-Control-Max-Age", PREFLIGHT_S),
        ]
        if request.header(b"access-control-request-private-network") is not None:
            headers.append((b"Access-Control-Allow-Private-Network", b"true"))
        request.reply(204, headers=headers)
        return True


def parse_origin(text: str) -> bytes:
    """An origin as browsers write it: lower case, no default port, nothing after the port."""
    parts = urlsplit(text.lower().removesuffix("/"))
    try:
        port = parts.port
    except ValueError:
        port = -1
    plain = not (parts.path or parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or not plain or port == -1 or not text.isascii():
        raise WrongSetting(
            f"{find('cors_origins').variable}: {text!r} is not an origin; write the scheme, the host and, if there is "
            "one, the port of the page, like https://app.example.org",
            setting="cors_origins",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port is None or port == DEFAULT_PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{host}{shown}".encode()

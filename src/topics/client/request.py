"""A request as a value, independent of any connection."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics.client.errors import InvalidRequest
from topics.client.retrying import RETRIES_MAX, RETRY_S_MAX
from topics.client.tls.files import NO_FILES, TlsFiles
from topics.model import encoding
from topics.model.setting_types import service_link_hint

T = TypeVar("T")

URL_DEFAULT: Final = "http://127.0.0.1:4000"
TIMEOUT_S_DEFAULT: Final = 30.0
CONNECTIONS_MAX: Final = 100
JSON: Final = {"Content-Type": "application/json"}

# A list is a field that is repeated.
QueryValue = str | int | bool | Sequence[str] | None
# One server, or several as a list or separated by commas: the primary and those that may take over from it.
Urls = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """`decoder` is for the reply. `safe`: repeating it changes nothing, so it may be retried after a lost reply."""

    method: str
    path: str
    decoder: msgspec.json.Decoder[T]
    body: bytes | None = None
    safe: bool = False
    # how long the server may wait on purpose, in addition to the usual timeout
    wait_ms: int = 0
    # sent with a token of the consumer groups instead of the key
    by_token: bool = False
    # sent to this server, whatever its role; None: to the primary
    at: str | None = None


class PageReply(Protocol):
    """A page of a list; `next_cursor` leads to the next one."""

    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a client; those not given come from the environment."""

    urls: tuple[str, ...]
    key: str | None
    node: str | None
    timeout_s: float
    retries_max: int = RETRIES_MAX
    retry_s_max: float = RETRY_S_MAX
    connections_max: int = CONNECTIONS_MAX
    tls: TlsFiles = NO_FILES
    tracing: bool = False

    @classmethod
    def resolve(cls, url: Urls | None, key: str | None, **rest: Any) -> Options:
        urls = urls_of(url) or urls_of(os.environ.get("TOPICS_URL")) or (_url_here(),)
        return cls(urls=urls, key=(os.environ.get("TOPICS_API_KEY") if key is None else key) or None, **rest)

    @property
    def url(self) -> str:
        """All of them, as another client takes them."""
        return ",".join(self.urls)


def urls_of(given: Urls | None) -> tuple[str, ...]:
    """The servers that are named, each once."""
    listed = given if isinstance(given, str) else ",".join(given or ())
    return tuple(dict.fromkeys(_url(each.strip()) for each in listed.split(",") if each.strip()))


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    if not re.match(r"https?://[^/]", url):
        message = f"{url!r} is not a URL like http://host:port; give one, or set TOPICS_URL"
        raise InvalidRequest(message, field="url")
    return url.rstrip("/")


def traces(given: bool | None) -> bool:
    """Whether requests are traced; what is not given comes from TOPICS_TRACING."""
    return os.environ.get("TOPICS_TRACING", "").lower() in ("1", "true", "yes", "on") if given is None else given


def _url_here() -> str:
    """The server on this machine, at the port that `topics serve` takes from the same environment."""
    port = os.environ.get("TOPICS_PORT")
    if not port:
        return URL_DEFAULT
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        hint = service_link_hint(port)
        message = f"TOPICS_PORT must be a port from 1 to 65535, not {port!r}{hint}; or give its URL (TOPICS_URL)"
        raise InvalidRequest(message, field="url")
    return f"http://127.0.0.1:{port}"


def topic_path(name: str, verb: str = "") -> str:
    return f"/v0/topics/{quote(name, safe=':')}{verb}"


def with_query(path: str, query: Mapping[str, QueryValue]) -> str:
    given = {name: _text(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _text(value: str | int | bool | Sequence[str]) -> str | Sequence[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else value


def encode(value: Any, name: str = "") -> bytes:
    """The value as JSON; raises InvalidRequest for what JSON cannot represent. `name` is its name in errors."""
    try:
        return encoding.encode(value, name)
    except encoding.NotJson as error:
        raise InvalidRequest(str(error), detail={"field": name} if name else None) from None


def body_of(**fields: Any) -> bytes:
    """A JSON object of the fields that are not None."""
    return encode({name: value for name, value in fields.items() if value is not None})

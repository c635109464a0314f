"""Webhooks: the request, and the resolved configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from topics.model.errors import InvalidRequest
from topics.model.names import check_topic_name
from topics.model.requests.config import U64, U64_MAX
from topics.model.webhooks.addresses import literal_address

Format = Literal["record", "data", "cloudevents"]
Order = Literal["topic", "tag", "none"]
Start = Literal["head", "earliest"]

URL_CHARS_MAX = 2_048
HEADERS_MAX, HEADER_CHARS_MAX = 16, 4_096
TAG_CHARS_MAX = 256
GRACE_MS, GRACE_MS_MAX = 86_400_000, 30 * 86_400_000
# Bounds of the numbers of a webhook.
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "timeout_ms": (100, 60_000),
    "concurrency": (1, 64),
    "max_attempts": (1, 100),
    "backoff_ms": (100, 3_600_000),
    "backoff_ms_max": (100, 86_400_000),
    "pause_after": (0, 1_000_000),
}
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*", re.ASCII)
# What the server sets, and what would change how the request is read.
_OWN_HEADERS: Final = re.compile(
    r"webhook-.*|topics-.*|proxy-.*|host|content-(type|length|encoding)|transfer-encoding|connection|keep-alive|upgrade"
    r"|te|trailer|expect",
    re.IGNORECASE,
)
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?\.?", re.ASCII)


class WebhookRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a PUT. `null` means absent, except for numbers."""

    topic: str
    url: str
    start: Annotated[
        Start | U64 | None,
        Meta(description="Where a new webhook starts: `head`, `earliest`, or after this seq."),
    ] = msgspec.field(default="head", name="from")
    tag: str | None = None
    format: Format | None = "record"
    headers: dict[str, str] | None = None
    timeout_ms: U64 = 10_000
    concurrency: U64 = 1
    order: Annotated[Order | None, Meta(description="By default `topic`, and `tag` if `concurrency` is above 1.")] = (
        None
    )
    max_attempts: U64 = 20
    backoff_ms: U64 = 5_000
    backoff_ms_max: U64 = 3_600_000
    dead_letter: str | None = None
    pause_after: U64 = 5
    paused: bool | None = False
    secret: str | None = None


class RotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new secret; the ones before it sign as well for the grace period."""

    secret: str | None = None
    grace_ms: U64 = GRACE_MS


class WebhookEmptyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A test and a resumption take no fields."""


class WebhookConfig(msgspec.Struct, frozen=True):
    """A resolved configuration: what is stored, and shown without the values of its headers."""

    topic: str
    url: str
    tag: str | None = None
    format: Format = "record"
    headers: dict[str, str] = {}
    timeout_ms: int = 10_000
    concurrency: int = 1
    order: Order = "topic"
    max_attempts: int = 20
    backoff_ms: int = 5_000
    backoff_ms_max: int = 3_600_000
    dead_letter: str | None = None
    pause_after: int = 5
    paused: bool = False


class Secret(NamedTuple):
    """A secret that signs, until a time (0: for good)."""

    text: str
    until_ms: int = 0


class StoredWebhook(msgspec.Struct, frozen=True):
    """What the log and snapshots keep of a configuration."""

    config: WebhookConfig
    secrets: list[Secret]


class Target(NamedTuple):
    """Where a URL leads. `host` as in the URL, without brackets."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StoredWebhook)


def encode_webhook(config: WebhookConfig, secrets: list[Secret]) -> bytes:
    return _encoder.encode(StoredWebhook(config, secrets))


def decode_webhook(data: bytes) -> StoredWebhook:
    return _decoder.decode(data)


def target_of(url: str) -> Target:
    """Raises InvalidRequest for a URL that nothing can be sent to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"url is not valid: {error}", field="url") from None
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest("url must start with https:// or http:// and name a host", field="url")
    if "@" in parts.netloc:
        raise InvalidRequest("url must not have a user or a password; put them into headers", field="url")
    if "#" in url:
        raise InvalidRequest("url must not have a fragment: it is not sent", field="url")
    if len(url) > URL_CHARS_MAX or any(not "!" <= character <= "~" for character in url):
        raise InvalidRequest(
            f"url must be at most {URL_CHARS_MAX} printable ASCII characters; write other hosts as xn--…, and other "
            "characters as %XX",
            field="url",
            max=URL_CHARS_MAX,
        )
    if literal_address(host) is None and _HOST.fullmatch(host) is None:
        raise InvalidRequest(f"url has the host {host!r}, which is neither a name nor an address", field="url")
    if port == 0:
        raise InvalidRequest("url has the port 0", field="url")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    tls = parts.scheme == "https"
    return Target(tls, host, port or (443 if tls else 80), path)


def resolve_webhook(request: WebhookRequest) -> WebhookConfig:
    """Fill in defaults; refuse a configuration that cannot work."""
    check_topic_name(request.topic)
    target_of(request.url)
    for name, (least, most) in _BOUNDS.items():
        value = getattr(request, name)
        if not least <= value <= most:
            raise InvalidRequest(f"{name} must be {least} to {most}, not {value}", field=name, min=least, max=most)
    if request.backoff_ms_max < request.backoff_ms:
        raise InvalidRequest(
            f"backoff_ms_max must be at least backoff_ms, {request.backoff_ms}", field="backoff_ms_max"
        )
    order = request.order or ("topic" if request.concurrency == 1 else "tag")
    if order == "topic" and request.concurrency > 1:
        raise InvalidRequest(
            "concurrency must be 1 if the order is that of the topic: say order: tag, or none", field="concurrency"
        )
    if request.dead_letter is not None:
        check_topic_name(request.dead_letter, "dead_letter")
        if request.dead_letter == request.topic:
            raise InvalidRequest("dead_letter must not be the topic itself: it would never end", field="dead_letter")
    if request.tag is not None and not 0 < len(request.tag) <= TAG_CHARS_MAX:
        raise InvalidRequest(f"tag must be 1 to {TAG_CHARS_MAX} characters", field="tag", max=TAG_CHARS_MAX)
    if isinstance(request.start, int) and request.start > U64_MAX:
        raise InvalidRequest(f"from must be at most {U64_MAX}", field="from")
    _check_headers(request.headers or {})
    return WebhookConfig(
        topic=request.topic,
        url=request.url,
        tag=request.tag,
        format=request.format or "record",
        headers=dict(request.headers or {}),
        timeout_ms=request.timeout_ms,
        concurrency=request.concurrency,
        order=order,
        max_attempts=request.max_attempts,
        backoff_ms=request.backoff_ms,
        backoff_ms_max=request.backoff_ms_max,
        dead_letter=request.dead_letter,
        pause_after=request.pause_after,
        paused=bool(request.paused),
    )


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > HEADERS_MAX:
        raise InvalidRequest(f"headers must be at most {HEADERS_MAX}, not {len(headers)}", field="headers")
    for name, value in headers.items():
        if _HEADER_NAME.fullmatch(name) is None:
            raise InvalidRequest(f"headers has {name[:64]!r}, which is not the name of a header", field="headers")
        if _OWN_HEADERS.fullmatch(name) is not None:
            raise InvalidRequest(f"headers has {name!r}, which only the server sets", field="headers")
        if _HEADER_VALUE.fullmatch(value) is None:
            raise InvalidRequest(f"headers.{name} must be printable ASCII", field="headers")
    if sum(len(name) + len(value) for name, value in headers.items()) > HEADER_CHARS_MAX:
        raise InvalidRequest(
            f"headers must be at most {HEADER_CHARS_MAX} characters together", field="headers", max=HEADER_CHARS_MAX
        )
    if len({name.lower() for name in headers}) < len(headers):
        raise InvalidRequest("headers has a name twice", field="headers")

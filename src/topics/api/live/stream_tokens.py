"""Stream tokens: permission to read some topics as event streams for a limited time, without giving away a key.

    st_<base64url of: expires_ms u64 | names, separated by line feeds>.<base64url of HMAC-SHA256>

The signature is made with the server's secret and the digest of the key that requested the token: a token survives a
restart, and ends when it expires, when its key is removed from the settings, or when the secret changes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from topics.api.auth import Authenticator, Headers, Key, KeyAuthenticator, Principal, Scope
from topics.api.call import Call
from topics.api.replies import encode, performance
from topics.api.routes import Route
from topics.api.schema import Performance
from topics.model.clock import Clock
from topics.model.encoding import from_base64url, to_base64url
from topics.model.errors import Forbidden, InvalidRequest, Unauthorized
from topics.model.names import check_topic_name

PREFIX = "st_"
TTL_MS_DEFAULT, TTL_MS_MAX = 3_600_000, 86_400_000
TOPICS_MAX = 100
# A token is part of a URL, with a path and other fields.
TOKEN_CHARS_MAX = 4_096
_expiry = struct.Struct(">Q")


class StreamTokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    topics: Annotated[list[str], Meta(extra_json_schema={"minItems": 1, "maxItems": TOPICS_MAX})]
    ttl_ms: Annotated[int, Meta(ge=1, le=TTL_MS_MAX)] = TTL_MS_DEFAULT


class StreamTokenReply(msgspec.Struct):
    """`expires_ms` is when the token ends, in ms since 1970."""

    token: str
    topics: list[str]
    expires_ms: int
    performance: Performance


class StreamReader(Principal):
    """The bearer of a stream token: may read the topics it names, as long as the token's key may."""

    __slots__ = ("_clock", "expires_ms", "owner", "topics")

    def __init__(self, owner: Key, topics: frozenset[str], expires_ms: int, clock: Clock) -> None:
        # Without any prefix, every name is checked by `check_name`.
        super().__init__(Scope.READ & Scope(owner.scopes), (), number=owner.number)
        self.owner = owner
        self.topics = topics
        self.expires_ms = expires_ms
        self._clock = clock

    def lasts_ms(self) -> int:
        return max(0, self.expires_ms - self._clock.now_ms())

    def check_name(self, name: str, field: str, *, given: bool = True) -> None:
        if name not in self.topics:
            raise Forbidden(f'{field} is "{name}", which the stream token does not cover', field=field, name=name)
        self.owner.check_name(name, field, given=given)


class StreamTokens:
    """Issues and verifies stream tokens. Without keys, every token is ignored."""

    def __init__(self, authenticator: Authenticator, secret: bytes, clock: Clock) -> None:
        self._keys = authenticator.keys if isinstance(authenticator, KeyAuthenticator) else ()
        self._clock = clock
        self.secret = secret

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v0/stream-tokens",
                changes=False,
                handler=self.create,
                summary="Issue a short-lived token that opens the event streams of some topics.",
                scopes=Scope.READ,
                body=StreamTokenRequest,
                replies={200: StreamTokenReply},
            )
        ]

    def create(self, call: Call) -> None:
        params: StreamTokenRequest = call.params
        topics = list(dict.fromkeys(params.topics))
        if not topics:
            raise InvalidRequest("topics must name at least one topic", field="topics")
        if len(topics) > TOPICS_MAX:
            raise InvalidRequest(
                f"topics names {len(topics)} topics; a token covers at most {TOPICS_MAX}",
                field="topics",
                max=TOPICS_MAX,
            )
        for number, name in enumerate(topics):
            check_topic_name(name, f"topics[{number}]")
        for number, name in enumerate(topics):
            call.principal.check_name(name, f"topics[{number}]")
        expires_ms = self._clock.now_ms() + params.ttl_ms
        # Without keys a token has no effect, but a page that requests one works all the same.
        digest = call.principal.digest if isinstance(call.principal, Key) else b""
        token = self._sign(digest, topics, expires_ms)
        if len(token) > TOKEN_CHARS_MAX:
            raise InvalidRequest(
                f"a token for these topics would be {len(token)} characters long; at most {TOKEN_CHARS_MAX} fit into "
                "a URL: request fewer topics",
                field="topics",
                max=TOKEN_CHARS_MAX,
            )
        call.reply(200, encode(StreamTokenReply(token, topics, expires_ms, performance(call))))

    def bearer(self, headers: Headers) -> StreamReader | None:
        """The principal of the request's stream token; None if it carries none."""
        text = headers.get(b"authorization", b"").partition(b" ")[2].strip(b" \t").decode("latin-1")
        if not self._keys or not self.secret or not text.startswith(PREFIX):
            return None
        found = self._read(text)
        if found is None:
            return None
        owner, topics, expires_ms = found
        if self._clock.now_ms() >= expires_ms:
            raise Unauthorized("the stream token has expired: request a new one")
        return StreamReader(owner, topics, expires_ms, self._clock)

    def _sign(self, key_digest: bytes, topics: list[str], expires_ms: int) -> str:
        payload = _expiry.pack(expires_ms) + "\n".join(topics).encode()
        signature = self._signature(key_digest, payload)
        return f"{PREFIX}{to_base64url(payload).decode()}.{to_base64url(signature).decode()}"

    def _read(self, text: str) -> tuple[Key, frozenset[str], int] | None:
        """The content of a token that one of the keys has signed. Every key is compared, whichever matches."""
        payload_text, _, signature_text = text.removeprefix(PREFIX).partition(".")
        try:
            payload, signature = from_base64url(payload_text), from_base64url(signature_text)
        except ValueError:
            return None
        owner: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(signature, self._signature(key.digest, payload)):
                owner = key
        if owner is None:
            return None
        (expires_ms,) = _expiry.unpack_from(payload)
        return owner, frozenset(payload[_expiry.size :].decode().split("\n")), expires_ms

    def _signature(self, key_digest: bytes, payload: bytes) -> bytes:
        own = hmac.digest(self.secret, key_digest, hashlib.sha256)
        return hmac.digest(own, payload, hashlib.sha256)

"""Authentication and authorization: principals with scopes and name prefixes, API keys, and a server without keys."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntFlag
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from topics.api.cors import DEFAULT_PORTS, Cors
from topics.model.errors import Forbidden, Unauthorized
from topics.model.setting_types import WrongSetting
from topics.model.settings import Settings, find

if TYPE_CHECKING:
    from topics.model.requests.records import RecordRequest

ANY_NAME = ("",)
KEY_ID_DIGITS: Final = 12
# A subprotocol offered by a WebSocket that carries a key, in base64url.
BEARER_PROTOCOL = "topics.bearer."

# The values of Sec-Fetch-Site for requests made by the user, or by a page of this server.
OWN_SITES = frozenset((b"none", b"same-origin"))

Headers = Mapping[bytes, bytes]


class Scope(IntFlag):
    NONE = 0
    READ = 1
    WRITE = 2
    DELETE = 4
    ADMIN = 8
    ALL = 15


SCOPES: Final[Mapping[str, Scope]] = {
    "read": Scope.READ,
    "write": Scope.WRITE,
    "delete": Scope.DELETE,
    "admin": Scope.ADMIN,
    "r": Scope.READ,
    "w": Scope.WRITE,
    "d": Scope.DELETE,
    "a": Scope.ADMIN,
    "rw": Scope.READ | Scope.WRITE,
}


@mypyc_attr(allow_interpreted_subclasses=True)
class Principal:
    """The authenticated caller: what it may do, and how much of the server it uses now."""

    __slots__ = ("inflight", "inflight_max", "number", "prefixes", "scopes", "streams")
    # the word for it in errors
    noun = "key"

    def __init__(self, scopes: Scope, prefixes: tuple[str, ...], inflight_max: int = 0, number: int = 0) -> None:
        # that of the key; 0: streams are not counted per principal
        self.number = number
        self.scopes = int(scopes)
        self.prefixes = prefixes
        self.inflight = 0
        self.streams = 0
        self.inflight_max = inflight_max or sys.maxsize

    @property
    def sees_all_names(self) -> bool:
        return self.prefixes == ANY_NAME

    def check_name(self, name: str, field: str, *, given: bool = True) -> None:
        """Raises Forbidden, which repeats only a name that the caller sent (the empty name stands for all)."""
        if name.startswith(self.prefixes):
            return
        prefixes = list(self.prefixes)
        allowed = " or ".join(f'"{prefix}"' for prefix in prefixes)
        if not given:
            message = f"{field} is a name that this {self.noun} may not use; its names start with {allowed}"
            raise Forbidden(message, field=field, prefixes=prefixes)
        what = f'{field} is "{name}"' if name else f"{field} may be any name"
        raise Forbidden(
            f"{what}, but the names of this {self.noun} start with {allowed}", field=field, name=name, prefixes=prefixes
        )

    def check_notified(self, records: Iterable[RecordRequest], place: str = "records") -> None:
        """The topics that are notified of job groups must be ones that it may use."""
        for index, record in enumerate(records):
            if record.group is not None:
                self.check_name(record.group.notify, f"{place}[{index}].group.notify")

    def check_scopes(self, scopes: int) -> None:
        if scopes & ~self.scopes:
            missing = "+".join(scope.name.lower() for scope in Scope(scopes & ~self.scopes) if scope.name)
            raise Forbidden(f"the key lacks the scope {missing}", scope=missing)


class Key(Principal):
    """One configured key. The secret itself is not kept; `sqs_secret` is what SQS clients sign with instead."""

    __slots__ = ("digest", "sqs_secret")

    def __init__(
        self,
        number: int,
        digest: bytes,
        scopes: Scope,
        prefixes: tuple[str, ...],
        inflight_max: int = 0,
        sqs_secret: str = "",
    ) -> None:
        super().__init__(scopes, prefixes, inflight_max, number)
        self.digest = digest
        self.sqs_secret = sqs_secret

    @property
    def id(self) -> str:
        """Names the key without telling it: the access key of SQS clients."""
        return self.digest.hex()[:KEY_ID_DIGITS]


class KeyAuthenticator:
    """Finds the key that a request carries."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = tuple(keys)

    def authenticate(self, headers: Headers) -> Key:
        header = headers.get(b"authorization")
        if header is None:
            raise Unauthorized("an API key is required: Authorization: Bearer <key>")
        if header[:7].lower() != b"bearer ":
            raise Unauthorized("the Authorization header is not of the form: Bearer <key>")
        return self.find(header[7:].strip(b" \t"))

    def check_origin(self, headers: Headers, *, is_page: bool = False) -> None:
        """Every origin is allowed: a web page cannot guess a key."""

    def find(self, token: bytes) -> Key:
        """Compares every key, whichever matches, so that the time taken reveals nothing about the keys."""
        digest = hashlib.sha256(token).digest()
        found: Key | None = None
        for key in self.keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        if found is None:
            raise Unauthorized("the API key is unknown")
        return found


class OpenAuthenticator:
    """For a server without keys: programs on this machine may do everything, web pages of other sites nothing."""

    def __init__(
        self, allowed_hosts: Sequence[str], *, guarded: bool, cors: Cors | None = None, scheme: str = "http"
    ) -> None:
        self._allowed = frozenset(host.lower() for host in allowed_hosts)
        self._guarded = guarded
        self._scheme = scheme
        self._cors = cors or Cors(())
        self.anyone = Principal(Scope.ALL, ANY_NAME)
        # The value that nearly all requests carry, so that it is checked once.
        self._good_host: bytes | None = None

    def authenticate(self, headers: Headers) -> Principal:
        del headers
        return self.anyone

    def check_origin(self, headers: Headers, *, is_page: bool = False) -> None:
        """Refuse requests that a web page of another site makes a browser send, except following a link to a page."""
        origin = headers.get(b"origin")
        listed = self._cors.allows(origin)
        site = headers.get(b"sec-fetch-site")
        if self._guarded:
            host = headers.get(b"host")
            if host is not None and host != self._good_host:
                if not self._is_ours(_host_of(host.strip().decode("latin-1"))):
                    raise Forbidden(
                        "a server without keys does not answer to this Host; see the setting allowed_hosts",
                        field="host",
                    )
                self._good_host = host
            if origin is not None and not listed and not self._is_own_origin(origin, host, vouched=site in OWN_SITES):
                raise Forbidden(
                    "pages of this Origin may not use a server without keys; see the setting cors_origins",
                    field="origin",
                )
        if site is None or site in OWN_SITES or listed:
            return
        opens_page = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
        if not (is_page and opens_page):
            raise Forbidden(
                "pages of other sites may not use a server without keys; see the setting cors_origins",
                field="sec-fetch-site",
            )

    def _is_own_origin(self, origin: bytes, host: bytes | None, *, vouched: bool) -> bool:
        """For a WebSocket, browsers send only the origin: another port is another program on this machine."""
        scheme, _, authority = origin.strip().decode("latin-1").lower().partition("://")
        name = _host_of(authority)
        if not is_loopback(name) or name in self._allowed:
            return name in self._allowed
        own_port = _port_of((host or b"").strip().decode("latin-1"), self._scheme)
        return vouched or _port_of(authority, scheme) == own_port

    def _is_ours(self, host: str) -> bool:
        return is_loopback(host) or host.lower() in self._allowed


Authenticator = KeyAuthenticator | OpenAuthenticator


def authenticator_of(settings: Settings) -> Authenticator:
    """The authenticator for these settings, which must allow it explicitly to serve other machines without keys."""
    if settings.api_keys:
        return KeyAuthenticator(parse_keys(settings.api_keys, settings.max_inflight_per_key))
    loopback = is_loopback(settings.host)
    if not loopback and not settings.allow_insecure_no_auth:
        raise WrongSetting(
            f"refusing to listen on {settings.host} without keys: set {find('api_keys').variable}, listen on "
            f"127.0.0.1, or set {find('allow_insecure_no_auth').variable}=1 to let every client do everything",
            setting="host",
        )
    return OpenAuthenticator(
        settings.allowed_hosts,
        guarded=loopback,
        cors=Cors(settings.cors_origins),
        scheme="http" if settings.tls_cert is None else "https",
    )


def parse_keys(entries: Sequence[str], inflight_max: int = 0) -> list[Key]:
    """Keys as `secret`, `secret:scopes` or `secret:scopes:prefixes`. Anything ambiguous is refused."""
    keys: list[Key] = []
    for number, entry in enumerate(entries, 1):
        secret, _, rest = entry.partition(":")
        scopes, _, prefixes = rest.partition(":")
        if not secret:
            raise _wrong(number, "has no secret before the first colon")
        if all(word in SCOPES for word in secret.lower().split("+")):
            raise _wrong(number, "is named like a scope; scopes are joined by +, not by commas: key:read+write")
        digest = hashlib.sha256(secret.encode()).digest()
        if any(key.digest == digest for key in keys):
            raise _wrong(number, "repeats the secret of an earlier one")
        granted, names = _parse_scopes(scopes, number), _parse_prefixes(prefixes, number)
        keys.append(Key(number, digest, granted, names, inflight_max, sqs_secret_of(secret)))
    return keys


def key_id_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:KEY_ID_DIGITS]


def sqs_secret_of(secret: str) -> str:
    """What an SQS client signs with: derived from the key, so that signatures can be checked without keeping it."""
    return hashlib.sha256(b"sqs:" + secret.encode()).hexdigest()


def _parse_scopes(text: str, number: int) -> Scope:
    if not text:
        return Scope.ALL
    scopes = Scope.NONE
    for word in text.split("+"):
        if word not in SCOPES:
            raise _wrong(
                number, "has an unknown scope; scopes are read, write, delete, admin (r, w, d, a, rw), joined by +"
            )
        scopes |= SCOPES[word]
    return scopes


def _parse_prefixes(text: str, number: int) -> tuple[str, ...]:
    if not text:
        return ANY_NAME
    prefixes = tuple(text.split("|"))
    if "" in prefixes:
        raise _wrong(number, "has an empty prefix, which would match every name")
    return prefixes


def _wrong(number: int, reason: str) -> WrongSetting:
    """Names the entry by its number: any part of its text may be a piece of a secret."""
    return WrongSetting(f"{find('api_keys').variable}: entry {number} {reason}", setting="api_keys")


def is_loopback(host: str) -> bool:
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_of(authority: str) -> str:
    """`example.org:4000` and `[::1]:4000` without their ports."""
    if authority.startswith("["):
        address, closed, port = authority[1:].partition("]")
        return address if closed and port[:1] in ("", ":") else authority
    return authority.partition(":")[0]


def _port_of(authority: str, scheme: str) -> str:
    port = authority.rpartition("]")[2].partition(":")[2]
    return port or str(DEFAULT_PORTS.get(scheme, ""))

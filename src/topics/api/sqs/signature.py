"""Signature Version 4: what a client has signed, rebuilt from the request and compared. No I/O, no clock.

canonical request ─sha256─▶ string to sign ─HMAC with a key of the day, region and service─▶ signature
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from topics.api.sqs.errors import SqsError
from topics.http.request import Header

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "sqs"
TERMINATOR: Final = "aws4_request"
PAYLOAD: Final = b"x-amz-content-sha256"
UNSIGNED: Final = b"UNSIGNED-PAYLOAD"
# How far the clocks of client and server may differ, as at AWS.
SKEW_S_MAX = 15 * 60
UNRESERVED: Final = "-_.~"
SIGNING_KEYS_MAX = 256
# Headers that decide what a request does: if one is sent, it must be signed.
DECISIVE: Final = (b"host", PAYLOAD, b"x-amz-date", b"x-amz-target")

_plain_path = re.compile(rb"[A-Za-z0-9/._~-]*")
_AUTHORIZATION = re.compile(
    rb"AWS4-HMAC-SHA256 +Credential=([^/, ]+)/([0-9]{8})/([^/, ]+)/([^/, ]+)/([^/, ]+), *"
    rb"SignedHeaders=([!-~]+?), *Signature=([0-9a-f]{64})"
)
_time = re.compile(
    r"([1-9][0-9]{3})(0[1-9]|1[0-2])([0-2][0-9]|3[01])T([01][0-9]|2[0-3])([0-5][0-9])([0-5][0-9])Z", re.ASCII
)


class Signed(NamedTuple):
    """An Authorization header, taken apart."""

    key_id: str
    date: str
    region: str
    service: str
    terminator: str
    headers: tuple[bytes, ...]
    signature: str

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/{self.terminator}"


class Signable(NamedTuple):
    """The parts of a request that a signature covers; `path` as the client sent it, headers by name."""

    method: str
    path: bytes
    query: bytes
    headers: Mapping[bytes, bytes]
    body_sha256: str


def joined_headers(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Headers by name; the values of a repeated one are a list."""
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = joined[name] + b"," + value if name in joined else value
    return joined


def parse_authorization(header: bytes | None) -> Signed:
    if header is None:
        raise SqsError("MissingAuthenticationToken", "Request is missing Authentication Token")
    match = _AUTHORIZATION.fullmatch(header.strip())
    if match is None:
        raise SqsError(
            "IncompleteSignature",
            f"The Authorization header is not of the form: {ALGORITHM} Credential=…, SignedHeaders=…, Signature=…",
        )
    key_id, date, region, service, terminator, names, signature = [part.decode("latin-1") for part in match.groups()]
    return Signed(key_id, date, region, service, terminator, tuple(names.encode().split(b";")), signature)


def canonical_request(request: Signable, signed_headers: Sequence[bytes]) -> bytes:
    headers, path = request.headers, request.path
    if _plain_path.fullmatch(path) is None:
        path = quote_from_bytes(path, safe="/" + UNRESERVED).encode()
    lines = [request.method.encode(), path, _canonical_query(request.query) if request.query else b""]
    lines += [b"%b:%b" % (name, b" ".join(headers.get(name, b"").split())) for name in signed_headers]
    lines += (b"", b";".join(signed_headers), headers.get(PAYLOAD) or request.body_sha256.encode())
    return b"\n".join(lines)


def string_to_sign(time_text: str, scope: str, canonical: bytes) -> bytes:
    return f"{ALGORITHM}\n{time_text}\n{scope}\n{hashlib.sha256(canonical).hexdigest()}".encode()


def signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (date, region, service, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _canonical_query(query: bytes) -> bytes:
    pairs: list[tuple[str, str]] = []
    for field in query.split(b"&"):
        name, _, value = field.partition(b"=")
        pairs.append((_escaped(name), _escaped(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs)).encode()


def _escaped(text: bytes) -> str:
    return quote_from_bytes(unquote_to_bytes(text), safe=UNRESERVED)


class Verifier:
    """Checks signatures; keeps the signing keys of the last days, regions and keys."""

    def __init__(self) -> None:
        self._signing_keys: dict[tuple[str, str, str], bytes] = {}

    def verify(self, request: Signable, signed: Signed, secret: str, now_s: float, paths: Sequence[bytes] = ()) -> None:
        """Raises unless the owner of the secret has signed this request, at about this time.

        `paths`: the path as a client may have signed it, if a proxy changes it.
        """
        time_text = _time_of(request)
        _check_time(time_text, now_s)
        if signed.service != SERVICE or signed.terminator != TERMINATOR or signed.date != time_text[:8]:
            raise SqsError(
                "SignatureDoesNotMatch",
                f"Credential should be scoped to a valid date, the service {SERVICE!r} and {TERMINATOR!r}, "
                f"not to {signed.scope!r}",
            )
        for name in DECISIVE:
            if name not in signed.headers and name in request.headers:
                raise SqsError("SignatureDoesNotMatch", f"The header {name.decode()} must be signed.")
        if request.headers.get(PAYLOAD, UNSIGNED) not in (UNSIGNED, request.body_sha256.encode()):
            raise _mismatch()
        key = self._signing_key(signed, secret)
        for path in paths or (request.path,):
            canonical = canonical_request(request._replace(path=path), signed.headers)
            expected = hmac.digest(key, string_to_sign(time_text, signed.scope, canonical), "sha256").hex()
            if hmac.compare_digest(expected, signed.signature):
                return
        raise _mismatch()

    def _signing_key(self, signed: Signed, secret: str) -> bytes:
        named = signed.key_id, signed.date, signed.region
        key = self._signing_keys.get(named)
        if key is None:
            if len(self._signing_keys) >= SIGNING_KEYS_MAX:
                self._signing_keys.clear()
            key = self._signing_keys[named] = signing_key(secret, signed.date, signed.region, SERVICE)
        return key


def _time_of(request: Signable) -> str:
    found = request.headers.get(b"x-amz-date") or request.headers.get(b"date")
    if found is None:
        raise SqsError(
            "IncompleteSignature", "Authorization header requires existence of either 'X-Amz-Date' or 'Date'."
        )
    return found.decode("latin-1")


def _check_time(text: str, now_s: float) -> None:
    found = _time.fullmatch(text)
    if found is None:
        raise SqsError("IncompleteSignature", f"The date must be of the form 20260131T235959Z, not {text[:32]!r}")
    signed_s = calendar.timegm(tuple(map(int, found.groups())))
    if abs(signed_s - now_s) <= SKEW_S_MAX:
        return
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    if signed_s < now_s:
        raise SqsError("SignatureDoesNotMatch", f"Signature expired: {text} is more than 15 minutes before {now}")
    raise SqsError("SignatureDoesNotMatch", f"Signature not yet current: {text} is more than 15 minutes after {now}")


def _mismatch() -> SqsError:
    return SqsError(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your secret access key "
        "(`topics sqs credentials` prints it), and that no proxy changes the Host header or the body.",
    )

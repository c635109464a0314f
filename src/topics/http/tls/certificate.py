"""The server's certificate and key: read, checked by a handshake with itself, and replaced while connections stay.

new files ─▶ context ─▶ handshake in memory ─┬─ fits, in date ─▶ every connection from now on
                                             └─ otherwise: UnusableCertificate, the context before it stays
"""

from __future__ import annotations

import os
import ssl
import time
from typing import Final, NamedTuple

from topics.model.setting_types import WrongSetting
from topics.model.settings import Settings, find

# In this order by ALPN; HTTP/2 is offered to clients that can use it.
PROTOCOLS: Final = ["h2", "http/1.1"]
# For TLS 1.2: forward secrecy and authenticated encryption only, which HTTP/2 requires. TLS 1.3 has no others.
CIPHERS_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
# X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
NOT_YET_VALID, EXPIRED = 9, 10
PEM_BYTES_MAX = 1 << 20


class UnusableCertificate(Exception):
    """No connection can be secured with these files; the text names the file and the reason."""


class TlsFiles(NamedTuple):
    """Where certificate and key are, in PEM; with `client_ca`, clients must show a certificate signed by it."""

    certificate: str
    key: str
    client_ca: str | None = None


class Tls:
    """The context of new connections, and counts over all of them."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context, self.not_after_s = load(files)
        self.handshakes_total = 0
        self.failures_total = 0

    @property
    def days_left(self) -> float:
        return (self.not_after_s - time.time()) / 86_400

    def reload(self) -> None:
        """Use the files as they are now for new connections; raises UnusableCertificate and keeps the old ones."""
        self.context, self.not_after_s = load(self._files)


def tls_of(settings: Settings) -> Tls | None:
    """The certificate that the settings name, checked; None: plain HTTP. Raises WrongSetting."""
    cert, key = find("tls_cert"), find("tls_key")
    if settings.tls_cert is None or settings.tls_key is None:
        for given, missing in ((cert, key), (key, cert), (find("tls_client_ca"), cert)):
            if getattr(settings, given.name) is not None:
                raise WrongSetting(f"{given.variable} is set, but {missing.variable} is not", setting=missing.name)
        return None
    try:
        return Tls(TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca))
    except UnusableCertificate as error:
        raise WrongSetting(f"{cert.variable}, {key.variable}: {error}", setting=cert.name) from None


def load(files: TlsFiles) -> tuple[ssl.SSLContext, int]:
    """A context for connections, and when its certificate expires, in seconds since 1970."""
    for path in files:
        if path is not None:
            _check_readable(path)
    context = _context_of(files)
    not_after_s = _shake_hands(context, files.certificate)
    if files.client_ca is not None:
        try:
            context.load_verify_locations(cafile=files.client_ca)
        except ssl.SSLError as error:
            raise UnusableCertificate(f"{files.client_ca} has no certificate in PEM: {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context, not_after_s


def _check_readable(path: str) -> None:
    """The ssl module does not say which file it could not read."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise UnusableCertificate(f"cannot read {path}: {os.strerror(error.errno or 0).lower()}") from None


def _context_of(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_1_2)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(PROTOCOLS)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UnusableCertificate(f"the key {files.key} does not belong to {files.certificate}") from None
        raise UnusableCertificate(
            _what_is_missing(files) or f"{files.certificate}, {files.key}: {_reason(error)}"
        ) from None
    except _KeyIsEncrypted:
        raise UnusableCertificate(
            f"the key {files.key} is encrypted; a server has nobody to ask for the password: decrypt it, mode 0600"
        ) from None
    return context


def _what_is_missing(files: TlsFiles) -> str:
    """The ssl module does not say which file has nothing of the kind, as when both are swapped; empty if both have."""
    for path, kind in ((files.certificate, "CERTIFICATE"), (files.key, "PRIVATE KEY")):
        with open(path, "rb") as file:
            if f"{kind}-----".encode() not in file.read(PEM_BYTES_MAX):
                return f"{path} has no {kind.lower()} in PEM"
    return ""


class _KeyIsEncrypted(Exception):
    """A key asks for a password."""


def _no_password() -> str:
    """Otherwise OpenSSL asks on the terminal."""
    raise _KeyIsEncrypted


def _shake_hands(context: ssl.SSLContext, certificate: str) -> int:
    """Connect to ourselves, trusting just this certificate: its dates and uses are judged as clients judge them."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cafile=certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server)
    try:
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
        shown = client.getpeercert()
    except ssl.SSLCertVerificationError as error:
        why = {EXPIRED: "has expired", NOT_YET_VALID: "is not valid yet"}.get(error.verify_code)
        raise UnusableCertificate(f"{certificate} {why or f'is refused: {error.verify_message}'}") from None
    except (ssl.SSLError, ValueError) as error:
        raise UnusableCertificate(f"no connection can be secured with {certificate}: {_reason(error)}") from None
    assert shown is not None
    return ssl.cert_time_to_seconds(str(shown["notAfter"]))


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return (reason or str(error)).replace("_", " ").lower()

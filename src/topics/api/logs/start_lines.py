"""What the log says about access and TLS when the server starts to listen."""

from __future__ import annotations

import logging

from topics.api.auth import Authenticator, KeyAuthenticator, is_loopback
from topics.api.groups.tokens import Tokens
from topics.http.tls.certificate import Tls

log = logging.getLogger("topics.server")

# A certificate that expires sooner is worth a warning.
CERTIFICATE_DAYS_MIN = 14


def say_access(host: str, authenticator: Authenticator, tokens: Tokens) -> None:
    if isinstance(authenticator, KeyAuthenticator):
        log.info(counted(len(authenticator.keys), "API key"))
    else:
        whom = "everyone on this machine" if is_loopback(host) else "EVERYONE WHO REACHES THIS ADDRESS"
        log.warning("NO API KEYS: authentication is off, %s may do everything", whom)
    if tokens.open:
        log.warning(
            "consumer groups: /v1/api needs no token, every request has the role dba, and any name may log in; set "
            "TOPICS_JWT_SECRET to 32 or more characters to require tokens"
        )
    elif not tokens.usable:
        log.info(
            "consumer groups are off, /v1/api replies 401: set TOPICS_JWT_SECRET to 32 or more characters, and "
            "TOPICS_USERS for users who log in with a password"
        )


def say_tls(host: str, tls: Tls | None) -> None:
    if tls is not None:
        severity = logging.WARNING if tls.days_left < CERTIFICATE_DAYS_MIN else logging.INFO
        log.log(severity, "TLS: the certificate is valid for %.0f more days", tls.days_left)
    elif not is_loopback(host):
        log.warning(
            "NO TLS: keys and records cross the network unencrypted; set TOPICS_TLS_CERT and TOPICS_TLS_KEY, or "
            "let only a proxy with TLS reach this port"
        )


def say_ready(topics: int, records: int, took_ms: float) -> None:
    log.info("ready: %s, %s, recovered in %.0f ms", counted(topics, "topic"), counted(records, "record"), took_ms)


def say_role(role: str | None, takeover: str) -> None:
    if role == "standby":
        when = "with `topics promote`" if takeover == "manual" else "when no primary renews its lease"
        log.info("this server is a standby: it serves reads, and takes over %s", when)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

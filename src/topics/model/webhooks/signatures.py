"""Signatures as Standard Webhooks has them: secrets `whsec_…`, and HMAC-SHA256 over id, time and body.

webhook-signature: v1,<base64 of HMAC(secret, id "." seconds "." body)>, one for each secret, divided by spaces
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final

from topics.model.errors import InvalidRequest

PREFIX: Final = "whsec_"
SECRET_BYTES, SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 24, 64
_SHOWN_CHARS = 4


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_secret(secret: str) -> str:
    """A secret that the caller brings along."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True) if secret.startswith(PREFIX) else b""
    except ValueError:
        key = b""
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise InvalidRequest(
            f"secret must be {PREFIX} and the base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes; without one "
            "the server makes it",
            field="secret",
        )
    return secret


def masked(secret: str) -> str:
    """Enough to tell two secrets apart."""
    return f"{PREFIX}…{secret[-_SHOWN_CHARS:]}"


def signature(keys: Iterable[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The header of a message that is signed with each of the secrets."""
    content = b"%b.%d.%b" % (message_id.encode(), timestamp_s, body)
    return " ".join([_signed(key, content) for key in keys])


def _signed(key: str, content: bytes) -> str:
    digest = hmac.digest(base64.b64decode(key.removeprefix(PREFIX)), content, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"

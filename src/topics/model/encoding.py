"""Encodings: Python values as JSON text, and bytes as base64url.

NaN and infinities, which JSON does not have, are refused instead of becoming null.
"""

from __future__ import annotations

import math
from base64 import b64decode, urlsafe_b64encode
from typing import Any, cast

import msgspec

_encode = msgspec.json.Encoder().encode


class NotFinite(ValueError):
    """A number that JSON cannot write, and where it is."""


def encode(value: Any, name: str = "") -> bytes:
    """The value as JSON. `name` is what errors call it."""
    text = _encode(value)
    # The encoder writes null for such a number: without one there is nothing to look for.
    if b"null" in text:
        _check_finite(value, name)
    return text


def _check_finite(value: Any, name: str) -> None:
    # JSON text that is sent as it is (Raw) holds no such number.
    stack: list[tuple[str, Any]] = [(name, msgspec.to_builtins(value, enc_hook=_nothing))]
    while stack:
        path, item = stack.pop()
        match item:
            case float():
                if not math.isfinite(item):
                    shown = f"{path.lstrip('.')} is {item}" if path else f"{item}"
                    raise NotFinite(f"{shown}, which is not a JSON number; send null or a string instead")
            case dict():
                fields = cast("dict[Any, Any]", item)
                stack += [(f"{path}.{name}", fields[name]) for name in reversed(fields)]
            case list() | tuple():
                items = cast("list[Any] | tuple[Any, ...]", item)
                stack += [(f"{path}[{number}]", items[number]) for number in reversed(range(len(items)))]
            case _:
                pass


def _nothing(_: Any) -> None:
    return None


def to_base64url(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")


def from_base64url(text: str) -> bytes:
    """With or without padding; raises ValueError for anything else."""
    text = text.rstrip("=")
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)

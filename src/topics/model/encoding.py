"""Encodings: Python values as JSON text, and bytes as base64url.

NaN and infinities, which JSON does not have, are refused instead of becoming null; so is text with lone surrogates.
"""

from __future__ import annotations

import math
from base64 import b64decode, urlsafe_b64encode
from typing import Any, cast

import msgspec

_encode = msgspec.json.Encoder().encode


class NotJson(ValueError):
    """A value that JSON cannot represent, and where it is."""


def encode(value: Any, name: str = "") -> bytes:
    """The value as JSON. `name` is its name in errors."""
    try:
        text = _encode(value)
    except UnicodeEncodeError:
        _check(value, name)
        raise
    # The encoder writes null for such a number: without a null there is none to look for.
    if b"null" in text:
        _check(value, name)
    return text


def _check(value: Any, name: str) -> None:
    """Raises NotJson for the first number that is not finite, or text with a lone surrogate."""
    # Raw JSON text cannot contain such a number.
    stack: list[tuple[str, Any]] = [(name, msgspec.to_builtins(value, enc_hook=_nothing))]
    while stack:
        path, item = stack.pop()
        match item:
            case float():
                if not math.isfinite(item):
                    shown = f"{path.lstrip('.')} is {item}" if path else f"{item}"
                    raise NotJson(f"{shown}, which is not a JSON number; send null or a string instead")
            case str():
                if not _is_unicode(item):
                    raise _lone_surrogate(path)
            case dict():
                fields = cast("dict[Any, Any]", item)
                if not all(map(_is_unicode, fields)):
                    raise _lone_surrogate(f"a name in {path.lstrip('.')}" if path else "a name")
                stack += [(f"{path}.{name}", fields[name]) for name in reversed(fields)]
            case list() | tuple():
                items = cast("list[Any] | tuple[Any, ...]", item)
                stack += [(f"{path}[{number}]", items[number]) for number in reversed(range(len(items)))]
            case _:
                pass


def _nothing(_: Any) -> None:
    return None


def _is_unicode(text: Any) -> bool:
    try:
        return not isinstance(text, str) or text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _lone_surrogate(path: str) -> NotJson:
    shown = path.lstrip(".") or "the text"
    return NotJson(f"{shown} has a lone surrogate (\\ud800 to \\udfff without its other half); remove or replace it")


def to_base64url(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")


def from_base64url(text: str) -> bytes:
    """Accepts padding and its absence; raises ValueError for anything else."""
    text = text.rstrip("=")
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)

"""How deep JSON may be nested: one limit for requests, and a way to read older records that are deeper.

Small bodies are checked by counting their brackets. For larger ones the decoder does it: each level, also of what it
leaves undecoded, takes one step of the interpreter's recursion limit, so that limit is lowered while they are decoded.
A body that passes is shallow. A body that fails may only have met a deep stack of callers: it is decoded again with
more room, and its payloads are measured.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import add
from typing import Any, Final, TypeVar, cast

import msgspec

T = TypeVar("T")
B = TypeVar("B", bound="bytes | str")

# Levels of arrays and objects in `data`, and in `meta`. Version 0.1 accepted nearly 1,000.
NESTING_MAX: Final = 256
# Levels of the body around a payload.
ENVELOPE_MAX: Final = 8
# Fewer bytes cannot be nested deeper: each level takes two brackets.
SHALLOW_BYTES_MAX: Final = 2 * NESTING_MAX + 1
# Up to this size, counting costs less than changing the recursion limit twice.
COUNTED_BYTES_MAX: Final = 2_048
# Steps for decoding on top of the callers' frames: too few for a payload that is too deep, in any body.
SHALLOW_RECURSION: Final = NESTING_MAX + 2
# Enough for a stack of the usual depth plus the deepest record that was ever accepted.
DEEP_RECURSION: Final = 2_500

_NO_SIGN: Final = bytes(set(range(256)) - set(b'[]{}"'))
_BITS: Final = bytes.maketrans(b"[]{}", b"1010")


def _walk(byte: int) -> list[int]:
    """Eight brackets as bits: the depth after each, relative to the start."""
    return list(accumulate(1 if byte & bit else -1 for bit in (128, 64, 32, 16, 8, 4, 2, 1)))


# The effect of eight brackets at once: their total change of depth, and the maximum on the way. Signed bytes.
_LEADS: Final = bytes(_walk(byte)[-1] & 255 for byte in range(256))
_PEAKS: Final = bytes(max(_walk(byte)) & 255 for byte in range(256))
_NESTING: Final = (msgspec.Raw, msgspec.Struct, list, dict)
_changing = threading.Lock()


def is_too_deep(text: bytes, nesting_max: int = NESTING_MAX) -> bool:
    """Whether valid JSON is nested deeper than that. Nearly always, two counts show that it is not.

    Otherwise strings are removed (two adjacent quotes enclose nothing, or their contents join), brackets become bits,
    and tables process eight of them per step.
    """
    if text.count(b"[") + text.count(b"{") <= nesting_max:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = text.translate(None, _NO_SIGN).replace(b'""', b"")
    bits = b"".join(signs.split(b'"')[::2]).translate(_BITS)
    groups = -(-len(bits) // 8)
    packed = int(bits.ljust(8 * groups, b"0") or b"0", 2).to_bytes(max(1, groups))
    leads, peaks = (memoryview(packed.translate(table)).cast("b") for table in (_LEADS, _PEAKS))
    return max(map(add, accumulate(leads, initial=0), peaks)) > nesting_max


class TooDeep(Exception):
    """A payload is nested too deeply; `field` is its path."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


def decode_limited(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body whose payloads are nested at most as deep as allowed; raises TooDeep."""
    size = len(body)
    if size <= SHALLOW_BYTES_MAX or (size <= COUNTED_BYTES_MAX and body.count(b"[") + body.count(b"{") <= NESTING_MAX):
        return decoder.decode(body)
    try:
        decoded = _with_recursion(SHALLOW_RECURSION, decoder.decode, body)
    except RecursionError:
        pass
    else:
        if _IS_COUNTED:
            return decoded
    try:
        decoded = _with_recursion(max(sys.getrecursionlimit(), DEEP_RECURSION), decoder.decode, body)
    except RecursionError:
        raise TooDeep("") from None
    for field, payload in _payloads(decoded):
        if payload is None or is_too_deep(bytes(payload)):
            raise TooDeep(field)
    return decoded


def decode_deep(decode: Callable[[B], T], text: B) -> T:
    """Decode stored or received JSON of any depth."""
    try:
        return decode(text)
    except RecursionError:
        return _with_recursion(max(sys.getrecursionlimit(), DEEP_RECURSION), decode, text)


def _with_recursion(limit: int, decode: Callable[[B], T], text: B) -> T:
    """Decode under another recursion limit. It is global, so only the decoder runs meanwhile."""
    with _changing:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
        try:
            return decode(text)
        finally:
            sys.setrecursionlimit(usual)


def _payloads(decoded: object) -> Iterator[tuple[str, msgspec.Raw | None]]:
    """The undecoded parts of a body with their paths; None for a part that was decoded but is too deep."""
    ahead: list[tuple[tuple[str | int, ...], Any]] = [((), decoded)]
    while ahead:
        path, value = ahead.pop()
        if isinstance(value, msgspec.Raw):
            yield _place(path), value
            continue
        if len(path) > NESTING_MAX + ENVELOPE_MAX:
            yield _place(path[:1]), None
        parts: Iterable[tuple[str | int, Any]]
        if isinstance(value, dict):
            parts = cast("dict[str, Any]", value).items()
        elif isinstance(value, list):
            parts = enumerate(cast("list[Any]", value))
        else:
            parts = ((name, getattr(value, name)) for name in value.__struct_fields__)
        ahead += [((*path, name), part) for name, part in parts if isinstance(part, _NESTING)]


def _place(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _counts_recursion() -> bool:
    """Whether the decoder's steps count towards the recursion limit, as they do up to Python 3.11."""
    nested = b"[" * 2 * NESTING_MAX + b"]" * 2 * NESTING_MAX
    try:
        _with_recursion(SHALLOW_RECURSION, msgspec.json.Decoder(msgspec.Raw).decode, nested)
    except RecursionError:
        return True
    return False


_IS_COUNTED: Final = _counts_recursion()

"""Changed inputs: bytes flipped, cut out, doubled, put in, taken from another input; a few changes at a time."""

from __future__ import annotations

import random

PIECES = (
    b"\r\n",
    b"\n",
    b"\0",
    b":",
    b" ",
    b"%",
    b"=",
    b"~",
    b'"',
    b"{",
    b"[",
    b"\xff" * 4,
    b"\x7f",
    b"\x80",
    b"9" * 20,
)
CHANGES_MAX = 4


def changed(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(rng.randint(1, CHANGES_MAX)):
        at = rng.randint(0, len(result))
        length = min(rng.choice((1, 1, 2, 4, 8, 32, 512)), len(result) - at)
        match rng.randrange(7):
            case 0 if at < len(result):
                result[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(result):
                result[at] = rng.randrange(256)
            case 2:
                del result[at : at + length]
            case 3:
                result[at:at] = result[at : at + length]
            case 4:
                result[at:at] = rng.choice(PIECES)
            case 5:
                other = rng.choice(others)
                start = rng.randint(0, len(other))
                result[at : at + length] = other[start : start + rng.choice((1, 4, 32, 512))]
            case _:
                del result[at:]
    return bytes(result)

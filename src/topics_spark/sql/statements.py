"""SQL text split into statements at semicolons that are not in a string, a name or a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

# What hides a semicolon. One that is never closed extends to the end of the text: the prompt then asks for more.
_OPAQUE: Final = re.compile(
    r"""
      '(?:[^'\\]|\\.)*(?:'|\Z)
    | "(?:[^"\\]|\\.)*(?:"|\Z)
    | `[^`]*(?:`|\Z)
    | --[^\n]*
    | /\*.*?(?:\*/|\Z)
    | ;
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT: Final = ("--", "/*")


class Statement(NamedTuple):
    """One statement; `text` begins with enough blanks to keep lines and columns as in the original text."""

    text: str
    ended: bool
    # Where it begins in the original text.
    begin: int = 0


def statements(text: str) -> Iterator[Statement]:
    """The non-empty ones, in order. Only the last one may lack its semicolon."""
    begin = 0
    for found in _OPAQUE.finditer(text):
        if found[0] == ";":
            if not is_blank(text[begin : found.start()]):
                yield Statement(_placed(text, begin, found.start()), ended=True, begin=begin)
            begin = found.end()
    if not is_blank(text[begin:]):
        yield Statement(_placed(text, begin, len(text)), ended=False, begin=begin)


def is_blank(text: str) -> bool:
    """Nothing but space and comments."""
    return not _OPAQUE.sub(lambda found: "" if found[0].startswith(_COMMENT) else found[0], text).strip()


def rest(text: str) -> str:
    """The text after the last semicolon that ends a statement: the beginning of the next one."""
    ends = [found.end() for found in _OPAQUE.finditer(text) if found[0] == ";"]
    return text[ends[-1] :] if ends else text


def _placed(text: str, begin: int, end: int) -> str:
    lines = text.count("\n", 0, begin)
    column = begin - (text.rfind("\n", 0, begin) + 1)
    return "\n" * lines + " " * column + text[begin:end]

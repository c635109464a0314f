"""Spark's long error messages as one line: what is wrong, and where in the text."""

from __future__ import annotations

import re
from typing import Final

LINE_CHARS_MAX: Final = 600
_PLACES: Final = (
    # where the position is, and what must be added to its column to count from 1
    (re.compile(r"\(line (\d+), pos (\d+)\)"), 1),
    (re.compile(r"; line (\d+) pos (\d+)"), 1),
    (re.compile(r"== SQL (?:of \S+ \S+ )?\(line (\d+), position (\d+)\) =="), 0),
)
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
# Advice that does not apply to the views of a query.
_ADVICE: Final = re.compile(
    r"\s*(Verify the spelling|Search path:|If you did not qualify|If necessary set).*", re.DOTALL
)
_TRACEBACK: Final = "Traceback (most recent call last):"
# The cause of the last exception in a chain in Java, each with its frames.
_CAUSE: Final = re.compile(r"(?:\nCaused by|calling \S+\.\n): [\w.$]+: ")
_RAISED: Final = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w+): (.+)$")


def error_line(error: BaseException) -> str:
    """One line, without plans, stack traces and the classes of errors."""
    text = str(error).strip()
    place = _place(text)
    if _TRACEBACK in text:
        told = _raised(text)
    else:
        told = _CAUSE.split(text.split("\n\nJVM stacktrace:")[0])[-1].split("\n\tat ")[0].split("\n== SQL")[0]
        told = _STATE.split(_CLASS.sub("", told))[0]
        told = _ADVICE.sub("", told)
    line = " ".join(told.split()).rstrip(" .;") or type(error).__name__
    if len(line) > LINE_CHARS_MAX:
        line = f"{line[:LINE_CHARS_MAX]}…"
    return f"line {place[0]}, column {place[1]}: {line}" if place is not None else line


def _place(text: str) -> tuple[int, int] | None:
    for pattern, more in _PLACES:
        if found := pattern.search(text):
            return int(found[1]), int(found[2]) + more
    return None


def _raised(text: str) -> str:
    """The message of an exception in Python, which Spark quotes with all frames: the first line that is not a frame."""
    for line in text.rpartition(_TRACEBACK)[2].splitlines():
        if found := _RAISED.match(line):
            return found[2]
    return text.splitlines()[0]

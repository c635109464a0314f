"""The tests in the file of a definition: sample records, and what must come of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from topics.model.errors import InvalidRequest

TESTS = "tests"


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as in an append, and what the server would add to it."""

    data: Any = None
    tag: str | None = None
    node: str | None = None
    meta: Any = None
    seq: int | None = None
    ts: datetime | None = None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`records` by view; `rows` of the result, `rejected` payloads by topic, or the words with which it `fails`."""

    name: str
    records: dict[str, list[Sample]]
    rows: list[dict[str, Any]] | None = None
    rejected: dict[str, list[Any]] | None = None
    fails: str | None = None


def cases_of(given: Any, where: str) -> list[Case]:
    try:
        cases = msgspec.convert(given, list[Case])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where}: {TESTS}: {error}") from None
    for case in cases:
        if case.rows is None and case.rejected is None and case.fails is None:
            raise InvalidRequest(f"{where}: test {case.name!r} must expect rows, rejected or fails")
    return cases

"""Routers in a program's own database: the housekeeping thread forwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import topics
from topics.embedded import Database
from topics.model.errors import InvalidRequest, RouterNotFound


def copies(database: Database, dest: str, count: int) -> list[object]:
    """The payloads of the destination, as they come."""
    found: list[object] = []
    for record in database.tail(dest, 0, idle_s=20):
        found.append(record.data)  # type: ignore[union-attr]
        if len(found) == count:
            break
    return found


def test_copies_arrive_while_nobody_calls(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as database:
        config = database.route("a->b", "a", "b", guarantee="exactly_once")
        assert (config.source, config.guarantee) == ("a", "exactly_once")
        database.route("b->c", "b", "c")
        for number in range(10):
            database.append("a", number)
        assert copies(database, "c", 10) == list(range(10))
        assert database.router("a->b").forwarded_total == 10
    with topics.open(str(tmp_path)) as database:
        database.append("a", 10)
        assert copies(database, "c", 11) == list(range(11))
        assert database.unroute("a->b")
        assert not database.unroute("a->b")
        with pytest.raises(RouterNotFound):
            database.router("a->b")


def test_what_a_router_cannot_be_is_refused(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as database:
        wrong: tuple[dict[str, Any], ...] = (
            {"dest": "a"},
            {"dest": "b", "guarantee": "never"},
            {"dest": "b", "filter": ["x"]},
        )
        for fields in wrong:
            with pytest.raises(InvalidRequest):
                database.route("r", "a", **fields)

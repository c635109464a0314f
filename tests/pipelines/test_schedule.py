"""Cron lines: which times they name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from topics.model.errors import InvalidRequest
from topics_spark.pipelines.schedule import Schedule


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-11-16T10:00:30", "2026-11-16T10:01:00"),
        ("*/15 * * * *", "2026-11-16T10:46:00", "2026-11-16T11:00:00"),
        ("5/20 * * * *", "2026-11-16T10:26:00", "2026-11-16T10:45:00"),
        ("0 3 * * *", "2026-11-16T03:00:00", "2026-11-17T03:00:00"),
        ("30 6,18 * * *", "2026-11-16T07:00:00", "2026-11-16T18:30:00"),
        ("0 0 1 * *", "2026-12-31T23:59:00", "2027-01-01T00:00:00"),
        ("0 9 * * 1-5", "2026-11-20T09:00:00", "2026-11-23T09:00:00"),
        ("0 9 * * 7", "2026-11-16T00:00:00", "2026-11-22T09:00:00"),
        ("0 9 * * 0", "2026-11-16T00:00:00", "2026-11-22T09:00:00"),
        ("0 0 13 * 5", "2026-11-13T00:00:00", "2026-11-20T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
    ],
)
def test_the_next_time(cron: str, after: str, expected: str) -> None:
    found = Schedule(cron).next_after(datetime.fromisoformat(after).replace(tzinfo=UTC))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_a_day_that_never_comes() -> None:
    assert Schedule("0 0 31 2 *").next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize("cron", ["", "* * * *", "60 * * * *", "* * 0 * *", "a * * * *", "*/0 * * * *"])
def test_no_cron_line(cron: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Schedule(cron)
    assert refused.value.detail["field"] == "trigger.cron"

"""When schedules are due: time zones and their changes, seconds, intervals, and the newest times after a long stop."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.schedules.schedule import LATE_MS_MAX, MISSED_MAX, Schedule
from topics.model.errors import InvalidRequest
from topics.model.schedules.due_times import TIME_MS_MAX, Timing, check_cron, check_timezone, shortest_gap_ms
from topics.model.schedules.schedule_config import Missed, ScheduleConfig

DAY_MS = 86_400_000
NOON_MS = round(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp() * 1000)
CRONS = [
    "* * * * *",
    "*/7 * * * *",
    "0 3 * * *",
    "30 2 * * *",
    "0 0 29 2 *",
    "0 9 * * 1-5",
    "*/5 * * * * *",
    "0 0 L * *",
]
ZONES = ["UTC", "Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]
timings = st.one_of(
    st.builds(lambda cron, zone: Timing(cron, 0, 0, zone, 0), st.sampled_from(CRONS), st.sampled_from(ZONES)),
    st.builds(lambda every: Timing(None, every, 0, "UTC", NOON_MS), st.integers(100, DAY_MS)),
    st.builds(lambda at: Timing(None, 0, at, "UTC", 0), st.integers(NOON_MS, NOON_MS + DAY_MS)),
)


def cron(expression: str, zone: str = "UTC") -> Timing:
    return Timing(expression, 0, 0, zone, 0)


def local(ms: int, zone: str) -> str:
    return datetime.fromtimestamp(ms / 1000, ZoneInfo(zone)).isoformat()


@given(timing=timings, after_ms=st.integers(NOON_MS, NOON_MS + 3_000 * DAY_MS))
def test_the_next_time_is_later_and_there_is_none_in_between(timing: Timing, after_ms: int) -> None:
    due_ms = timing.next_after(after_ms)
    assert due_ms == 0 or due_ms > after_ms
    if due_ms and due_ms - after_ms > 2:
        assert timing.next_after((after_ms + due_ms) // 2) == due_ms
        assert timing.next_after(due_ms - 1) == due_ms


@given(timing=timings, after_ms=st.integers(NOON_MS, NOON_MS + 400 * DAY_MS), count=st.integers(1, 12))
def test_the_newest_times_are_the_last_of_all(timing: Timing, after_ms: int, count: int) -> None:
    times: list[int] = []
    at = timing.next_after(after_ms)
    while at and len(times) < 30:
        times.append(at)
        at = timing.next_after(at)
    if times:
        assert timing.newest_up_to(times[-1], times[0], count) == times[-count:]
        assert timing.newest_up_to(times[-1], times[-1], count) == times[-1:]


def test_a_daily_time_stays_where_the_clocks_on_the_wall_say_it_is() -> None:
    zone = "Europe/Vienna"
    at = round(datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp() * 1000)
    days: list[str] = []
    for _ in range(3):
        at = cron("30 8 * * *", zone).next_after(at)
        days.append(local(at, zone))
    assert days == ["2026-03-28T08:30:00+01:00", "2026-03-29T08:30:00+02:00", "2026-03-30T08:30:00+02:00"]


def test_an_hour_that_is_left_out_runs_after_it_and_one_that_is_repeated_runs_once() -> None:
    zone = "Europe/Vienna"
    timing = cron("30 2 * * *", zone)
    spring = timing.next_after(round(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp() * 1000))
    assert local(spring, zone) == "2026-03-29T03:00:00+02:00"
    autumn = timing.next_after(round(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp() * 1000))
    assert local(autumn, zone).startswith("2026-10-25T02:30:00")
    assert local(timing.next_after(autumn), zone).startswith("2026-10-26T02:30:00")


def test_seconds_come_first_in_an_expression_of_six_fields() -> None:
    assert cron("*/20 * * * * *").next_after(NOON_MS) == NOON_MS + 20_000
    assert cron("15 30 12 * * *").next_after(NOON_MS) == NOON_MS + 30 * 60_000 + 15_000


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "x * * * *",
        "0 0 31 2 *",
        "@daily",
        "a" * 300,
        "0 0 * 2 1#5",
    ],
)
def test_what_is_not_valid_or_never_due_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_cron(wrong, "UTC", NOON_MS)
    assert refused.value.detail["field"] == "cron"


@pytest.mark.parametrize("wrong", ["Mars/Base", "", "../../etc/passwd", "Europe", "x" * 300, "Europe/Vienna\0"])
def test_an_unknown_time_zone_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_timezone(wrong)
    assert refused.value.detail["field"] == "timezone"


# --- what a run handles ---


def due_schedule(missed: Missed, jitter_ms: int = 0, every_ms: int = 60_000) -> Schedule:
    config = ScheduleConfig("t", every_ms=every_ms, missed=missed, jitter_ms=jitter_ms)
    return Schedule(1, "s", config, NOON_MS, NOON_MS + every_ms)


def test_missed_times_are_handled_as_it_says() -> None:
    now_ms = NOON_MS + 5 * 60_000 + 30_000
    five = [NOON_MS + number * 60_000 for number in range(1, 6)]
    following = NOON_MS + 6 * 60_000
    assert due_schedule("all").due_by(now_ms) == (five, five[-1], following)
    assert due_schedule("once").due_by(now_ms) == (five[-1:], five[-1], following)
    assert due_schedule("skip").due_by(now_ms) == ([], five[-1], following)
    in_time_ms = five[-1] + LATE_MS_MAX
    assert due_schedule("skip").due_by(in_time_ms) == (five[-1:], five[-1], following)


@pytest.mark.parametrize("every_ms", [100, 1_000, 60_000])
def test_after_a_long_stop_the_newest_ones_are_appended_up_to_the_limit(every_ms: int) -> None:
    now_ms = NOON_MS + 300 * DAY_MS + 1
    times, last_ms, next_ms = due_schedule("all", every_ms=every_ms).due_by(now_ms)
    assert (len(times), times[-1], last_ms) == (MISSED_MAX, now_ms - 1, now_ms - 1)
    assert next_ms == last_ms + every_ms
    assert due_schedule("once", every_ms=every_ms).due_by(now_ms) == ([last_ms], last_ms, next_ms)


@given(
    every_ms=st.integers(100, 5_000),
    jitter_share=st.floats(0, 1),
    waits_ms=st.lists(st.integers(0, 8_000), min_size=1, max_size=30),
)
def test_with_jitter_every_time_is_handled_once_and_never_early(
    every_ms: int, jitter_share: float, waits_ms: list[int]
) -> None:
    schedule = due_schedule("all", int(every_ms * jitter_share), every_ms)
    now_ms, handled = NOON_MS, list[int]()
    for wait_ms in waits_ms:
        now_ms += wait_ms
        if schedule.next_ms and schedule.jittered(schedule.next_ms) <= now_ms:
            due = schedule.due_by(now_ms)
            assert all(schedule.jittered(time) <= now_ms for time in due.times)
            handled += due.times
            schedule.next_ms = due.next_ms
    assert handled == [NOON_MS + (number + 1) * every_ms for number in range(len(handled))]
    assert not handled or schedule.next_ms == handled[-1] + every_ms


@pytest.mark.parametrize(
    ("expression", "gap_ms"),
    [
        ("* * * * *", 60_000),
        ("*/5 * * * * *", 5_000),
        ("0-40/2,41 * * * *", 60_000),
        ("0 3 * * *", DAY_MS),
        ("0 9,10 1 1 *", 3_600_000),
        ("0 0 29 2 *", TIME_MS_MAX),
    ],
)
@given(now_ms=st.integers(NOON_MS, NOON_MS + 800 * DAY_MS))
def test_the_shortest_time_between_due_times_is_the_same_all_year(expression: str, gap_ms: int, now_ms: int) -> None:
    assert shortest_gap_ms(expression, now_ms) == gap_ms

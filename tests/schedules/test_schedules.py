"""Schedules by hand: records at due times, what changes and what does not, what stops them, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any

import pytest

from topics.client import Client, InvalidRequest, ScheduleNotFound, TopicNotFound
from topics.client.errors import RecordTooLarge, Throttled
from topics.engine.core.pending import PendingChange
from topics.engine.schedules import scheduler, verbs
from topics.engine.schedules.schedule import Schedule
from topics.engine.schedules.scheduler import SLICE_BYTES_MAX, Runs, Scheduler
from topics.model.errors import StorageError
from topics.model.requests.records import RecordRequest
from topics.model.settings import Settings
from topics.testing import Engine, engine

MINUTE_MS = 60_000


def due_times(client: Client, topic: str = "t") -> list[int]:
    return [record.meta["due_ts"] for record in client.diff(topic).records if record.meta is not None]


def test_a_record_is_appended_at_each_due_time(rig: Engine, client: Client) -> None:
    made = client.put_schedule("s", "t", every_ms=MINUTE_MS, data={"a": [1.10]}, tag="x")
    assert made.created
    begin_ms = rig.clock.now_ms()
    assert made.next_ts == begin_ms + MINUTE_MS
    rig.advance(MINUTE_MS - 1)
    assert client.diff("t").records == []
    for _ in range(3):
        rig.advance(MINUTE_MS)
    first, *_ = records = client.diff("t", include_tags=True).records
    assert (first.raw, first.tag) == (b'{"a":[1.1]}', "x")
    assert [record.meta for record in records] == [
        {"schedule": "s", "due_ts": begin_ms + number * MINUTE_MS} for number in (1, 2, 3)
    ]
    shown = client.schedule("s")
    assert (shown.last_due_ts, shown.last_seq, shown.runs_total) == (begin_ms + 3 * MINUTE_MS, 3, 3)
    assert (shown.last_ts, shown.last_error) == (records[-1].ts, None)
    assert shown.next_ts == begin_ms + 4 * MINUTE_MS


def test_a_cron_expression_is_due_in_its_time_zone(rig: Engine, client: Client) -> None:
    client.put_schedule("s", "t", cron="0 6 * * *", timezone="Asia/Kolkata")
    rig.advance(86_400_000)
    (due_ms,) = due_times(client)
    assert datetime.fromtimestamp(due_ms / 1000, UTC).strftime("%H:%M:%S") == "00:30:00"


def test_a_one_off_runs_once_and_stays_to_be_seen(rig: Engine, client: Client) -> None:
    at = datetime.fromtimestamp(rig.clock.now_ms() / 1000 + 90, UTC)
    client.put_schedule("s", "t", at=at)
    rig.advance(89_999)
    assert due_times(client) == []
    for _ in range(5):
        rig.advance(MINUTE_MS)
    assert due_times(client) == [round(at.timestamp() * 1000)]
    assert client.schedule("s").next_ts is None
    assert not client.put_schedule("s", "t", at=at).created, "a deployment repeats what it has put"
    with pytest.raises(InvalidRequest, match="at must be after"):
        client.put_schedule("s", "t", at=at, data=1)


def test_jobs_of_a_queue_are_scheduled_like_records_of_a_log(rig: Engine, client: Client) -> None:
    client.create("q", type="queue")
    client.put_schedule("s", "q", every_ms=MINUTE_MS, data="work")
    rig.advance(MINUTE_MS)
    (job,) = client.claim("q", max=9)
    assert job.data == "work"
    client.ack("q", [job])
    rig.advance(MINUTE_MS - 5_000)
    (job,) = client.claim("q", max=9, wait_ms=10_000)
    assert job.meta == {"schedule": "s", "due_ts": job.ts}, "a claim that waits gets it when it is due"


def test_a_put_without_a_change_moves_nothing(rig: Engine, client: Client) -> None:
    made = client.put_schedule("s", "t", every_ms=MINUTE_MS)
    rig.advance(30_000)
    again = client.put_schedule("s", "t", every_ms=MINUTE_MS)
    assert (again.created, again.next_ts) == (False, made.next_ts)
    other_data = client.put_schedule("s", "t", every_ms=MINUTE_MS, data=7)
    assert other_data.next_ts == made.next_ts
    other_time = client.put_schedule("s", "t", every_ms=2 * MINUTE_MS, data=7)
    assert other_time.next_ts == rig.clock.now_ms() + 2 * MINUTE_MS
    rig.advance(2 * MINUTE_MS)
    (record,) = client.diff("t").records
    assert record.data == 7


def test_a_paused_one_does_not_run_and_continues_in_step(rig: Engine, client: Client) -> None:
    made = client.put_schedule("s", "t", every_ms=MINUTE_MS, missed="all")
    assert made.next_ts is not None
    assert client.put_schedule("s", "t", every_ms=MINUTE_MS, missed="all", paused=True).next_ts is None
    rig.advance(10 * MINUTE_MS + 5_000)
    assert due_times(client) == []
    assert client.put_schedule("s", "t", every_ms=MINUTE_MS, missed="all").next_ts == made.next_ts + 10 * MINUTE_MS
    rig.advance(MINUTE_MS)
    assert due_times(client) == [made.next_ts + 10 * MINUTE_MS], "what was due during a pause was not missed"


@pytest.mark.parametrize(("missed", "runs"), [("skip", 0), ("once", 1), ("all", 5)])
def test_due_times_while_the_server_was_down(rig: Engine, client: Client, missed: Any, runs: int) -> None:
    made = client.put_schedule("s", "t", every_ms=MINUTE_MS, missed=missed)
    assert made.next_ts is not None
    rig._server.put_away()
    rig.clock.advance(5 * MINUTE_MS + 30_000)  # pyright: ignore[reportAttributeAccessIssue]
    rig._loop, rig._server = rig._opened()
    rig.advance(1)
    last_ms = made.next_ts + 4 * MINUTE_MS
    assert due_times(client) == [last_ms - number * MINUTE_MS for number in reversed(range(runs))]
    assert client.schedule("s").next_ts == last_ms + MINUTE_MS


def test_a_step_of_the_wall_clock_repeats_nothing(rig: Engine, client: Client) -> None:
    client.put_schedule("s", "t", every_ms=MINUTE_MS, missed="all")
    for _ in range(3):
        rig.advance(MINUTE_MS)
    rig.clock.step(-2 * MINUTE_MS)  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(4):
        rig.advance(MINUTE_MS)
    rig.clock.step(3 * MINUTE_MS)  # pyright: ignore[reportAttributeAccessIssue]
    rig.advance(MINUTE_MS)
    times = due_times(client)
    assert times == [times[0] + number * MINUTE_MS for number in range(len(times))]
    assert len(times) == 9


def test_one_is_run_at_once_without_a_change_of_its_times(rig: Engine, client: Client) -> None:
    made = client.put_schedule("s", "t", every_ms=MINUTE_MS, data=1, paused=True)
    assert client.run_schedule("s") == 1
    assert client.run_schedule("s") == 2
    shown = client.schedule("s")
    assert (shown.last_seq, shown.runs_total, shown.next_ts) == (2, 2, made.next_ts)


def test_a_bug_that_only_one_of_them_meets_stops_no_other(
    rig: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(schedule: Schedule, due_ms: int) -> RecordRequest:
        if schedule.name == "bad":
            raise ZeroDivisionError("a bug")
        return whole(schedule, due_ms)

    whole = scheduler._record
    monkeypatch.setattr(scheduler, "_record", record)
    client.create("other")
    for name, topic in (("a", "t"), ("bad", "t"), ("b", "t"), ("c", "other")):
        client.put_schedule(name, topic, every_ms=MINUTE_MS, missed="all")
    for _ in range(3):
        rig.advance(MINUTE_MS)
    assert [client.schedule(name).runs_total for name in ("a", "b", "c", "bad")] == [3, 3, 3, 0]
    assert client.schedule("bad").last_error == "internal: its record cannot be appended: a bug"
    monkeypatch.setattr(scheduler, "_record", whole)
    rig.advance(1_000)
    assert (client.schedule("bad").runs_total, client.schedule("bad").last_error) == (3, None)


def test_the_data_of_all_schedules_is_bounded(rig: Engine, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in memory: by the number of schedules alone, a hundred gigabytes were allowed."""
    monkeypatch.setattr(verbs, "DATA_BYTES_MAX", 100)
    client.put_schedule("a", "t", every_ms=MINUTE_MS, data="x" * 58)
    with pytest.raises(Throttled, match="the data of all schedules would have 101 bytes; at most 100 are allowed"):
        client.put_schedule("b", "t", every_ms=MINUTE_MS, data="x" * 39)
    client.put_schedule("b", "t", every_ms=MINUTE_MS, data="x" * 38)
    with pytest.raises(Throttled):
        client.put_schedule("a", "t", every_ms=MINUTE_MS, data="x" * 59)
    rig._server.put_away()
    rig._loop, rig._server = rig._opened()
    with pytest.raises(Throttled):
        client.put_schedule("c", "t", every_ms=MINUTE_MS, data=1)
    client.put_schedule("a", "t", every_ms=MINUTE_MS, data="x" * 57)
    client.put_schedule("c", "t", every_ms=MINUTE_MS, data=1)
    client.drop_schedule("b")
    client.put_schedule("d", "t", every_ms=MINUTE_MS, data="x" * 38)


def test_what_cannot_be_appended_stays_due_and_says_why(rig: Engine, client: Client) -> None:
    client.create("small", cap_records=1, discard="reject")
    made = client.put_schedule("s", "small", every_ms=MINUTE_MS, missed="all")
    client.put_schedule("other", "t", every_ms=MINUTE_MS)
    rig.advance(MINUTE_MS)
    rig.advance(MINUTE_MS)
    shown = client.schedule("s")
    assert shown.last_error is not None
    assert shown.last_error.startswith("topic_full: ")
    assert len(due_times(client)) == 2, "others are not held up"
    client.delete("small", before_seq=2)
    rig.advance(1_000)
    assert due_times(client, "small") == [made.next_ts and made.next_ts + MINUTE_MS]
    assert client.schedule("s").last_error is None


def miss(rig: Engine, ms: int) -> None:
    """The server is down for this time."""
    rig._server.put_away()
    rig.clock.advance(ms)  # pyright: ignore[reportAttributeAccessIssue]
    rig._loop, rig._server = rig._opened()
    rig.advance(1)


def test_more_missed_times_than_a_topic_has_room_for_come_as_there_is_room(rig: Engine, client: Client) -> None:
    client.create("small", cap_records=10, discard="reject")
    made = client.put_schedule("s", "small", every_ms=MINUTE_MS, missed="all")
    assert made.next_ts is not None
    miss(rig, 50 * MINUTE_MS)
    times: list[int] = []
    for _ in range(5):
        shown = client.schedule("s")
        assert (len(due_times(client, "small")), shown.runs_total) == (10, len(times) + 10)
        times += due_times(client, "small")
        client.delete("small", before_seq=len(times) + 1)
        rig.advance(2_000)
    assert times == [made.next_ts + number * MINUTE_MS for number in range(50)]
    assert (due_times(client, "small"), client.schedule("s").last_error) == ([], None)


def test_schedules_of_a_topic_that_is_nearly_full_run_as_far_as_there_is_room(rig: Engine, client: Client) -> None:
    client.create("small", cap_records=10, cap_bytes=10_000, discard="reject")
    at_ms = rig.clock.now_ms() + MINUTE_MS
    client.put_schedule("a", "small", at=datetime.fromtimestamp(at_ms / 1000, UTC), data="x" * 20_000)
    for number in range(20):
        client.put_schedule(f"s{number:02}", "small", at=datetime.fromtimestamp(at_ms / 1000, UTC), data=number)
    rig.advance(MINUTE_MS)
    assert len(due_times(client, "small")) == 10, "and the one that is too large is in nobody's way"
    client.delete("small", before_seq=11)
    rig.advance(2_000)
    assert len(due_times(client, "small")) == 10
    waiting = [schedule.schedule for schedule in client.schedules() if schedule.last_error is not None]
    assert waiting == ["a"]


def test_missed_records_that_are_large_are_not_appended_in_one_op(rig: Engine, client: Client) -> None:
    data = "x" * 100_000
    client.put_schedule("s", "t", every_ms=MINUTE_MS, missed="all", data=data)
    sizes: list[int] = []
    submit = Scheduler._submit

    def counted(scheduler: Scheduler, name: str, runs: Runs) -> PendingChange:
        sizes.append(sum(len(due.times) for _, due in runs) * len(data))
        return submit(scheduler, name, runs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_submit", counted)
        miss(rig, 20 * MINUTE_MS)
    assert sum(sizes) == 20 * len(data)
    assert max(sizes) <= SLICE_BYTES_MAX
    assert client.schedule("s").runs_total == 20


def test_one_whose_times_cannot_be_computed_does_not_stop_the_others(
    rig: Engine, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client.put_schedule("bad", "t", cron="* * * * *", timezone="Asia/Kolkata", data="bad")
    client.put_schedule("good", "t", every_ms=MINUTE_MS, data="good")

    def no_zone(name: str) -> tzinfo:
        raise KeyError(f"No time zone found with key {name}")

    with monkeypatch.context() as patch:
        patch.setattr("topics.model.schedules.due_times._zone", no_zone)
        for _ in range(3):
            rig.advance(MINUTE_MS)
    assert [record.data for record in client.diff("t").records] == ["good"] * 3
    assert "No time zone found" in str(client.schedule("bad").last_error)
    assert caplog.text.count("schedule bad cannot run") == 1
    rig.advance(2_000)
    assert [record.data for record in client.diff("t").records] == ["good"] * 3 + ["bad"]
    assert client.schedule("bad").last_error is None


def test_one_whose_topic_is_gone_waits_for_it(rig: Engine, client: Client) -> None:
    client.put_schedule("s", "t", every_ms=MINUTE_MS)
    client.drop("t")
    rig.advance(MINUTE_MS)
    assert client.schedule("s").last_error == 'topic_not_found: topic "t" does not exist'
    client.create("t")
    rig.advance(1_000)
    assert len(due_times(client)) == 1


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_of_durability_is_due_once_across_a_restart(rig: Engine, client: Client, durability: Any) -> None:
    client.create("d", durability=durability)
    client.put_schedule("s", "d", every_ms=MINUTE_MS, missed="all")
    before = list[int]()
    for number in range(4):
        rig.advance(MINUTE_MS)
        if number == 1:
            before = due_times(client, "d")
            rig.restart()
    after = due_times(client, "d")
    times = before + after if durability == "ephemeral" else after
    assert len(set(times)) == len(times) == 4
    assert client.schedule("s").runs_total == 4


def test_removed_ones_do_not_run(rig: Engine, client: Client) -> None:
    client.put_schedule("s", "t", every_ms=MINUTE_MS)
    assert client.drop_schedule("s")
    assert not client.drop_schedule("s")
    rig.advance(5 * MINUTE_MS)
    assert due_times(client) == []
    for verb in (client.schedule, client.run_schedule):
        with pytest.raises(ScheduleNotFound):
            verb("s")
    assert client.put_schedule("s", "t", every_ms=MINUTE_MS).runs_total == 0


def test_lists_are_by_name_and_by_topic(client: Client) -> None:
    client.create("u")
    for name in ("b", "a.2", "a.1"):
        client.put_schedule(name, "u" if name == "b" else "t", every_ms=MINUTE_MS, data=name)
    assert [schedule.schedule for schedule in client.schedules(page_size=1)] == ["a.1", "a.2", "b"]
    assert [schedule.data for schedule in client.schedules(prefix="a.")] == ["a.1", "a.2"]
    assert [schedule.schedule for schedule in client.schedules("u")] == ["b"]


def test_a_filter_looks_at_a_few_schedules_at_a_time(
    rig: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.engine.schedules.verbs.SCANNED_PER_STEP", 3)
    client.create("u")
    names = [f"s{number:02}" for number in range(20)]
    rare = names[::7]
    for name in names:
        client.put_schedule(name, "u" if name in rare else "t", every_ms=MINUTE_MS)
    for page_size in (1, 2, 3, 100):
        assert [schedule.schedule for schedule in client.schedules(page_size=page_size)] == names
        assert [schedule.schedule for schedule in client.schedules("u", page_size=page_size)] == rare
    assert list(client.schedules("nowhere")) == []
    steps = rig._server.store.schedules.list(wanted=lambda _name, _config: False)
    assert list(steps) == [None] * 6, "others have their turn in between"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "cron"),
        ({"cron": "* * * * *", "every_ms": 1_000}, "cron"),
        ({"every_ms": 99}, "every_ms"),
        ({"every_ms": 10**12}, "every_ms"),
        ({"at": 10**18}, "at"),
        ({"at": 1}, "at"),
        ({"every_ms": 1_000, "jitter_ms": 1_001}, "jitter_ms"),
        ({"cron": "0 0 1 * *", "jitter_ms": 86_400_001}, "jitter_ms"),
        ({"cron": "* * * * *", "jitter_ms": 60_001}, "jitter_ms"),
        ({"every_ms": 1_000, "timezone": "Nowhere"}, "timezone"),
        ({"every_ms": 1_000, "tag": "x" * 1_000}, "tag"),
        ({"every_ms": 1_000, "missed": "twice"}, "missed"),
    ],
)
def test_what_cannot_work_is_refused_by_its_field(client: Client, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.put_schedule("s", "t", **fields)
    assert refused.value.detail["field"] == field
    assert list(client.schedules()) == []


def test_jitter_does_not_reach_past_the_next_due_time(client: Client) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.put_schedule("s", "t", cron="*/5 * * * *", timezone="Europe/Vienna", jitter_ms=300_001)
    assert refused.value.detail == {"field": "jitter_ms", "max": 300_000}
    assert client.put_schedule("s", "t", cron="*/5 * * * *", timezone="Europe/Vienna", jitter_ms=300_000).created


@pytest.mark.parametrize("in_checkpoint", [False, True])
def test_a_longer_jitter_of_an_earlier_version_is_kept(rig: Engine, client: Client, in_checkpoint: bool) -> None:
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr("topics.model.schedules.schedule_config.shortest_gap_ms", lambda *_: 86_400_000)
        client.put_schedule("s", "t", cron="* * * * *", jitter_ms=600_000)
    if in_checkpoint:
        assert rig._server.store.checkpoint()
    rig.restart()
    rig.advance(3_600_000)
    shown = client.schedule("s")
    assert (shown.jitter_ms, shown.last_error) == (600_000, None)
    assert shown.runs_total > 0


def test_other_refusals(client: Client) -> None:
    with pytest.raises(TopicNotFound):
        client.put_schedule("s", "nowhere", every_ms=1_000)
    with pytest.raises(InvalidRequest, match="schedule must be"):
        client.put_schedule("no/slash", "t", every_ms=1_000)
    with pytest.raises(InvalidRequest, match="time zone"):
        client.put_schedule("s", "t", at=datetime(2030, 1, 1))  # noqa: DTZ001 - refused because of it
    with pytest.raises(RecordTooLarge):
        client.put_schedule("s", "t", every_ms=1_000, data="x" * (Settings().max_record_bytes - 100))


@pytest.fixture
def few() -> Iterator[Client]:
    with engine(settings=Settings(max_schedules=2)) as rig:
        yield rig.client()


def test_there_is_a_limit_to_their_number(few: Client) -> None:
    few.create("t")
    few.put_schedule("a", "t", every_ms=1_000)
    few.put_schedule("b", "t", every_ms=1_000)
    with pytest.raises(Throttled) as refused:
        few.put_schedule("c", "t", every_ms=1_000)
    assert refused.value.detail == {"limit": "max_schedules", "max": 2}
    few.put_schedule("b", "t", every_ms=2_000)
    few.drop_schedule("a")
    few.put_schedule("c", "t", every_ms=1_000)


def test_checkpoints_have_them(rig: Engine, client: Client) -> None:
    """A schedule that changes while a checkpoint runs is captured before."""
    for number in range(50):
        client.put_schedule(f"s{number:02}", "t", every_ms=1_000 + number, missed="all", data=number)
    store = rig._server.store
    for _ in range(3):
        rig.advance(10_000)
        assert store.checkpoint()
        client.drop_schedule("s07")
        client.put_schedule("s08", "t", every_ms=5_000)
    shown = list(client.schedules())
    records = len(client.diff("t", limit=1_000).records)
    rig.restart()
    assert list(client.schedules()) == shown
    assert len(client.diff("t", limit=1_000).records) == records


def test_a_run_that_was_asked_for_and_failed_does_not_take_away_the_due_times(rig: Engine, client: Client) -> None:
    client.create("small", cap_records=1, discard="reject")
    client.append("small", "in the way")
    made = client.put_schedule("s", "small", every_ms=MINUTE_MS)
    scheduler = rig._server.store.scheduler
    # What follows a write that fails after it was accepted.
    scheduler._failed([scheduler._table.by_name["s"]], StorageError("no space"))
    rig.advance(2_000)
    client.delete("small", before_seq=2)
    rig.advance(MINUTE_MS)
    assert due_times(client, "small") == [made.next_ts]

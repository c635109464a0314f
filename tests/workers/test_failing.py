"""Jobs that fail: how long they rest, when they are dead, what the log says of them, and how they are counted."""

from __future__ import annotations

import logging
import re

import pytest

from tests.workers.rig import eventually, running
from topics import testing
from topics.client import AsyncClient, Client
from topics.model.requests.config import RetryBackoff, TopicConfig
from topics.testing import Engine, run_until_idle
from topics.workers import App, Job, Reject, Retry
from topics.workers.failing import Failing
from topics.workers.job import RELEASE, JobOutcome, Release


@pytest.fixture
def failing_app() -> App:
    app = App()

    @app.worker("q")
    def handle(job: Job) -> None:
        raise ValueError("no such user")

    return app


def log_of(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What the worker says; on a busy machine, the server beside it has slow turns to report."""
    said = [entry for entry in caplog.records if entry.name == "topics.workers"]
    return [entry.getMessage() for entry in said if entry.levelno == level]


def test_a_job_rests_a_second_then_twice_as_long_each_time(
    failing_app: App, topics_engine: Engine, topics_client: Client
) -> None:
    topics_client.create("q", type="queue")
    topics_client.append("q", 1)
    assert run_until_idle(failing_app, topics_engine) == 1, "it is not delivered again at once"
    for rest_ms in (1_000, 2_000, 4_000, 8_000, 16_000):
        topics_engine.advance(rest_ms * 3 // 4 - 1)
        assert run_until_idle(failing_app, topics_engine) == 0
        topics_engine.advance(rest_ms // 4 + 1)
        assert run_until_idle(failing_app, topics_engine) == 1


def test_rests_end_at_five_minutes_and_are_spread() -> None:
    rests = {rest_of(TopicConfig(type="queue"), 30) for _ in range(200)}
    assert max(rests) <= 300_000
    assert min(rests) >= 225_000
    assert 5 < len(rests) <= 16, "spread, but few enough that jobs are given back together"


def rest_of(config: TopicConfig, deliveries: int, outcome: JobOutcome | None = None) -> int:
    delay_ms = settled(config, deliveries, outcome or JobOutcome(error="no")).delay_ms
    assert delay_ms is not None
    return delay_ms


def settled(config: TopicConfig, deliveries: int, outcome: JobOutcome) -> JobOutcome:
    failing = Failing(AsyncClient("http://127.0.0.1:1"), "q", testing.ManualClock())
    failing._config = config
    return failing.settled(outcome, deliveries)


def test_the_handler_s_delay_and_the_queue_s_backoff_come_first() -> None:
    backoff = TopicConfig(type="queue", retry_backoff=RetryBackoff())
    assert settled(backoff, 3, JobOutcome(error="no")).delay_ms is None, "the server decides"
    assert rest_of(backoff, 3, JobOutcome(delay_ms=0, error="no")) == 0
    assert rest_of(TopicConfig(type="queue"), 3, JobOutcome(delay_ms=7, error="no")) == 7


def test_a_backoff_that_is_set_while_the_app_runs_is_followed(topics_engine: Engine, topics_client: Client) -> None:
    app, deliveries = App(), list[int]()

    @app.worker("q")
    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries == 1:
            backoff = {"initial_ms": 60_000, "factor": 1, "max_ms": 60_000, "jitter": 0}
            topics_engine.client().edit("q", retry_backoff=backoff)
        raise Retry("not yet")

    topics_client.create("q", type="queue")
    topics_client.append("q", 1)
    run_until_idle(app, topics_engine)
    topics_engine.advance(59_999)
    assert run_until_idle(app, topics_engine) == 0
    topics_engine.advance(1)
    assert run_until_idle(app, topics_engine) == 1
    assert deliveries == [1, 2]


def test_a_job_is_dead_after_its_last_delivery_without_another_rest(
    failing_app: App, topics_engine: Engine, topics_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topics_client.create("q", type="queue", max_deliveries=2, dead_letter="q.dead")
    topics_client.append("q", {"user": 7}, tag="t")
    caplog.set_level(logging.INFO, "topics.workers")
    run_until_idle(failing_app, topics_engine)
    topics_engine.advance(1_000)
    run_until_idle(failing_app, topics_engine)
    (letter,) = topics_client.diff("q.dead").records
    assert (letter.data, letter.tag) == ({"user": 7}, "t")
    assert letter.meta == {
        "$dead_letter_from": "q",
        "$dead_letter_deliveries": 2,
        "$dead_letter_src_seq": 1,
        "$dead_letter_error": "ValueError: no such user",
    }
    (dead,) = log_of(caplog, logging.ERROR)
    assert dead == "q/1, delivery 2: the last delivery failed, moved to q.dead: ValueError: no such user"
    counts = failing_app.counts
    assert (counts.done, counts.retried, counts.dead, counts.rejected) == (0, 1, 1, 0)


@pytest.mark.parametrize("outcome", [RELEASE, JobOutcome(acked=True)])
def test_a_job_that_is_done_or_given_back_by_a_worker_that_stops_is_not_dead(outcome: JobOutcome) -> None:
    assert settled(TopicConfig(type="queue", max_deliveries=1, dead_letter="dead"), 1, outcome) == outcome


def test_a_job_may_go_back_without_having_failed(topics_engine: Engine, topics_client: Client) -> None:
    app, deliveries = App(), list[int]()

    @app.worker("q")
    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries == 1:
            raise Release("cannot be done here")

    topics_client.create("q", type="queue")
    topics_client.append("q", 1)
    assert run_until_idle(app, topics_engine) == 2
    assert (app.counts.done, app.counts.retried) == (1, 0)


def test_the_log_says_what_became_of_each_job_and_why(
    topics_engine: Engine, topics_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.worker("q")
    def handle(job: Job) -> None:
        match job.data:
            case "later":
                raise Retry("the mailbox is busy", delay=90)
            case "never":
                raise Reject("not an address")
            case "broken":
                raise KeyError("to")
            case _:
                return

    topics_client.create("q", type="queue", dead_letter="q.dead")
    topics_client.append_many("q", ["fine", "later", "never", "broken"])
    caplog.set_level(logging.INFO, "topics.workers")
    run_until_idle(app, topics_engine)
    assert log_of(caplog, logging.ERROR) == []
    assert log_of(caplog, logging.WARNING) == [
        "q/3, delivery 1: rejected, moved to q.dead: not an address",
        "q/4, delivery 1: KeyError: 'to'",
    ]
    assert log_of(caplog, logging.INFO)[0] == "q/2, delivery 1: will be delivered again in 90 s: the mailbox is busy"
    assert re.match(r"q/4, delivery 1: will be delivered again in (0\.\d+|1) s: ", log_of(caplog, logging.INFO)[1])
    assert "Traceback" in caplog.text, "of the unexpected one"
    counts = app.counts
    assert (counts.done, counts.retried, counts.dead, counts.rejected) == (1, 2, 0, 1)


def test_a_failed_job_waits_for_a_server_that_cannot_be_asked(
    url: str, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's configuration decides; while it is unknown, nothing is reported."""
    from topics.client.errors import ConnectionFailed

    app, asked = App(url), 0
    app.worker(queue)(lambda job: 1 // 0)
    look = Failing.look

    async def look_later(self: Failing) -> None:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ConnectionFailed("gone for a moment")
        await look(self)

    monkeypatch.setattr(Failing, "look", look_later)
    client.append(queue, 1)
    with running(app):
        eventually(lambda: app.counts.retried == 1)
    assert asked == 3


def test_the_http_library_is_quiet_at_info_unless_told_otherwise(
    url: str, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    http = logging.getLogger("httpx2")
    before = http.level
    app = App(url)
    app.worker(queue)(lambda job: None)
    client.append_many(queue, [1, 2])
    try:
        for level, is_told in ((logging.NOTSET, False), (logging.INFO, True)):
            http.setLevel(level)
            caplog.clear()
            done = app.counts.done
            with caplog.at_level(logging.INFO), running(app):
                eventually(lambda done=done: app.counts.done > done)
            assert any(entry.name == "httpx2" for entry in caplog.records) == is_told
            client.append(queue, 3)
    finally:
        http.setLevel(before)

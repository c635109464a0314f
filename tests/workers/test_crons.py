"""`@app.cron`: the schedule and its queue are made when the app starts, and each due time is one job."""

from __future__ import annotations

import pytest

from topics import testing
from topics.client import Client, InvalidRequest, NotAQueue
from topics.workers import App, Job

HOUR_MS = 3_600_000


def test_a_function_is_called_at_its_due_times() -> None:
    app, due = App(), list[int]()

    @app.cron("0 * * * *", missed="all", data="hourly")
    def clean_up(job: Job) -> None:
        assert job.data == "hourly"
        due.append(job.meta["due_ts"])

    with testing.engine() as engine:
        client = engine.client()
        assert testing.run_until_idle(app, engine) == 0
        assert client.schedule("clean-up").topic == "clean-up"
        engine.advance(2 * HOUR_MS)
        assert testing.run_until_idle(app, engine) == 2
        assert [time % HOUR_MS for time in due] == [0, 0]
        assert len(set(due)) == 2


def test_names_and_queues_may_be_given(topics_engine: testing.Engine, topics_client: Client) -> None:
    app = App()
    topics_client.create("jobs", type="queue", max_deliveries=2)
    app.cron("0 * * * *", name="every-hour", queue="jobs")(lambda job: None)
    with pytest.raises(ValueError, match="has a handler already"):
        app.cron("5 * * * *", name="every-hour", queue="other")(lambda job: None)
    testing.run_until_idle(app, topics_engine)
    assert topics_client.schedule("every-hour").topic == "jobs"
    assert topics_client.state("jobs").config.max_deliveries == 2


def test_a_paused_schedule_stays_paused_when_the_app_starts_again(
    topics_engine: testing.Engine, topics_client: Client
) -> None:
    app = App()
    app.cron("0 * * * *", name="nightly")(lambda job: None)
    testing.run_until_idle(app, topics_engine)
    made = topics_client.schedule("nightly")
    topics_client.put_schedule("nightly", made.topic, cron=made.cron, paused=True)
    testing.run_until_idle(app, topics_engine)
    assert topics_client.schedule("nightly").paused


def test_what_can_never_work_is_raised(topics_engine: testing.Engine, topics_client: Client) -> None:
    wrong, log = App(), App()
    wrong.cron("99 * * * *", name="wrong")(lambda job: None)
    with pytest.raises(InvalidRequest, match="bad minute"):
        testing.run_until_idle(wrong, topics_engine)
    topics_client.create("lines")
    log.cron("0 * * * *", name="lines")(lambda job: None)
    with pytest.raises(NotAQueue):
        testing.run_until_idle(log, topics_engine)

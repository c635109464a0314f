"""What the overview says of queues: dead jobs, jobs that wait, and whether anybody asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.queues.queue_rig import QueueRig
from topics.api.console.overview import UNCLAIMED_MS_MAX, WAITS_MS_MAX, Survey
from topics.engine.queues.part import queue_of


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[QueueRig]:
    with QueueRig(tmp_path / "data") as rig:
        rig.queue("mail", dead_letter="mail.dead", lease_ms=3_600_000)
        yield rig


def said(rig: QueueRig) -> list[str]:
    survey = Survey(rig.store, rig.clock.now_ms())
    for topic in list(rig.store.state.by_name.values()):
        survey.look_at(topic)
    return [finding.text for finding in survey.found]


def test_jobs_that_no_worker_asks_for_are_reported(rig: QueueRig) -> None:
    rig.jobs(3, "mail")
    rig.clock.advance(UNCLAIMED_MS_MAX)
    assert said(rig) == [], "a worker that polls has this long"
    rig.clock.advance(1)
    assert said(rig) == ["3 jobs of mail wait, and no worker has asked since the server started"]
    (seq,) = rig.claimed("w", "mail")
    rig.clock.advance(UNCLAIMED_MS_MAX + 1)
    assert said(rig) == [], "a worker that holds a job takes the next one when it is done"
    rig.nack("w", seq, name="mail", dead_letter=True, error="no")
    assert said(rig) == [
        "1 job of mail is dead",
        "2 jobs of mail wait, and no worker has asked for 15 seconds",
    ]
    rig.redrive("mail.dead")
    rig.clock.advance(180_000)
    assert said(rig) == ["3 jobs of mail wait, and no worker has asked for 3 minutes"]
    rig.pause(paused=True, name="mail")
    assert said(rig) == ["mail is paused while 3 jobs wait"]


def test_a_worker_that_waits_or_has_just_asked_will_take_the_jobs(rig: QueueRig) -> None:
    queue = queue_of(rig.store.state.by_name["mail"])
    assert queue is not None
    assert rig.claim("w", "mail") == [], "an empty queue"
    rig.jobs(1, "mail")
    rig.clock.advance(UNCLAIMED_MS_MAX + 1)
    assert said(rig) == ["1 job of mail waits, and no worker has asked for 15 seconds"]
    queue.claimers = 1
    assert said(rig) == []
    rig.clock.advance(WAITS_MS_MAX)
    assert said(rig) == ["A job of mail has been waiting for 5 minutes"], "workers are there, and too slow"

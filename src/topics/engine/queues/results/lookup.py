"""How one job stands, also for a time after its end, and how a group does; a caller may wait for a job to end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.engine.core.waiting.runner import News, Runner, Steps, attempt
from topics.engine.queues.due import JobPlace
from topics.engine.queues.lease_log import is_live
from topics.engine.queues.part import open_results, results_of
from topics.engine.queues.results.ended import EndedJob, EndState
from topics.model.errors import JobGroupNotFound, JobNotFound

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic
    from topics.engine.queues.queue import Queue
    from topics.engine.queues.verbs import Queues

WAIT_MS_MAX = 30_000
STATES: Final[Mapping[EndState, str]] = {EndState.DONE: "done", EndState.DEAD: "dead", EndState.CANCELLED: "cancelled"}
PLACES: Final[Mapping[JobPlace, str]] = {
    JobPlace.READY: "ready",
    JobPlace.LEASED: "leased",
    JobPlace.RESTING: "delayed",
}


class JobReport(NamedTuple):
    """Times are in ms since 1970. 0 and empty: unknown, or none; `progress` and `result` are JSON as it was sent."""

    seq: int
    state: str
    ts: int
    deliveries: int
    job_priority: int = 0
    worker: str = ""
    claimed_ts: int = 0
    deadline: int = 0
    due: int = 0
    ended_ts: int = 0
    forgotten_ts: int = 0
    error: str = ""
    progress: bytes = b""
    result: bytes = b""

    @property
    def over(self) -> bool:
        return self.ended_ts > 0


class GroupReport(NamedTuple):
    """How a job group stands; `notified_ts` and `notified_seq` are 0 until its record is written."""

    group: str
    size: int
    notify: str
    added: int
    done: int
    dead: int
    cancelled: int
    removed: int
    complete: bool
    opened_ts: int
    notified_ts: int
    notified_seq: int
    # why the record could not be written so far
    error: str


class JobLookup:
    def __init__(self, queues: Queues, runner: Runner) -> None:
        self._queues = queues
        self._runner = runner

    def job(self, name: str, seq: int) -> JobReport:
        """May raise Busy and ColdMiss."""
        topic, queue, _ = self._queues.find(name)
        if is_live(topic, seq):
            return self._live(topic, queue, seq)
        results, keep_ms = results_of(topic), topic.config.keep_results_ms or 0
        now_ms = topic.now(self._queues.wall_ms())
        ended = results.ended.find(seq, now_ms - keep_ms) if results is not None else None
        if ended is None:
            raise JobNotFound(name, seq)
        return _ended(ended, keep_ms)

    def waiting(self, name: str, seq: int, wait_ms: int) -> Steps[JobReport]:
        """The job at its end, or after `wait_ms`."""
        report = yield from attempt(partial(self.job, name, seq))
        if report.over or not wait_ms:
            return report
        topic, _, _ = yield from attempt(partial(self._queues.find, name))
        results = open_results(topic)
        news = News(self._runner.waiters, self._runner.deadlines, (), min(wait_ms, WAIT_MS_MAX))
        results.awaited.setdefault(seq, []).append(news)
        try:
            if is_live(topic, seq):
                yield news
        finally:
            news.close()
            waiting = results.awaited.get(seq, [])
            if news in waiting:
                waiting.remove(news)
                if not waiting:
                    del results.awaited[seq]
        return (yield from attempt(partial(self.job, name, seq)))

    def group(self, name: str, group: str) -> GroupReport:
        """May raise Busy."""
        topic, _, _ = self._queues.find(name)
        results = results_of(topic)
        found = results.groups.by_name.get(group) if results is not None else None
        if results is None or found is None or found.has_passed(topic.now(self._queues.wall_ms())):
            raise JobGroupNotFound(name, group)
        ended = found.ended
        return GroupReport(
            group,
            found.size,
            found.notify,
            found.added,
            ended[EndState.DONE],
            ended[EndState.DEAD],
            ended[EndState.CANCELLED],
            ended[EndState.REMOVED],
            found.ended_count >= found.size,
            found.since_ts,
            found.notified_ts,
            found.notified_seq,
            results.refusals.get(group, ""),
        )

    def _live(self, topic: Topic, queue: Queue, seq: int) -> JobReport:
        job, results = queue.jobs.get(seq), results_of(topic)
        ts, wall_ms = self._queues.appended_ts(topic, seq), self._queues.shown_ms
        progress = results.progress.get(seq, b"") if results is not None else b""
        if job is None:
            return JobReport(seq, "ready", ts, 0, progress=progress)
        # One that is leaving has been acked or moved; until that is published, its worker has it.
        place = JobPlace.LEASED if job.group is None else job.group.place
        report = JobReport(seq, PLACES[place], ts, job.deliveries, job.priority, error=job.error, progress=progress)
        if place is JobPlace.LEASED:
            claimed_ts = wall_ms(job.claimed_ms) if job.claimed_ms else 0
            return report._replace(worker=job.node, deadline=wall_ms(job.deadline), claimed_ts=claimed_ts)
        if place is JobPlace.RESTING and job.group is not None:
            return report._replace(due=wall_ms(job.group.due_ms))
        return report


def _ended(job: EndedJob, keep_ms: int) -> JobReport:
    return JobReport(
        job.seq,
        STATES[job.state],
        job.appended_ts,
        job.deliveries,
        worker=job.worker,
        claimed_ts=job.claimed_ts,
        ended_ts=job.ended_ts,
        forgotten_ts=job.ended_ts + keep_ms,
        error=job.error,
        progress=job.progress,
        result=job.result,
    )

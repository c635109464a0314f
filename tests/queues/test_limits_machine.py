"""Limits against a model: a claim gets exactly what they allow, so no job starves, and the jobs of a tag keep order."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.queues.queue_rig import QueueRig, request_of
from topics.engine.queues.due import JobPlace
from topics.engine.queues.limits import tag_limits
from topics.model.requests.jobs import CancelRequest
from topics.model.requests.records import ClaimRequest

TAGS = ("x", "y", "z", None)
LEASE_MS = 1_000
NO_LIMIT = 10**9
limits_of_jobs = st.sampled_from([None, 1, 1, 2, 5])


@dataclass
class ModelJob:
    seq: int
    tag: str | None
    priority: int = 0
    deadline: int = 0
    deliveries: int = 0
    due: int = 0
    # handed out or delayed before; None: a crash may have forgotten it
    reclaimed: bool | None = False


class Bucket:
    """Tokens that are counted, not a time."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_ms, self.burst = per_s / 1_000, burst
        self.tokens, self.at = float(burst), 0

    def left(self, now: int) -> int:
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_ms)
        self.at = now
        return math.floor(self.tokens + 1e-6)


class LimitsMachine(RuleBasedStateMachine):
    @initialize(
        durable=st.booleans(),
        in_flight=limits_of_jobs,
        per_tag=limits_of_jobs,
        rate=st.sampled_from([None, None, (2, 3), (10, 1)]),
        tag_rate=st.sampled_from([None, None, (4, 1), (1, 2)]),
        events=st.sampled_from([2, 5, 1_000]),
        visits=st.sampled_from([1, 3, 2_000]),
    )
    def start(
        self,
        durable: bool,
        in_flight: int | None,
        per_tag: int | None,
        rate: tuple[int, int] | None,
        tag_rate: tuple[int, int] | None,
        events: int,
        visits: int,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tag_limits, "VISITS_MAX", visits)
        self.root = Path(tempfile.mkdtemp(prefix="topics-limits-machine-"))
        self.rig = QueueRig(self.root / "data", segment_max_events=events, hot_retain_segments=0, wal_file_bytes=65536)
        per_s, burst = rate or (None, None)
        tag_per_s, tag_burst = tag_rate or (None, None)
        self.rig.queue(
            leases_durable=durable,
            lease_ms=LEASE_MS,
            max_in_flight=in_flight,
            max_in_flight_per_tag=per_tag,
            rate_per_s=per_s,
            burst=burst,
            rate_per_s_per_tag=tag_per_s,
            burst_per_tag=tag_burst,
        )
        self.durable, self.in_flight, self.per_tag, self.rate, self.tag_rate = (
            durable,
            in_flight,
            per_tag,
            rate,
            tag_rate,
        )
        self.jobs: dict[int, ModelJob] = {}
        self.fill_buckets()

    def fill_buckets(self) -> None:
        self.bucket = None if self.rate is None else Bucket(*self.rate)
        self.buckets = {} if self.tag_rate is None else {tag: Bucket(*self.tag_rate) for tag in TAGS if tag}

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.root)
            self.patch.undo()

    @property
    def now(self) -> int:
        return self.rig.clock.now_ms()

    def held(self, job: ModelJob) -> bool:
        return bool(job.deadline) and job.deadline >= self.now

    def delayed(self, job: ModelJob) -> bool:
        return not self.held(job) and job.due > self.now

    def ready(self, job: ModelJob) -> bool:
        return not self.held(job) and not self.delayed(job)

    def held_by_tag(self) -> Counter[str | None]:
        """In flight, or resting after a delivery."""
        return Counter(
            job.tag for job in self.jobs.values() if self.held(job) or (self.delayed(job) and job.deliveries)
        )

    def room(self, tag: str | None) -> int:
        """How many jobs of a tag may be handed out now."""
        if tag is None:
            return NO_LIMIT
        room = NO_LIMIT if self.per_tag is None else max(0, self.per_tag - self.held_by_tag()[tag])
        return min(room, self.buckets[tag].left(self.now)) if self.buckets else room

    # --- rules ---

    @rule(
        tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=8),
        delay=st.sampled_from([0, 0, 0, 300]),
        priorities=st.lists(st.sampled_from([0, 0, 0, 9]), min_size=1, max_size=3),
    )
    def produce(self, tags: list[str | None], delay: int, priorities: list[int]) -> None:
        records = [
            {"data": 0, "tag": tag, "delay_ms": delay, "job_priority": priority}
            for tag, priority in zip(tags, itertools.cycle(priorities), strict=False)
        ]
        change = self.rig.append("q", *records)
        for seq, record in enumerate(records, change.first_seq):
            due = self.now + delay if delay else 0
            self.jobs[seq] = ModelJob(seq, record["tag"], record["job_priority"], due=due, reclaimed=delay > 0)

    @rule(wanted=st.integers(1, 6))
    def claim(self, wanted: int) -> None:
        ready = [job for job in self.jobs.values() if self.ready(job)]
        by_tag = Counter(job.tag for job in ready)
        free = NO_LIMIT if self.in_flight is None else max(0, self.in_flight - sum(map(self.held, self.jobs.values())))
        if self.bucket is not None:
            free = min(free, self.bucket.left(self.now))
        allowed = sum(min(count, self.room(tag)) for tag, count in by_tag.items())
        seqs, limited_by = self.asked(wanted)
        assert len(seqs) == min(wanted, free, allowed), "exactly what the limits allow"
        taken = [self.jobs[seq] for seq in seqs]
        left = [job for job in ready if job not in taken]
        assert bool(limited_by) == (len(taken) < wanted and bool(left))
        for tag, count in Counter(job.tag for job in taken).items():
            assert count <= self.room(tag)
        for job, other in itertools.product(taken, left):
            if job.tag == other.tag:
                self.check_order(job, other)
        for job in taken:
            job.deliveries += 1
            job.deadline, job.due, job.reclaimed = self.now + LEASE_MS, 0, True
            if job.tag is not None and self.buckets:
                self.buckets[job.tag].tokens -= 1
            if self.bucket is not None:
                self.bucket.tokens -= 1

    def asked(self, wanted: int) -> tuple[list[int], str]:
        """The jobs, and what limits them.

        A claim that met many jobs, or found the next one on disk, gives what it has and no reason: a worker asks again.
        """
        seqs: list[int] = []
        # Each claim passes a job at least, also one that has ended meanwhile; there are never as many.
        for _ in range(1_000):
            request = request_of(ClaimRequest, node="w", max=wanted - len(seqs))
            _, grant = self.rig.drive(self.rig.store.claims.claim("q", request))
            self.rig.finish_all()
            assert grant.seqs == sorted(grant.seqs)
            seqs += grant.seqs
            assert grant.more == (len(seqs) < wanted and self.rig.counters().ready > 0)
            if grant.limited_by or not grant.more:
                return seqs, grant.limited_by
        raise AssertionError("nothing, for no reason")

    def check_order(self, taken: ModelJob, left: ModelJob) -> None:
        assert taken.priority >= left.priority
        if taken.priority == left.priority:
            assert not (left.reclaimed is True and taken.reclaimed is False)
            if taken.reclaimed is False and left.reclaimed is False:
                assert taken.seq < left.seq

    @precondition(lambda self: any(map(self.held, self.jobs.values())))
    @rule(data=st.data(), verb=st.sampled_from(["ack", "ack", "nack", "rest", "extend"]))
    def finish(self, data: st.DataObject, verb: str) -> None:
        held = [seq for seq, job in self.jobs.items() if self.held(job)]
        seqs = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=4, unique=True))
        match verb:
            case "ack":
                assert self.rig.ack("w", *seqs).jobs
            case "extend":
                self.rig.extend("w", *seqs, lease_ms=2_000)
            case _:
                self.rig.nack("w", *seqs, delay_ms=400 if verb == "rest" else 0)
        for seq in seqs:
            job = self.jobs[seq]
            if verb == "ack":
                del self.jobs[seq]
            elif verb == "extend":
                job.deadline = self.now + 2_000
            else:
                job.deadline, job.due = 0, self.now + 400 if verb == "rest" else 0

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.jobs)), min_size=1, max_size=3, unique=True))
        actions = self.rig.store.queues.job_actions
        request = request_of(CancelRequest, seqs=seqs)
        assert self.rig.drive(actions.cancel("q", request, lambda: None)).removed == len(seqs)
        for seq in seqs:
            del self.jobs[seq]

    @rule(tag=st.sampled_from("xyz"), share=st.floats(0, 1))
    def delete(self, tag: str, share: float) -> None:
        before = int(self.rig.look("q").head_seq * share) + 1
        for seq in [seq for seq, job in self.jobs.items() if job.tag == tag and seq < before]:
            del self.jobs[seq]
        self.rig.delete("q", match=tag, before_seq=before)

    @rule(in_flight=limits_of_jobs, per_tag=limits_of_jobs)
    def limit(self, in_flight: int | None, per_tag: int | None) -> None:
        self.rig.edit("q", max_in_flight=in_flight, max_in_flight_per_tag=per_tag)
        self.in_flight, self.per_tag = in_flight, per_tag

    @rule(ms=st.sampled_from([1, 100, 400, 1_001, 5_001]))
    def wait(self, ms: int) -> None:
        self.rig.clock.advance(ms)

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.rig.reopen()
        else:
            self.rig.crash()
        self.fill_buckets()
        if self.durable:
            return
        _, queue = self.rig.parts()
        for seq, job in self.jobs.items():
            known = queue.jobs.get(seq)
            if self.held(job):
                job.deadline = 0
            if not clean and job.reclaimed and self.ready(job):
                # A snapshot knows of no delay that is over.
                job.reclaimed = None
            if not clean and job.deliveries:
                # What was known of a delivery may be gone, and a rest with it.
                job.deliveries = 0 if known is None else known.deliveries
                group = None if known is None else known.group
                job.due = group.due_ms if group is not None and group.place is JobPlace.RESTING else 0
                job.reclaimed = None

    # --- what always holds ---

    @invariant()
    def counters_add_up(self) -> None:
        if hasattr(self, "jobs"):
            jobs = self.jobs.values()
            counts = sum(map(self.ready, jobs)), sum(map(self.held, jobs)), sum(map(self.delayed, jobs))
            assert self.rig.places() == counts
            assert self.rig.look("q").count == len(jobs)
            assert 0 <= self.rig.counters().held_back <= counts[0]

    @invariant()
    def nothing_is_kept_of_tags_without_jobs(self) -> None:
        if hasattr(self, "jobs") and not self.jobs and not self.buckets:
            limits: Any = self.rig.parts()[1].limits
            assert limits is None or not limits.tags._holders


TestLimits = LimitsMachine.TestCase
TestLimits.settings = settings(settings.default, max_examples=examples(40), stateful_step_count=40, deadline=None)


# --- jobs that are on disk: a claim gives what it has got when it comes to the first of them ---

NONE: dict[str, Any] = {"durable": False, "in_flight": None, "per_tag": None, "rate": None, "tag_rate": None}


@pytest.mark.parametrize(
    "start",
    [
        NONE | {"events": 2, "visits": 2_000},
        NONE | {"events": 1_000, "visits": 1, "durable": True, "rate": (2, 3), "per_tag": 2},
    ],
)
def test_the_rest_of_the_jobs_is_on_disk(start: dict[str, Any]) -> None:
    machine = LimitsMachine()
    machine.start(**start)
    try:
        machine.produce(tags=["x"], delay=0, priorities=[0])
        machine.produce(tags=["x", "x"], delay=0, priorities=[9])
        machine.checkpoint()
        machine.claim(wanted=3)
        machine.counters_add_up()
    finally:
        machine.teardown()


def test_a_delay_that_is_over_may_be_forgotten_in_a_crash() -> None:
    machine = LimitsMachine()
    machine.start(**NONE, events=2, visits=1)
    try:
        machine.produce(tags=["x"], delay=0, priorities=[0])
        machine.produce(tags=["x"], delay=300, priorities=[0])
        machine.wait(ms=400)
        machine.checkpoint()
        machine.restart(clean=False)
        machine.claim(wanted=1)
        machine.counters_add_up()
    finally:
        machine.teardown()


def test_no_limit_is_named_if_others_are_on_disk(tmp_path: Path) -> None:
    """Job 2 waits for its tag, which is no reason not to hand out job 3."""
    with QueueRig(tmp_path, segment_max_events=2, hot_retain_segments=0, wal_file_bytes=65536) as rig:
        rig.queue(max_in_flight_per_tag=1)
        rig.append("q", {"data": 0, "tag": "x"}, {"data": 0, "tag": "x"})
        assert rig.claimed(max=2) == [1]
        rig.append("q", {"data": 0, "tag": "y"}, {"data": 0, "tag": "y"})
        rig.append("q", {"data": 0, "tag": "z", "job_priority": 9})
        rig.checkpoint()
        answers = []
        for wanted in (3, 2, 1):
            _, grant = rig.drive(rig.store.claims.claim("q", request_of(ClaimRequest, node="w", max=wanted)))
            answers.append((grant.seqs, grant.more, grant.limited_by))
        assert answers == [([5], True, ""), ([3], True, "max_in_flight_per_tag"), ([], True, "max_in_flight_per_tag")]

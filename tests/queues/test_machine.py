"""Many workers against a model: no job is lost, none is held by two at once, the counters always add up."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.queues.queue_rig import QueueRig
from topics.engine.core.checkpoints import checkpoint
from topics.engine.queues import lease_log as leaselog
from topics.engine.queues.due import JobPlace

WORKERS = ("a", "b", "c")
LEASE_MS = 1_000


@dataclass
class ModelJob:
    seq: int
    data: int
    tag: str
    priority: int = 0
    # None: not leased
    node: str | None = None
    lease_id: str = ""
    deadline: int = 0
    deliveries: int = 0
    # not claimable before
    due: int = 0
    # deliveries and due time at the last clean stop
    kept: tuple[int, int] = (0, 0)
    # once handed out or delayed, it comes before those that never were; None: a restart may have forgotten
    before_fresh: bool | None = False


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        durable=st.booleans(),
        max_deliveries=st.sampled_from([0, 0, 2]),
        events=st.sampled_from([2, 5, 1000]),
        hot=st.sampled_from([0, 4]),
        durability=st.sampled_from(["disk", "disk", "fsync", "memory"]),
    )
    def start(self, durable: bool, max_deliveries: int, events: int, hot: int, durability: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="topics-queue-machine-"))
        self.rig = QueueRig(
            self.root / "data", segment_max_events=events, hot_retain_segments=hot, wal_file_bytes=65536
        )
        self.rig.queue(
            leases_durable=durable,
            max_deliveries=max_deliveries,
            dead_letter="dead",
            lease_ms=LEASE_MS,
            durability=durability,
        )
        self.rig.configure("dead")
        self.durable, self.max_deliveries = durable, max_deliveries
        self.jobs: dict[int, ModelJob] = {}
        self.done: set[int] = set()
        self.dead: list[int] = []
        self.values = itertools.count()
        self.paused = False

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.root)

    @property
    def now(self) -> int:
        return self.rig.clock.now_ms()

    def held(self, job: ModelJob) -> bool:
        return job.node is not None and job.deadline >= self.now

    def delayed(self, job: ModelJob) -> bool:
        return not self.held(job) and job.due > self.now

    def ready(self, job: ModelJob) -> bool:
        return not self.held(job) and not self.delayed(job)

    def exhausted(self, job: ModelJob) -> bool:
        return bool(self.max_deliveries) and job.deliveries >= self.max_deliveries

    # --- producing ---

    @rule(
        delays=st.lists(st.sampled_from([0, 0, 0, 300, 1500]), min_size=1, max_size=8),
        priorities=st.lists(st.sampled_from([0, 0, 1, 9]), min_size=1, max_size=3),
        tag=st.sampled_from("xyz"),
    )
    def produce(self, delays: list[int], priorities: list[int], tag: str) -> None:
        records = [
            {"data": next(self.values), "tag": tag, "delay_ms": delay, "job_priority": priority}
            for delay, priority in zip(delays, itertools.cycle(priorities), strict=False)
        ]
        change = self.rig.append("q", *records)
        for seq, record in enumerate(records, change.first_seq):
            delay = record["delay_ms"]
            due = self.now + delay if delay else 0
            self.jobs[seq] = ModelJob(seq, record["data"], tag, record["job_priority"], due=due)
            self.jobs[seq].before_fresh = delay > 0

    # --- working ---

    @rule(node=st.sampled_from(WORKERS), wanted=st.integers(1, 6), lease_ms=st.sampled_from([100, 1_000, 5_000]))
    def claim(self, node: str, wanted: int, lease_ms: int) -> None:
        ready = {seq for seq, job in self.jobs.items() if self.ready(job)}
        found = self.rig.claim(node, max=wanted, lease_ms=lease_ms)
        seqs = [job["$seq"] for job in found]
        moved = self.take_dead_letters()
        assert seqs == sorted(seqs)
        assert set(seqs) | set(moved) <= ready, "only jobs that are not leased"
        assert all(not self.exhausted(self.jobs[seq]) for seq in seqs)
        if self.paused:
            assert not found
            assert not moved
            return
        deliverable = {seq for seq in ready if not self.exhausted(self.jobs[seq])}
        assert len(seqs) == min(wanted, len(deliverable))
        if len(seqs) < wanted:
            assert set(moved) == ready - deliverable, "nothing is left that could not be delivered"
        left_out = [self.jobs[seq] for seq in deliverable - set(seqs)]
        taken = [self.jobs[seq] for seq in seqs]
        for left in left_out:
            assert all(job.priority >= left.priority for job in taken), "higher priorities come first"
            if left.before_fresh:
                equals = [job for job in taken if job.priority == left.priority]
                assert all(job.before_fresh is not False for job in equals), "of one priority, fresh ones come last"
        for answer in found:
            job = self.jobs[answer["$seq"]]
            job.deliveries += 1
            job.node, job.lease_id, job.deadline = node, answer["lease_id"], self.now + lease_ms
            job.due, job.before_fresh = 0, True
            assert (answer["deliveries"], answer["deadline"]) == (job.deliveries, job.deadline)
            assert (answer["data"], answer["$tag"]) == (job.data, job.tag)
        for seq in moved:
            del self.jobs[seq]

    def take_dead_letters(self) -> list[int]:
        records = self.rig.records("dead")
        new = [record["meta"]["$dead_letter_src_seq"] for record in records[len(self.dead) :]]
        for seq, record in zip(new, records[len(self.dead) :], strict=True):
            assert self.exhausted(self.jobs[seq])
            assert record["data"] == self.jobs[seq].data
        self.dead += new
        return new

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), node=st.sampled_from(WORKERS), fence=st.booleans(), verb=st.sampled_from("aaane"))
    def finish(self, data: st.DataObject, node: str, fence: bool, verb: str) -> None:
        seqs = data.draw(st.lists(st.sampled_from([*sorted(self.jobs), 10**6]), min_size=1, max_size=5, unique=True))
        more: dict[str, Any] = {}
        if fence:
            more["lease_ids"] = [self.jobs[seq].lease_id if seq in self.jobs else "lease_0" for seq in seqs]
        mine = [seq for seq in seqs if seq in self.jobs and self.held(self.jobs[seq]) and self.jobs[seq].node == node]
        match verb:
            case "a":
                held = self.rig.ack(node, *seqs, **more)
            case "n":
                delay = data.draw(st.sampled_from([0, 0, 400]))
                held = self.rig.nack(node, *seqs, delay_ms=delay, **more)
                for seq in mine:
                    self.jobs[seq].node = None
                    self.jobs[seq].due = self.now + delay
            case _:
                held = self.rig.extend(node, *seqs, lease_ms=2_000, **more)
                for seq in mine:
                    self.jobs[seq].deadline = self.now + 2_000
        assert (held.jobs, held.skipped) == (mine, [seq for seq in seqs if seq not in mine])
        if verb == "a":
            self.done.update(mine)
            for seq in mine:
                del self.jobs[seq]

    @rule(tag=st.sampled_from("xyz"), share=st.floats(0, 1))
    def delete(self, tag: str, share: float) -> None:
        before = int(self.rig.look("q").head_seq * share) + 1
        dying = [seq for seq, job in self.jobs.items() if job.tag == tag and seq < before]
        assert self.rig.delete("q", match=tag, before_seq=before) == len(dying)
        for seq in dying:
            del self.jobs[seq]

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.rig.pause(paused=paused)
        self.paused = paused

    # --- time and trouble ---

    @rule(ms=st.sampled_from([1, 99, 100, 101, 400, 1_001, 5_001]))
    def wait(self, ms: int) -> None:
        self.rig.clock.advance(ms)

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule(steps=st.integers(1, 40))
    def some_of_a_checkpoint(self, steps: int) -> None:
        """The rest of it comes later, or never; the jobs are captured in parts, some of them after other changes."""
        store: Any = self.rig.store
        store._checkpoint = store._checkpoint or store._checkpointer.steps()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "SLICE_MS", 0)
            patch.setattr(leaselog, "JOBS_AT_ONCE_MAX", 2)
            patch.setattr(leaselog, "JOBS_PER_PART", 2)
            for _ in range(steps):
                store.settle()
                store.step()
                if store._checkpoint is None:
                    return

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        delayed = {seq for seq, job in self.jobs.items() if not job.deliveries and self.delayed(job)}
        if clean:
            self.rig.reopen()
        else:
            self.rig.crash()
        if self.durable:
            return
        if clean:
            # Only leases go; how often a job was delivered and until when it rests is kept.
            for job in self.jobs.values():
                job.node, job.lease_id = None, ""
                job.kept = job.deliveries, job.due
            return
        _, queue = self.rig.parts()
        for seq, job in self.jobs.items():
            # A crash goes back to what the last clean stop has kept, or to nothing if a checkpoint came since.
            known = queue.jobs.get(seq)
            deliveries = known.deliveries if known is not None else 0
            assert deliveries in (0, job.kept[0])
            job.node, job.lease_id, job.deliveries = None, "", deliveries
            job.before_fresh = (
                True if seq in delayed else None if job.before_fresh or job.before_fresh is None else False
            )
            if seq not in delayed:
                resting = known is not None and known.group is not None and known.group.place is JobPlace.RESTING
                job.due = job.kept[1] if resting else 0

    @invariant()
    def counters_add_up(self) -> None:
        if not hasattr(self, "jobs"):
            return
        jobs = self.jobs.values()
        counts = sum(map(self.ready, jobs)), sum(map(self.held, jobs)), sum(map(self.delayed, jobs))
        assert self.rig.places() == counts
        state = self.rig.look("q")
        assert state.count == sum(counts) == len(self.jobs)
        assert self.rig.counters().dead_lettered == len(self.dead) == self.rig.look("dead").count

    @invariant()
    def no_job_is_lost(self) -> None:
        if not hasattr(self, "jobs"):
            return
        found = {record["$seq"]: record["data"] for record in self.rig.records("q")}
        assert found == {seq: job.data for seq, job in self.jobs.items()}

    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        if not hasattr(self, "jobs"):
            return
        topic, queue = self.rig.parts()
        held = {seq: (job.node, job.deadline) for seq, job in queue.leases_from(topic, 0, 0, 1000)}
        assert held == {seq: (job.node, job.deadline) for seq, job in self.jobs.items() if self.held(job)}


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(settings.default, max_examples=examples(40), stateful_step_count=40, deadline=None)

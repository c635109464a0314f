"""Reservations belong to a change: whatever was submitted, failed, synced or published, none is left."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.examples import examples
from tests.faults import FaultyDisk
from tests.multi_append.rig import MultiRig
from topics.engine.core.commit_log import CommitLog
from topics.engine.core.in_flight import InFlight
from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.queues.claims import Claim
from topics.model.errors import TopicsError
from topics.model.requests.config import ConfigPatch
from topics.model.requests.records import AckRequest, NackRequest, append_decoder, decode_body
from topics.model.requests.routers import RouterRequest
from topics.model.requests.transactions import CommitRequest, StageRequest

CLASSES = {"a": "disk", "f": "fsync", "e": "ephemeral", "m": "memory"}
topics = st.sampled_from(["a", "f", "e", "m", "copy", "dead", "q", "new-1", "new-2"])
sizes = st.integers(1, 3)


class InFlightMachine(RuleBasedStateMachine):
    """Verbs are decided and not waited for; the log fails as it likes; in the end nothing may be reserved."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory()
        self.disk = FaultyDisk()
        self.rig = MultiRig(Path(self.root.name) / "data", disk=self.disk, wal_file_bytes=1 << 16)
        self.version = 0

    @initialize()
    def begin(self) -> None:
        for name, durability in CLASSES.items():
            self.rig.configure(name, durability=durability)
        self.rig.configure("q", type="queue", durability="fsync", max_deliveries=1, dead_letter="dead")
        request = RouterRequest(source="a", dest="copy", create_dest=True)
        self.rig.finish(self.rig._run(lambda: self.rig.store.routers.put("r", request)))

    def submit(self, verb: Callable[[], PendingChange]) -> PendingChange | None:
        try:
            return verb()
        except (Busy, ColdMiss, TopicsError):
            return None

    # --- verbs ---

    @rule(topic=topics, count=sizes, key=st.none() | st.sampled_from("kl"))
    def append(self, topic: str, count: int, key: str | None) -> None:
        body = msgspec.json.encode({"records": [{"data": 1}] * count, "idempotency_key": key})
        self.submit(lambda: self.rig.engine.append(topic, decode_body(append_decoder, body)))

    @rule(count=sizes)
    def append_unique(self, count: int) -> None:
        body = msgspec.json.encode(
            {"records": [{"data": 1, "unique_key": str(n), "delay_ms": n} for n in range(count)]}
        )
        self.submit(lambda: self.rig.engine.append("q", decode_body(append_decoder, body)))

    @rule(names=st.sets(st.sampled_from(["a", "f", "m", "new-1", "new-2", "new-3"]), min_size=1), count=sizes)
    def append_to_several(self, names: set[str], count: int) -> None:
        request = self.rig.request({name: [1] * count for name in names}, idempotency_key="k")
        self.submit(lambda: self.rig.store.multi_append.append(request))

    @rule(topic=topics)
    def drop(self, topic: str) -> None:
        if topic not in ("q", "a"):
            self.submit(lambda: self.rig.engine.drop(topic))

    @rule(cap=st.sampled_from([0, 5]))
    def configure(self, cap: int) -> None:
        request = msgspec.convert({"cap_records": cap}, ConfigPatch)
        self.submit(lambda: self.rig.engine.configuration.edit("f", request))

    @rule(ack=st.booleans())
    def work(self, *, ack: bool) -> None:
        def claim() -> PendingChange:
            queues = self.rig.store.queues
            topic, queue, now = queues.find("q")
            grant = queues.serve(topic, queue, [Claim("w", 2, 30_000)], now)[0]
            change = grant.change or settled(topic.id, None)
            change.result = grant
            return change

        claimed = self.submit(claim)
        if claimed is None or not claimed.result.seqs:
            return
        seqs = claimed.result.seqs
        if ack:
            self.submit(lambda: self.rig.store.queues.ack("q", AckRequest(node="w", seqs=seqs)))
        else:
            nack = NackRequest(node="w", seqs=seqs, dead_letter=True)
            self.submit(lambda: self.rig.store.queues.nack("q", nack))

    @rule(stage=st.sampled_from("st"), topic=st.sampled_from(["a", "f", "new-1"]), count=sizes)
    def stage(self, stage: str, topic: str, count: int) -> None:
        body = msgspec.json.encode({"stage": stage, "records": [{"data": 1}] * count, "topic": topic})
        request = msgspec.json.decode(body, type=StageRequest)
        self.submit(lambda: self.rig.store.transactions.stage("app", self.version, request))

    @rule(stages=st.sets(st.sampled_from("st")).map(sorted))
    def commit(self, stages: list[str]) -> None:
        request = CommitRequest(stages)
        if self.submit(lambda: self.rig.store.transactions.commit("app", self.version, request)) is not None:
            self.version += 1

    @rule()
    def take_token(self) -> None:
        self.submit(lambda: self.rig.store.transactions.take_fence("other"))

    # --- the log ---

    @rule(keep_bytes=st.none() | st.integers(0, 400))
    def fail_next_write(self, keep_bytes: int | None) -> None:
        self.disk.fail("pwritev", path=".log", keep_bytes=keep_bytes)

    @rule()
    def flush(self) -> None:
        self.rig.store.commit_log.flush()

    @rule()
    def settle(self) -> None:
        self.rig.store.settle()

    @rule()
    def step(self) -> None:
        self.rig.work()
        self.rig.store.forwarder.step()

    # --- what must hold ---

    @invariant()
    def what_is_pending_is_what_unpublished_ops_add(self) -> None:
        log, state = self.rig.store.commit_log, self.rig.store.state
        unpublished = [*log._unsynced, *log._unwritten]
        added = [
            (change, addition)
            for change in unpublished
            for addition in state.ops.kinds[type(change.op)].adds(change.op)
        ]
        assert log.in_flight.bytes == sum(addition.growth for _, addition in added)
        known = Counter[int]()
        for _, addition in added:
            known[addition.topic_id] += addition.seqs
        for topic in state.by_id.values():
            # The first batch of a topic has no topic to be counted for.
            assert topic.pending_seqs in (known[topic.id], 0 if topic.head_seq == 0 else known[topic.id])
            assert 0 <= topic.pending_count <= topic.pending_seqs
            assert topic.pending_bytes >= 0
        assert all(not change.done for change in log.in_flight.busy.values())

    def teardown(self) -> None:
        rig = self.rig
        self.disk.heal()
        try:
            rig.wait_until(self.idle)
            in_flight = rig.store.commit_log.in_flight
            assert (in_flight.busy, in_flight.members) == ({}, {})
            assert (in_flight.bytes, in_flight.topics) == (0, 0)
            for topic in rig.store.state.by_id.values():
                assert (topic.pending_seqs, topic.pending_count, topic.pending_bytes) == (0, 0, 0)
                assert topic.assigned_seq == topic.head_seq
            for name in ("a", "f"):
                head_seq = rig.store.state.by_name[name].head_seq if name in rig.store.state.by_name else 0
                assert rig.append(name, 1).first_seq == head_seq + 1
        finally:
            rig.abandon()
            self.root.cleanup()

    def idle(self) -> bool:
        store = self.rig.store
        # A commit whose sync has failed looks again by the clock.
        self.rig.clock.advance(10)
        self.rig.work()
        store.forwarder.step()
        store.commit_log.flush()
        return not store.commit_log.depth and not any(kind == "app" for kind, _ in store.engine.in_flight.busy)


InFlightMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
test_nothing_stays_reserved = InFlightMachine.TestCase


# --- the table ---


def change() -> PendingChange:
    return PendingChange(None, 1, gated=False)


def test_busy_names_the_change_and_ends_with_it() -> None:
    in_flight, one = InFlight(), change()
    in_flight.hold(one, ("topic", "t"), ("writers", 1))
    with pytest.raises(Busy) as busy:
        in_flight.check(("topic", "other"), ("writers", 1))
    assert busy.value.change is one
    one.finish()
    in_flight.check(("topic", "t"), ("writers", 1))
    assert in_flight.busy == {}


def test_members_are_held_in_bulk_and_each_change_lets_go_of_its_own() -> None:
    in_flight, one, two = InFlight(), change(), change()
    key = ("unique keys", 1)
    in_flight.hold_members(one, key, [b"a", b"b"])
    in_flight.hold_members(two, key, [b"c"])
    in_flight.check_members(key, [b"d"])
    in_flight.check_members(("unique keys", 2), [b"a"])
    for member, holder in ((b"a", one), (b"c", two)):
        with pytest.raises(Busy) as busy:
            in_flight.check_members(key, [b"d", member])
        assert busy.value.change is holder
    one.finish()
    in_flight.check_members(key, [b"a", b"b"])
    with pytest.raises(Busy):
        in_flight.check_members(key, [b"c"])
    two.finish()
    assert in_flight.members == {}


def test_what_a_later_change_took_over_goes_back_if_that_is_forgotten_first() -> None:
    in_flight, first, second, third = InFlight(), change(), change(), change()
    for one in (first, second, third):
        in_flight.hold(one, ("topic", "t"))
    in_flight.let_go(third)
    assert in_flight.with_what(("topic", "t")) is second
    first.finish()
    assert in_flight.with_what(("topic", "t")) is second
    second.finish()
    assert in_flight.busy == {}


def test_a_change_that_is_done_holds_nothing() -> None:
    in_flight, one = InFlight(), change()
    one.finish()
    in_flight.hold(one, ("topic", "t"))
    assert in_flight.busy == {}


def test_a_change_is_released_before_those_that_wait_for_it_go_on() -> None:
    in_flight, one = InFlight(), change()
    in_flight.hold(one, ("topic", "t"))
    one.then(lambda _: in_flight.check(("topic", "t")))
    one.finish()


def test_what_is_published_of_a_topic_that_is_gone_changes_nothing(rig: MultiRig) -> None:
    rig.append("t", 1)
    for published in (CommitLog.configured, CommitLog.left, CommitLog.arrived, CommitLog.landed):
        published(rig.store.commit_log, 999)
    assert (rig.look("t").count, rig.store.state.count) == (1, 1)

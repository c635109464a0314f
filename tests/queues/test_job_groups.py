"""Job groups: one record when `size` jobs have ended, however they ended, and one only, whenever the server dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.rig import Outcome
from tests.examples import examples
from tests.faults import WAIT_S_MAX, FaultyDisk
from tests.queues.conftest import OpenRig
from tests.queues.queue_rig import QueueRig
from tests.queues.test_results import cancel
from topics.engine.queues.part import results_of
from topics.engine.queues.results import job_groups, notifier
from topics.engine.queues.results.job_groups import KEPT_MS
from topics.engine.queues.results.lookup import GroupReport
from topics.model.errors import InvalidRequest, JobGroupConflict, JobGroupNotFound, Throttled
from topics.model.requests.jobs import CancelRequest
from topics.model.requests.records import append_decoder, decode_body

COUNTS = ("done", "dead", "cancelled", "removed")


def add(rig: QueueRig, count: int, size: int, group: str = "g", notify: str = "ends", **fields: Any) -> list[int]:
    record = {"data": 0, "group": {"name": group, "size": size, "notify": notify}, **fields}
    change = rig.append("q", *[record] * count)
    return list(range(change.first_seq, change.last_seq + 1))


def settle(rig: QueueRig) -> None:
    """Everything that can happen now happens."""
    rig.store.flush()
    rig.wait_until(lambda: (rig.work(), rig.store.flush(), rig.store.is_quiet)[-1])


def ends(rig: QueueRig, name: str = "ends") -> list[dict[str, Any]]:
    """The payloads of the records about groups."""
    settle(rig)
    return [record["data"] for record in rig.records(name)] if name in rig.store.state.by_name else []


def group(rig: QueueRig, name: str = "g") -> GroupReport:
    return rig.store.job_lookup.group("q", name)


def test_a_cap_holds_for_the_records_about_groups_as_soon_as_they_are_there(rig: QueueRig) -> None:
    rig.queue()
    rig.configure("ends", cap_records=1)
    for name in ("g", "h"):
        add(rig, 1, size=1, group=name)
        rig.ack("w", *rig.claimed())
        settle(rig)
        assert rig.look("ends").count == 1
    assert rig.look("ends").head_seq == 2


def test_one_record_counts_how_the_jobs_ended(rig: QueueRig) -> None:
    rig.queue(dead_letter="dead")
    add(rig, 3, size=5)
    add(rig, 2, size=5)
    rig.append("q", "of no group")
    assert rig.claimed(max=3) == [1, 2, 3]
    rig.ack("w", 1, 2)
    rig.nack("w", 3, dead_letter=True)
    cancel(rig, 4)
    assert ends(rig) == []
    shown = group(rig)
    assert (shown.added, shown.done, shown.dead, shown.cancelled, shown.removed) == (5, 2, 1, 1, 0)
    assert (shown.complete, shown.notified_ts) == (False, 0)
    rig.delete("q", before_seq=6)
    assert ends(rig) == [{"queue": "q", "group": "g", "size": 5, "done": 2, "dead": 1, "cancelled": 1, "removed": 1}]
    shown = group(rig)
    assert (shown.complete, shown.notified_ts, shown.notified_seq) == (True, rig.clock.now_ms(), 1)
    assert rig.places() == (1, 0, 0)


def test_jobs_that_expire_have_ended(rig: QueueRig) -> None:
    rig.queue(ttl_ms=1_000)
    add(rig, 2, size=2)
    rig.clock.advance(1_001)
    assert rig.claimed() == []
    assert [end["removed"] for end in ends(rig)] == [2]


def test_the_record_may_be_a_job_of_the_same_queue(rig: QueueRig) -> None:
    rig.queue()
    add(rig, 2, size=2, notify="q")
    rig.ack("w", *rig.claimed(max=2))
    settle(rig)
    assert [job["data"]["done"] for job in rig.claim()] == [2]


RESTARTS: list[Callable[[QueueRig], object]] = [
    QueueRig.reopen,
    QueueRig.crash,
    lambda rig: (rig.checkpoint(), rig.crash()),
]


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_restart_neither_loses_nor_repeats_the_record(
    rig: QueueRig, durability: str, restart: Callable[[QueueRig], object]
) -> None:
    rig.queue(durability=durability)
    add(rig, 4, size=4)
    restart(rig)
    rig.ack("w", *rig.claimed(max=3))
    restart(rig)
    assert ends(rig) == []
    rig.ack("w", *rig.claimed())
    # Acked, and the record is not written yet.
    restart(rig)
    assert [end["done"] for end in ends(rig)] == [4]
    restart(rig)
    assert len(ends(rig)) == 1
    assert group(rig).notified_seq == 1


@pytest.mark.parametrize("queue", ["ephemeral", "disk"])
@pytest.mark.parametrize("notify", ["ephemeral", "disk"])
def test_what_lasts_of_both_halves_lasts(rig: QueueRig, queue: str, notify: str) -> None:
    rig.queue(durability=queue)
    rig.configure("ends", durability=notify)
    add(rig, 1, size=1)
    rig.ack("w", *rig.claimed())
    assert len(ends(rig)) == 1
    rig.crash()
    assert len(ends(rig)) == (notify == "disk")
    if queue == "disk":
        assert group(rig).complete


def test_a_topic_that_refuses_the_record_gets_it_later(rig: QueueRig) -> None:
    rig.queue()
    rig.configure("ends", cap_records=1, discard="reject")
    rig.append("ends", "full")
    add(rig, 1, size=1)
    rig.ack("w", *rig.claimed())
    assert len(ends(rig)) == 1
    assert "cap_records" in group(rig).error
    rig.delete("ends", before_seq=2)
    rig.clock.advance(1_001)
    assert [end["done"] for end in ends(rig)] == [1]
    assert group(rig).error == ""


def test_a_missing_topic_is_created_like_the_queue_unless_it_says_not_to(rig: QueueRig) -> None:
    rig.queue(durability="fsync")
    add(rig, 1, size=1)
    rig.ack("w", *rig.claimed())
    assert len(ends(rig)) == 1
    assert rig.look("ends").config.durability == "fsync"
    rig.queue(auto_create=False)
    add(rig, 1, size=1, group="h", notify="absent")
    rig.ack("w", *rig.claimed())
    assert ends(rig, "absent") == []
    assert "absent" in group(rig, "h").error
    rig.configure("absent")
    rig.clock.advance(1_001)
    assert len(ends(rig, "absent")) == 1


def test_a_group_means_one_size_and_one_topic_and_takes_no_more_jobs_than_that(rig: QueueRig) -> None:
    rig.queue()
    add(rig, 2, size=3)
    with pytest.raises(JobGroupConflict, match="size 3"):
        add(rig, 1, size=4)
    with pytest.raises(JobGroupConflict, match="ends"):
        add(rig, 1, size=3, notify="elsewhere")
    with pytest.raises(JobGroupConflict, match="2 of its 3"):
        add(rig, 2, size=3)
    with pytest.raises(InvalidRequest, match="something else"):
        rig.append("q", *[{"data": 0, "group": {"name": "h", "size": n, "notify": "e"}} for n in (1, 2)])
    with pytest.raises(JobGroupConflict):
        add(rig, 2, size=1, group="h")
    assert rig.look("q").count == 2
    with pytest.raises(JobGroupNotFound):
        group(rig, "h")


def test_a_repeated_append_to_a_full_group_names_the_jobs_it_has(rig: QueueRig) -> None:
    rig.queue()
    record = {"data": 0, "group": {"name": "g", "size": 3, "notify": "ends"}}
    records = [{**record, "unique_key": key} for key in "abc"]
    rig.append("q", *records)
    again = rig.append("q", *records)
    assert (again.deduped, again.result) == (True, [1, 2, 3])
    with pytest.raises(JobGroupConflict, match="3 of its 3"):
        rig.append("q", *records, {**record, "unique_key": "d"})
    assert group(rig).added == 3


def test_jobs_that_are_not_synced_yet_have_joined_their_group(rig: QueueRig) -> None:
    rig.queue(durability="fsync")
    add(rig, 1, size=3)
    record = {"data": 0, "group": {"name": "g", "size": 3, "notify": "ends"}}
    request = decode_body(append_decoder, msgspec.json.encode({"records": [record] * 2}))
    pending = rig.engine.append("q", request)
    with pytest.raises(JobGroupConflict, match="3 of its 3"):
        rig.engine.append("q", request)
    rig.finish(pending)
    assert group(rig).added == 3
    rig.ack("w", *rig.claimed(max=9))
    assert [end["done"] for end in ends(rig)] == [3]
    rig.clock.advance(KEPT_MS)
    assert add(rig, 2, size=3) == [4, 5], "none is pending any more"


def test_a_run_that_failed_is_repeated(rig: QueueRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.queue()
    for name in "abc":
        add(rig, 1, size=1, group=name)
    with monkeypatch.context() as broken:
        broken.setattr(notifier, "_record", None)
        rig.ack("w", *rig.claimed(max=3))
        assert ends(rig) == []
    rig.clock.advance(1_001)
    assert len(ends(rig)) == 3


def test_a_name_is_free_again_long_after_the_record(rig: QueueRig) -> None:
    rig.queue()
    add(rig, 1, size=1)
    rig.ack("w", *rig.claimed())
    assert len(ends(rig)) == 1
    rig.clock.advance(KEPT_MS - 1)
    with pytest.raises(JobGroupConflict):
        add(rig, 1, size=1)
    rig.clock.advance(1)
    with pytest.raises(JobGroupNotFound):
        group(rig)
    add(rig, 2, size=2)
    for restart in RESTARTS:
        restart(rig)
        shown = group(rig)
        assert (shown.added, shown.size, shown.done) == (2, 2, 0), "a replay tells the two groups apart"
    rig.ack("w", *rig.claimed(max=2))
    assert [end["size"] for end in ends(rig)] == [1, 2]


def test_groups_are_limited_and_forgotten(rig: QueueRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_groups, "OPEN_MAX", 2)
    monkeypatch.setattr(job_groups, "NOTIFIED_MAX", 2)
    rig.queue()
    for name in "ab":
        add(rig, 1, size=1, group=name)
    with pytest.raises(Throttled):
        add(rig, 1, size=1, group="c")
    rig.ack("w", *rig.claimed(max=2))
    assert len(ends(rig)) == 2
    add(rig, 1, size=1, group="c")
    rig.ack("w", *rig.claimed())
    assert len(ends(rig)) == 3
    with pytest.raises(JobGroupNotFound):
        group(rig, "a")
    results = results_of(rig.parts()[0])
    assert results is not None
    rig.clock.advance(KEPT_MS)
    while rig.work() or results.groups.by_name:
        rig.store.flush()
    assert results.groups.by_name == {}


@pytest.mark.parametrize("restart", RESTARTS)
def test_groups_that_never_get_their_jobs_make_room_for_others(
    rig: QueueRig, monkeypatch: pytest.MonkeyPatch, restart: Callable[[QueueRig], object]
) -> None:
    monkeypatch.setattr(job_groups, "OPEN_MAX", 3)
    rig.queue()
    for name in "abc":
        add(rig, 1, size=2, group=name)
    with pytest.raises(Throttled, match="finish or cancel"):
        add(rig, 1, size=2, group="d")
    # Groups b and then a have no job left, each waits for another one.
    cancel(rig, 2)
    cancel(rig, 1)
    restart(rig)
    records = [{"data": 0, "group": {"name": name, "size": 2, "notify": "ends"}} for name in "deb"]
    with pytest.raises(Throttled):
        rig.append("q", *records)
    rig.append("q", records[0], records[2])
    for _ in range(2):
        assert [group(rig, name).added for name in "bcd"] == [2, 1, 1], "b is in use again"
        with pytest.raises(JobGroupNotFound):
            group(rig, "a")
        restart(rig)
    with pytest.raises(Throttled):
        add(rig, 1, size=2, group="a")
    while held := rig.claimed(max=9):
        rig.ack("w", *held)
    assert [(end["group"], end["done"], end["cancelled"]) for end in ends(rig)] == [("b", 1, 1)]


def test_a_replay_forgets_the_groups_that_were_forgotten_whenever_jobs_expire(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has an expiry after the op that was pending when it happened: what a replay finds idle may differ."""
    monkeypatch.setattr(job_groups, "OPEN_MAX", 2)
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.queue(ttl_ms=1_000, durability="fsync")
    add(rig, 1, size=2, group="expires")
    rig.clock.advance(500)
    add(rig, 1, size=2, group="cancelled")
    gate = disk.hold("fdatasync", path=".log")
    outcome: Outcome[object] = Outcome()
    request = msgspec.convert({"seqs": [2]}, CancelRequest)
    rig.store.runner.start(rig.store.queues.job_actions.cancel("q", request, lambda: None), outcome)
    rig.store.flush()
    assert gate.reached.wait(WAIT_S_MAX)
    rig.clock.advance(501)
    assert rig.look("q").count == 1, "the job of the first group has expired, that of the second is not cancelled yet"
    gate.open()
    rig.wait_until(lambda: (rig.store.flush(), outcome.over)[-1])
    add(rig, 1, size=2, group="new")
    for restart in (None, QueueRig.crash, QueueRig.reopen):
        if restart is not None:
            restart(rig)
        assert [group(rig, name).added for name in ("cancelled", "new")] == [1, 1]
        with pytest.raises(JobGroupNotFound):
            group(rig, "expires")


def test_a_group_whose_next_job_is_pending_does_not_make_room(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_groups, "OPEN_MAX", 1)
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.queue(durability="fsync")
    cancel(rig, *add(rig, 1, size=2, group="a"))
    gate = disk.hold("fdatasync", path=".log")
    record = {"data": 0, "group": {"name": "a", "size": 2, "notify": "ends"}}
    joins = rig.engine.append("q", decode_body(append_decoder, msgspec.json.encode({"records": [record]})))
    with pytest.raises(Throttled):
        add(rig, 1, size=2, group="b")
    gate.open()
    rig.finish(joins)
    assert group(rig, "a").added == 2


@pytest.mark.parametrize(
    ("given_group", "field"),
    [
        ({"name": "a b", "size": 1, "notify": "t"}, "records[0].group.name"),
        ({"name": "a", "size": 0, "notify": "t"}, "records[0].group.size"),
        ({"name": "a", "size": 1_000_001, "notify": "t"}, "records[0].group.size"),
        ({"name": "a", "size": 1, "notify": "!"}, "records[0].group.notify"),
        ({"name": "a", "size": 1, "notify": "t", "sizes": 2}, "records[0].group.sizes"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(rig: QueueRig, given_group: dict[str, Any], field: str) -> None:
    rig.queue()
    with pytest.raises(InvalidRequest) as refused:
        rig.append("q", {"data": 0, "group": given_group})
    assert refused.value.detail["field"] == field


def test_a_group_is_for_queues(rig: QueueRig) -> None:
    rig.configure("log")
    with pytest.raises(InvalidRequest, match="group is for queues"):
        rig.append("log", {"data": 0, "group": {"name": "a", "size": 1, "notify": "t"}})


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(1, 3)),
        st.tuples(st.just("plain"), st.integers(1, 3)),
        st.tuples(st.sampled_from(("ack", "nack", "bury", "cancel", "delete")), st.integers(1, 4)),
        st.tuples(st.sampled_from(("crash", "reopen", "checkpoint", "settle"))),
    ),
    max_size=40,
)


class Model:
    """A queue with two groups, and what a plain count says of them."""

    size = 6

    def __init__(self, rig: QueueRig) -> None:
        self.rig = rig
        rig.queue(dead_letter="dead", keep_results_ms=1_000_000)
        self.owner: dict[int, str] = {}
        self.alive: list[int] = []
        self.ended: dict[int, str] = {}

    def add(self, name: str, count: int) -> None:
        if list(self.owner.values()).count(name) + count <= self.size:
            seqs = add(self.rig, count, self.size, name)
            self.owner.update((seq, name) for seq in seqs)
            self.alive += seqs

    def plain(self, count: int) -> None:
        self.alive += self.rig.jobs(count)

    def ack(self, count: int) -> None:
        seqs = self.rig.claimed(max=count)
        if seqs:
            self.rig.ack("w", *seqs, results=seqs)
            self._end(seqs, "done")

    def nack(self, count: int) -> None:
        seqs = self.rig.claimed(max=count)
        if seqs:
            self.rig.nack("w", *seqs)

    def bury(self, count: int) -> None:
        seqs = self.rig.claimed(max=count)
        if seqs:
            self.rig.nack("w", *seqs, dead_letter=True)
            self._end(seqs, "dead")

    def cancel(self, count: int) -> None:
        seqs = self.alive[:count]
        if seqs:
            cancel(self.rig, *seqs)
            self._end(seqs, "cancelled")

    def delete(self, count: int) -> None:
        seqs = sorted(self.alive)[:count]
        if seqs:
            self.rig.delete("q", before_seq=seqs[-1] + 1)
            self._end(seqs, "removed")

    def settle(self) -> None:
        settle(self.rig)

    def crash(self) -> None:
        self.rig.crash()

    def reopen(self) -> None:
        self.rig.reopen()

    def checkpoint(self) -> None:
        self.rig.checkpoint()

    def _end(self, seqs: list[int], how: str) -> None:
        for seq in seqs:
            self.alive.remove(seq)
            self.ended[seq] = how

    def check(self) -> None:
        ended = [(self.owner[seq], how) for seq, how in self.ended.items() if seq in self.owner]
        counts = {name: {how: ended.count((name, how)) for how in COUNTS} for name in "ab"}
        complete = {name: counts[name] for name in "ab" if sum(counts[name].values()) >= self.size}
        records = ends(self.rig)
        assert {end["group"]: {how: end[how] for how in COUNTS} for end in records} == complete
        assert len(records) == len(complete)
        for seq, how in self.ended.items():
            if how != "removed":
                report = self.rig.drive(self.rig.store.job_lookup.waiting("q", seq, 0))
                assert (report.state, report.result) == (how, b"%d" % seq if how == "done" else b"")


@settings(max_examples=examples(25), deadline=None)
@given(steps=STEPS)
def test_at_random_each_group_gets_one_record_with_the_counts_of_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    with QueueRig(tmp_path_factory.mktemp("groups") / "data") as rig:
        model = Model(rig)
        for step, *rest in steps:
            getattr(model, step)(*rest)
        model.check()


def test_many_jobs_of_groups_that_take_turns_need_little(rig: QueueRig) -> None:
    """Spans of groups that are gone do not pile up."""
    rig.queue()
    for number in range(1_500):
        add(rig, 1, size=1, group=f"g{number % 7}-{number}")
        rig.ack("w", *rig.claimed())
    settle(rig)
    results = results_of(rig.parts()[0])
    assert results is not None
    assert len(results.groups.image().spans) <= 24 * 1_400
    assert not results.groups.counting

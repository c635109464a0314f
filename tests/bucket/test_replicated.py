"""Durability `replicated`, driven by hand: shown and acknowledged when the bucket has it, and not before."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.bucket.faulty import close_newest
from tests.bucket.interrupted import Interrupted, die, nothing, refuse, shipping_of, until_shipped
from tests.engine.rig import Rig
from tests.txns.rig import TxnRig
from topics.engine.core import commit_log
from topics.engine.core.checkpoints import checkpoint
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.runner import attempt
from topics.model.errors import DataDirIncompatible, InvalidRequest, NotPrimary, NotReplicated, TopicsError
from topics.model.requests.config import ConfigRequest
from topics.model.requests.multi_append import MultiAppendRequest
from topics.model.requests.records import append_decoder, decode_body
from topics.model.requests.routers import RouterRequest

Open = Callable[..., Rig]
REPLICATED = {"durability": "replicated"}
WAIT_MS = commit_log.BUCKET_WAIT_MS


def submit(rig: Rig, topic: str, *payloads: Any, **fields: Any) -> PendingChange:
    """An append that is not waited for."""
    body = msgspec.json.encode({"records": [{"data": payload} for payload in payloads], **fields})
    change = rig.engine.append(topic, decode_body(append_decoder, body))
    rig.store.flush()
    return change


def submit_to_both(rig: Rig, value: Any, other: str = "d") -> PendingChange:
    topics = {name: {"records": [{"data": value}]} for name in ("r", other)}
    change = rig.store.multi_append.append(
        msgspec.json.decode(msgspec.json.encode({"topics": topics}), type=MultiAppendRequest)
    )
    rig.store.flush()
    return change


def payloads(rig: Rig, topic: str) -> list[Any]:
    return [record["data"] for record in rig.records(topic)]


def started(opened: Open, name: str = "a", **more: Any) -> Rig:
    rig = opened(name, **more)
    if "r" not in rig.store.state.by_name:
        rig.configure("r", durability="replicated")
        rig.append("d", 0)
    until_shipped(rig)
    return rig


def go_away(rig: Rig, interrupted: Interrupted) -> None:
    """From now on the bucket takes nothing, and the server knows."""
    interrupted.before = refuse
    rig.append("d", "away")
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)


def pass_time(rig: Rig, wait_ms: int) -> None:
    for _ in range(0, wait_ms, commit_log.AGE_EVERY_MS):
        rig.clock.advance(commit_log.AGE_EVERY_MS)
        rig.store.settle()


def answers(change: PendingChange) -> list[TopicsError | None]:
    """What a caller is told: filled when it is."""
    told: list[TopicsError | None] = []
    change.answer(lambda done: told.append(done.error))
    return told


def test_a_record_is_shown_when_it_is_in_the_bucket_and_not_before(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened)
    interrupted.before = refuse
    change = submit(rig, "r", "first")
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)
    assert rig.store.wal.synced_to >= change.position, "it is synced, and that is not enough"
    assert not change.done
    assert payloads(rig, "r") == []
    assert rig.look("r").head_seq == 0
    rig.append("d", "other classes go on")
    rig.append("f", "also this one", config={"durability": "fsync"})
    interrupted.before = nothing
    rig.finish(change)
    assert payloads(rig, "r") == ["first"]
    assert shipping_of(rig).shipped_to >= change.position


def test_many_writers_share_a_piece(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened)
    interrupted.before = refuse
    first = submit(rig, "r", 0)
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)
    rest = [submit(rig, "r", number) for number in range(1, 200)]
    rig.wait_until(lambda: rig.store.wal.synced_to >= rest[-1].position)
    rig.store.settle()
    pieces = shipping_of(rig).pieces_total
    interrupted.before = nothing
    for change in (first, *rest):
        rig.finish(change)
    assert shipping_of(rig).pieces_total <= pieces + 3
    assert payloads(rig, "r") == list(range(200))


def test_without_a_bucket_the_class_is_refused_and_the_setting_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "a")
    rig.configure("d")
    topics = {"new": {"records": [{"data": 1}], "config": {"durability": "replicated"}}}
    both = msgspec.json.decode(msgspec.json.encode({"topics": topics}), type=MultiAppendRequest)
    for verb in (
        lambda: rig.configure("r", durability="replicated"),
        lambda: rig.configure("d", durability="replicated"),
        lambda: rig.edit("d", durability="replicated"),
        lambda: rig.edit("d", durability="replicated", dry_run=True),
        lambda: rig.append("r", 1, config={"durability": "replicated"}),
        lambda: rig.store.multi_append.append(both),
    ):
        with pytest.raises(InvalidRequest, match="TOPICS_BUCKET") as refused:
            verb()
        assert refused.value.detail["field"].endswith("durability")
    assert rig.store.state.names == ["d"]
    rig.close()


def test_a_start_without_the_bucket_is_refused_with_a_way_out(opened: Open, tmp_path: Path) -> None:
    rig = started(opened)
    rig.append("r", 1)
    rig.close()
    with pytest.raises(DataDirIncompatible, match=r"durability replicated \(r\).*set TOPICS_BUCKET"):
        Rig(rig.path)
    # The way out: another prefix.
    again = Rig(rig.path, bucket=f"file://{tmp_path}/bucket")
    assert payloads(again, "r") == [1]
    again.close()


def test_callers_are_refused_after_a_while_and_a_retry_gets_the_outcome(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened)
    go_away(rig, interrupted)
    change = submit(rig, "r", "once", idempotency_key="k")
    told = answers(change)
    pass_time(rig, WAIT_MS - 2 * commit_log.AGE_EVERY_MS)
    assert told == []
    pass_time(rig, 3 * commit_log.AGE_EVERY_MS)
    assert isinstance(told[0], NotReplicated)
    assert told[0].detail == {"retry_after_ms": 1_000, "written": True}
    assert not change.done, "what is in the log is not taken back"
    retried = submit(rig, "r", "once", idempotency_key="k")
    told_again = answers(retried)
    pass_time(rig, WAIT_MS + commit_log.AGE_EVERY_MS)
    assert isinstance(told_again[0], NotReplicated)
    third = submit(rig, "r", "once", idempotency_key="k")
    interrupted.before = nothing
    rig.finish(third)
    assert (third.deduped, third.first_seq) == (True, 1)
    last = submit(rig, "r", "once", idempotency_key="k")
    assert (last.done, last.deduped, last.first_seq) == (True, True, 1)
    assert payloads(rig, "r") == ["once"]
    assert (len(told), len(told_again)) == (1, 1), "each caller is told once"


def test_a_verb_that_waits_for_such_a_change_is_refused_without_having_written(
    opened: Open, interrupted: Interrupted
) -> None:
    rig = started(opened)
    go_away(rig, interrupted)
    created = rig.engine.configure("new", ConfigRequest(durability="replicated"))
    rig.store.flush()
    request = decode_body(append_decoder, b'{"records":[{"data":1}]}')
    with pytest.raises(Busy):
        rig.engine.append("new", request)
    errors: list[Exception] = []

    class Owner:
        wanted = True

        def done(self, result: object) -> None:
            raise AssertionError(result)

        def failed(self, error: Exception) -> None:
            errors.append(error)

        def cancelled(self) -> None: ...

    rig.store.runner.start(attempt(lambda: rig.engine.append("new", request)), Owner())
    pass_time(rig, WAIT_MS + commit_log.AGE_EVERY_MS)
    rig.store.flush()
    assert isinstance(errors[0], NotReplicated)
    assert errors[0].detail["written"] is False
    interrupted.before = nothing
    rig.finish(created)


def test_what_may_wait_for_the_bucket_is_bounded(
    opened: Open, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "UNSHIPPED_BYTES_MAX", 100_000)
    rig = started(opened)
    go_away(rig, interrupted)
    waiting = [submit(rig, "r", "x" * 10_000) for _ in range(9)]
    with pytest.raises(NotReplicated) as refused:
        submit(rig, "r", "x" * 10_000)
    assert refused.value.detail["written"] is False
    rig.append("d", "x" * 10_000)
    interrupted.before = nothing
    for change in waiting:
        rig.finish(change)
    rig.append("r", "there is room again")
    assert rig.seqs("r") == list(range(1, 11))


def test_what_waits_behind_another_topic_is_bounded_too(
    opened: Open, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "UNSHIPPED_MAX", 10)
    rig = started(opened)
    go_away(rig, interrupted)
    waiting = [submit_to_both(rig, "both"), *(submit(rig, "d", number) for number in range(9))]
    with pytest.raises(NotReplicated, match="this attempt has written nothing"):
        submit(rig, "d", "too much")
    rig.append("e", "another topic goes on")
    interrupted.before = nothing
    for change in waiting:
        rig.finish(change)
    assert payloads(rig, "d") == [0, "away", "both", *range(9)]


def test_retries_share_what_they_wait_for(opened: Open, interrupted: Interrupted) -> None:
    """A client retries every second, and the bucket may be away for hours."""
    rig = started(opened)
    go_away(rig, interrupted)
    change = submit(rig, "r", "once", idempotency_key="k")
    retries = [submit(rig, "r", "once", idempotency_key="k") for _ in range(5)]
    told = [answers(retry) for retry in retries]
    assert len(set(retries)) == 1
    pass_time(rig, WAIT_MS + commit_log.AGE_EVERY_MS)
    assert [type(error) for errors in told for error in errors] == [NotReplicated] * 5
    assert change._overdue is not None
    assert change._overdue.others == retries[:1]
    assert not retries[0]._answers
    interrupted.before = nothing
    again = submit(rig, "r", "once", idempotency_key="k")
    rig.finish(again)
    assert (again.deduped, change.deduped) == (True, False)
    assert payloads(rig, "r") == ["once"]


def test_callers_are_refused_in_time_while_others_have_much_to_publish(opened: Open, interrupted: Interrupted) -> None:
    """And what is shipped does not overtake what is only synced: both may change the same topic."""
    rig = started(opened)
    rig.append("f", -1, config={"durability": "fsync"})
    until_shipped(rig)
    go_away(rig, interrupted)
    told = answers(submit(rig, "r", "waits"))
    log = rig.store.commit_log
    for _ in range(0, WAIT_MS + 2 * commit_log.AGE_EVERY_MS, commit_log.AGE_EVERY_MS):
        changes = [submit(rig, "f", number) for number in range(3)]
        rig.store.syncer.want_sync(changes[-1].position)
        while rig.store.wal.synced_to < changes[-1].position:
            rig.store.syncer.poll()
        rig.clock.advance(commit_log.AGE_EVERY_MS)
        assert log.settle(lambda: True)
        assert not changes[-1].done
    assert isinstance(told[0], NotReplicated)
    shipped_later = submit_to_both(rig, "both", "f")
    interrupted.before = nothing
    while shipping_of(rig).shipped_to < shipped_later.position:
        rig.store.syncer.poll()
        shipping_of(rig).poll()
    log.settle(lambda: True)
    assert not shipped_later.done, "earlier ones of f are not published"
    rig.finish(shipped_later)
    assert payloads(rig, "f")[-2:] == [2, "both"]


@pytest.mark.parametrize("topic", ["d", "r"])
def test_a_commit_is_refused_only_if_its_own_topics_wait(
    topic: str, tmp_path: Path, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TxnRig(tmp_path / "a", bucket=f"file://{tmp_path}/bucket", bucket_piece_ms=1, bucket_lease_ms=1_000)
    rig.configure("r", durability="replicated")
    rig.configure("d", durability="fsync")
    rig.stage("app", 1, "s", "staged", topic=topic)
    until_shipped(rig)
    go_away(rig, interrupted)
    waiting = submit(rig, "r", "waits")
    rig.clock.advance(WAIT_MS)
    # The commit finds another write to d that is not published, and waits for that.
    log, syncer = rig.store.commit_log, rig.store.syncer
    ask, poll, before = log.check_bucket, syncer.poll, syncer.poll()
    asked: list[int] = []

    def check_bucket(topic_id: int) -> None:
        asked.append(topic_id)
        ask(topic_id)

    monkeypatch.setattr(log, "check_bucket", check_bucket)
    monkeypatch.setattr(syncer, "poll", lambda: poll() if asked else before)
    submit(rig, "d", "other")
    if topic == "d":
        rig.commit("app", 1, "s")
        assert payloads(rig, "d") == ["away", "other", "staged"]
    else:
        with pytest.raises(NotReplicated, match="this attempt has written nothing"):
            rig.commit("app", 1, "s")
    assert asked[0] == rig.store.state.by_name[topic].id
    interrupted.before = nothing
    rig.finish(waiting)
    rig.close()


def test_the_strictest_class_decides_and_topics_keep_their_order(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened)
    interrupted.before = refuse
    both = submit_to_both(rig, "both")
    after = submit(rig, "d", "after")
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)
    assert not both.done
    assert not after.done
    assert payloads(rig, "d") == [0]
    rig.append("e", "another topic goes on")
    interrupted.before = nothing
    rig.finish(after)
    assert payloads(rig, "d") == [0, "both", "after"]
    assert payloads(rig, "r") == ["both"]


@pytest.mark.parametrize("to", ["disk", "replicated", "dropped"])
def test_what_becomes_of_a_topic_is_in_the_bucket_too(to: str, opened: Open, interrupted: Interrupted) -> None:
    """A topic that leaves the class, or joins it, must be known to the server that takes over."""
    rig = started(opened)
    interrupted.before = refuse
    if to == "dropped":
        change = rig.engine.drop("r")
    else:
        name = "r" if to == "disk" else "d"
        change = rig.engine.configure(name, msgspec.convert({"durability": to}, ConfigRequest))
    rig.store.flush()
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)
    assert not change.done
    interrupted.before = nothing
    rig.finish(change)


def test_a_checkpoint_carries_what_waits(opened: Open, interrupted: Interrupted) -> None:
    """It does not wait for the bucket; a start from its snapshot has what waited, once and in order."""
    rig = started(opened, wal_file_bytes=1 << 16)
    rig.append("r", "before")
    go_away(rig, interrupted)
    changes = [submit(rig, "r", "waits"), submit_to_both(rig, "both"), submit(rig, "new", 1, config=REPLICATED)]
    rig.checkpoint()
    rig.append("e", "after")
    assert not any(change.done for change in changes)
    assert payloads(rig, "r") == ["before"]
    interrupted.before = nothing
    rig.crash()
    assert payloads(rig, "r") == ["before", "waits", "both"]
    assert payloads(rig, "d") == [0, "away", "both"]
    assert payloads(rig, "new") == [1]
    assert payloads(rig, "e") == ["after"]
    assert shipping_of(rig).shipped_to == rig.store.wal.written_to, "before any reader"


def test_a_checkpoint_carries_what_the_commit_thread_has_just_written(
    opened: Open, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a hand-over the log grows at any moment: also right before the checkpoint looks where it ends."""
    rig = started(opened)
    rig.append("r", "before")
    go_away(rig, interrupted)
    log = rig.store.commit_log
    changes: list[PendingChange] = []

    def write_meanwhile() -> bool:
        if not changes:
            changes.append(rig.engine.append("r", decode_body(append_decoder, b'{"records":[{"data":"waits"}]}')))
            rig.store.wal.flush()
        return False

    monkeypatch.setattr(log, "marks_unwritten", write_meanwhile)
    rig.checkpoint()
    assert rig.store.snapshots.newest_position >= changes[0].position
    assert not changes[0].done
    interrupted.before = nothing
    rig.crash()
    assert payloads(rig, "r") == ["before", "waits"]


def test_while_a_checkpoint_runs_what_it_carries_is_published(
    opened: Open, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SLICE_MS", -1.0)
    rig = started(opened)
    go_away(rig, interrupted)
    change = submit(rig, "r", "waits")
    marked = rig.store.snapshots.newest_position
    steps = rig.store._checkpointer.steps()
    while rig.store.state.capture_from != change.position:
        next(steps)
        rig.store.settle()
    interrupted.before = nothing
    rig.finish(change)
    rig.append("r", "later")
    assert rig.store.state.awaits_capture(rig.store.state.by_name["d"]), "it is still running"
    for _ in steps:
        rig.store.settle()
    assert rig.store.snapshots.newest_position > marked
    rig.crash()
    assert payloads(rig, "r") == ["waits", "later"]
    assert rig.look("r").head_seq == 2


def test_copies_that_wait_are_carried_with_their_records(opened: Open, interrupted: Interrupted) -> None:
    """The source may lose them before they are in the bucket."""
    rig = started(opened)
    rig.finish(rig.store.routers.put("copies", msgspec.convert({"source": "s", "dest": "r"}, RouterRequest)))
    go_away(rig, interrupted)
    rig.append("s", "a", "b")
    rig.wait_until(lambda: rig.store.forwarder.work() is not None or rig.store.commit_log.depth)
    rig.store.flush()
    assert rig.delete("s", before_seq=3) == 2
    rig.checkpoint()
    assert payloads(rig, "r") == []
    interrupted.before = nothing
    rig.crash()
    assert payloads(rig, "r") == ["a", "b"]
    assert payloads(rig, "s") == []


def test_copies_of_other_routers_go_on_while_one_waits_and_a_change_of_a_router_waits(
    opened: Open, interrupted: Interrupted
) -> None:
    rig = started(opened)
    put = rig.store.routers.put
    for source, dest in (("s", "r"), ("t", "e")):
        rig.append(source, 0)
        rig.finish(put(f"to-{dest}", msgspec.convert({"source": source, "dest": dest}, RouterRequest)))

    def has(topic: str, count: int) -> bool:
        rig.store.forwarder.work()
        rig.store.flush()
        return len(payloads(rig, topic)) == count

    rig.append("s", 1)
    rig.append("t", 1)
    rig.wait_until(lambda: has("r", 1) and has("e", 1))
    go_away(rig, interrupted)
    rig.append("s", 2)
    for number in range(2, 5):
        rig.append("t", number)
        rig.wait_until(lambda: has("e", number))  # noqa: B023
    assert payloads(rig, "r") == [1]
    change = put("another", msgspec.convert({"source": "t", "dest": "f"}, RouterRequest))
    rig.store.flush()
    assert has("e", 4)
    assert not change.done
    interrupted.before = nothing
    rig.wait_until(lambda: has("r", 2))
    rig.wait_until(lambda: change.done)
    assert change.error is None


def test_after_a_gap_a_snapshot_brings_what_waited(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened, bucket_backlog_bytes=1 << 20, wal_file_bytes=1 << 16)
    go_away(rig, interrupted)
    change = submit(rig, "r", "waits")
    for _ in range(60):
        rig.append("d", "x" * 50_000)
    rig.checkpoint()
    rig.wait_until(lambda: shipping_of(rig).status.state == "gap")
    rig.append("d", "last")
    assert not change.done
    interrupted.before = nothing
    rig.finish(change)
    until_shipped(rig)
    die(rig, interrupted)
    elsewhere = opened("b")
    assert payloads(elsewhere, "r") == ["waits"]
    assert payloads(elsewhere, "d")[-1] == "last"


def test_a_server_with_a_gap_restarts(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened, bucket_backlog_bytes=1 << 20, wal_file_bytes=1 << 16)
    go_away(rig, interrupted)
    submit(rig, "r", "waits")
    for _ in range(60):
        rig.append("d", "x" * 50_000)
    rig.checkpoint()
    rig.wait_until(lambda: shipping_of(rig).status.state == "gap")
    die(rig, interrupted)
    rig.crash()
    assert payloads(rig, "r") == ["waits"]
    assert shipping_of(rig).shipped_to == rig.store.wal.written_to


def test_a_snapshot_after_a_gap_counts_only_if_no_other_server_took_over_before(
    opened: Open, interrupted: Interrupted
) -> None:
    """Another one that has listed the snapshots before this one was there does not have what it brings."""
    rig = started(opened, bucket_backlog_bytes=1 << 20, wal_file_bytes=1 << 16)
    go_away(rig, interrupted)
    change = submit(rig, "r", "waits")
    for _ in range(60):
        rig.append("d", "x" * 50_000)
    rig.checkpoint()
    rig.wait_until(lambda: shipping_of(rig).status.state == "gap")

    def take_over_after_manifest(key: str) -> None:
        if key.startswith("snapshots/"):
            interrupted.before = nothing
            close_newest(interrupted, "other")

    interrupted.before = take_over_after_manifest
    rig.wait_until(lambda: change.done)
    assert isinstance(change.error, NotPrimary)
    assert payloads(rig, "r") == []
    assert shipping_of(rig).fenced is not None


def test_a_server_that_is_shut_out_acknowledges_nothing_that_waits(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened)
    interrupted.before = refuse
    change = submit(rig, "r", "never")
    told = answers(change)
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)
    close_newest(SharedView(interrupted), "other")
    interrupted.before = nothing
    rig.wait_until(lambda: change.done)
    assert isinstance(change.error, NotPrimary)
    assert isinstance(told[0], NotPrimary)
    # It may be in the bucket: its piece may have come just before, and its answer not.
    assert told[0].detail["written"] is True
    assert payloads(rig, "r") == []


class SharedView(Interrupted):
    """The same bucket for somebody else: what is refused here is not refused there."""

    def __init__(self, other: Interrupted) -> None:
        super().__init__(Path(other._path))


def test_what_is_restored_goes_on_without_a_gap_in_this_class_only(opened: Open, interrupted: Interrupted) -> None:
    rig = started(opened)
    rig.append("r", 1, 2, 3)
    rig.append("d", "acknowledged, and in the bucket")
    until_shipped(rig)
    interrupted.before = refuse
    rig.append("d", "acknowledged, and lost")
    lost = rig.look("d").head_seq
    change = submit(rig, "r", "not acknowledged")
    rig.wait_until(lambda: shipping_of(rig).away_since_s is not None)
    die(rig, interrupted)
    elsewhere = opened("b")
    assert payloads(elsewhere, "r") == [1, 2, 3]
    elsewhere.append("r", 4)
    assert elsewhere.seqs("r") == [1, 2, 3, 4]
    diff = elsewhere.diff("d", lost - 1)
    assert diff.tombstone is not None
    assert (diff.tombstone.reason, diff.tombstone.gap_from) == ("lost", lost)
    elsewhere.append("d", "after")
    assert elsewhere.seqs("d")[-1] > lost
    assert not change.done


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_bucket_does_recovery_finds_what_was_written(
    seed: int, opened: Open, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random writes, a bucket that comes and goes, checkpoints step by step, crashes at any moment."""
    monkeypatch.setattr(checkpoint, "SLICE_MS", -1.0)
    chance = random.Random(seed)
    rig = started(opened, wal_file_bytes=1 << 16)
    expected: dict[str, list[int]] = {"r": [], "d": [], "f": []}
    rig.append("f", -1, config={"durability": "fsync"})
    before = {name: payloads(rig, name) for name in expected}
    steps = None
    for number in range(60):
        match chance.randrange(9):
            case 0:
                interrupted.before = refuse
            case 1 | 2:
                interrupted.before = nothing
            case 3:
                steps = steps or rig.store._checkpointer.steps()
                for _ in range(chance.randrange(12)):
                    try:
                        next(steps)
                    except StopIteration:
                        steps = None
                        break
                    rig.store.settle()
            case 4:
                submit_to_both(rig, number)
                expected["r"].append(number)
                expected["d"].append(number)
            case 5 if number % 3 == 0:
                interrupted.before = nothing
                rig.crash()
                steps = None
            case _:
                name = chance.choice(("r", "r", "d", "f"))
                submit(rig, name, number)
                expected[name].append(number)
        rig.store.settle()
    interrupted.before = nothing
    rig.crash()
    assert {name: payloads(rig, name) for name in expected} == {
        name: before[name] + expected[name] for name in expected
    }
    assert [rig.seqs(name)[-1] for name in expected] == [len(before[name] + expected[name]) for name in expected]

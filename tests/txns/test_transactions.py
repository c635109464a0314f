"""What a transaction promises, verb by verb, on an engine driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.txns.rig import TxnRig
from topics.engine.core.pending import Busy
from topics.engine.transactions.ledger import Ledger
from topics.model.errors import (
    Fenced,
    InvalidRequest,
    StageNotFound,
)
from topics.model.requests.transactions import CommitRequest

HOUR_MS = 3_600_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TxnRig]:
    with TxnRig(tmp_path / "data") as rig:
        yield rig


# --- visibility ---


def test_what_is_staged_is_seen_only_when_it_is_committed(rig: TxnRig) -> None:
    rig.append("orders", "before")
    rig.stage("app", 1, "a", 1, 2, topic="orders")
    rig.stage("app", 1, "b", 3, topic="orders")
    assert rig.payloads("orders") == ["before"]
    done = rig.commit("app", 1, "a", "b")
    assert not done.deduped
    assert [tuple(landed) for landed in done.landed or ()] == [("orders", 2, 4, 3)]
    assert rig.payloads("orders") == ["before", 1, 2, 3]
    assert rig.hidden() == 0
    assert rig.stages("app") == []
    rig.append("orders", "after")
    assert rig.seqs("orders") == [1, 2, 3, 4, 5]


def test_records_stand_in_the_order_of_the_stages_named_and_of_their_parts(rig: TxnRig) -> None:
    rig.stage("app", 1, "b", "b0", topic="t")
    rig.stage("app", 1, "a", "a0", topic="t")
    rig.stage("app", 1, "b", "b1", part=1, topic="t")
    rig.commit("app", 1, "a", "b")
    assert rig.payloads("t") == ["a0", "b0", "b1"]


def test_everything_a_record_has_comes_with_it(rig: TxnRig) -> None:
    record = {"data": {"x": 1}, "tag": "blue", "node": "eu-1", "meta": {"k": "100%d \u0000"}}
    rig.stage("app", 1, "a", record, {"data": 2}, topic="t")
    rig.commit("app", 1, "a")
    first, second = rig.records("t", include_tags=True)
    assert {key: first[key] for key in ("data", "$tag", "$node", "meta")} == {
        "data": {"x": 1},
        "$tag": "blue",
        "$node": "eu-1",
        "meta": {"k": "100%d \u0000"},
    }
    assert second["data"] == 2
    assert rig.delete("t", match="blue") == 1


def test_records_of_one_part_go_to_the_topics_they_name(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", {"data": 1, "topic": "x"}, {"data": 2}, {"data": 3, "topic": "x"}, topic="y")
    done = rig.commit("app", 1, "a")
    assert {landed.topic: landed.records for landed in done.landed or ()} == {"x": 2, "y": 1}
    assert rig.payloads("x") == [1, 3]
    assert rig.payloads("y") == [2]


def test_hidden_topics_are_in_no_list_and_no_count(rig: TxnRig) -> None:
    rig.stage_many("app", 1, "a", "t", 100)
    assert rig.hidden() == 1
    assert rig.engine.list().topics == []
    assert (rig.store.state.count, rig.store.state.bytes) == (0, 0)
    rig.commit("app", 1, "a")
    assert [state.topic for state in rig.engine.list().topics] == ["t"]
    state = rig.look("t")
    assert (rig.store.state.count, rig.store.state.bytes) == (100, state.bytes)


def test_a_large_commit_survives_kill_and_checkpoint(rig: TxnRig) -> None:
    rig.append("orders", "before")
    for part in range(4):
        rig.stage_many("app", 1, "a", "orders", 5_000, part)
    done = rig.commit("app", 1, "a")
    assert done.landed is not None
    assert done.landed[0].last_seq == 20_001
    rig.append("orders", "after")
    expected = ["before", *(number for _ in range(4) for number in range(5_000)), "after"]
    assert rig.payloads("orders") == expected
    assert rig.seqs("orders") == list(range(1, 20_003))
    rig.crash()
    assert rig.payloads("orders") == expected
    rig.checkpoint()
    rig.reopen()
    assert rig.payloads("orders") == expected
    assert rig.version("app") == 1
    assert rig.hidden() == 0


def test_time_does_not_go_back_within_a_topic(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    rig.clock.advance(60_000)
    rig.append("t", 0)
    rig.commit("app", 1, "a")
    rig.append("t", 2)
    times = [record["$ts"] for record in rig.records("t")]
    assert times == sorted(times)


def test_a_head_moves_once_and_no_reader_sees_a_part_of_it(rig: TxnRig) -> None:
    rig.append("t", "x")
    woken: list[int] = []
    topic = rig.store.state.by_name["t"]
    rig.store.waiters.add(topic, lambda: woken.append(topic.head_seq))
    for part in range(3):
        rig.stage_many("app", 1, "a", "t", 3_000, part)
    outcome = rig.begin_commit("app", 1, "a")
    heads: set[int] = set()
    while not outcome.done:
        rig.work()
        rig.store.settle()
        heads.add(rig.diff("t").head_seq)
    assert heads <= {1, 9_001}
    assert woken == [9_001]


# --- once ---


def test_a_version_commits_once(rig: TxnRig) -> None:
    rig.stage("app", 5, "a", 1, topic="t")
    first = rig.commit("app", 5, "a")
    again = rig.commit("app", 5, "a")
    assert again.deduped
    assert again.landed == first.landed
    lower = rig.commit("app", 4)
    assert lower.deduped
    assert lower.landed is None
    assert rig.payloads("t") == [1]


def test_staging_for_a_version_that_is_committed_is_done_already(rig: TxnRig) -> None:
    rig.stage("app", 5, "a", 1, topic="t")
    rig.commit("app", 5, "a")
    assert rig.stage("app", 5, "b", 2, topic="t").done
    assert rig.stage("app", 4, "b", 2, topic="t").done
    assert not rig.stage("app", 6, "b", 2, topic="t").done
    assert rig.hidden() == 1


def test_versions_may_leave_some_out(rig: TxnRig) -> None:
    rig.commit("app", 3)
    rig.stage("app", 9, "a", 1, topic="t")
    assert not rig.commit("app", 9, "a").deduped
    assert rig.version("app") == 9


def test_an_empty_transaction_takes_its_version(rig: TxnRig) -> None:
    done = rig.commit("app", 0)
    assert not done.deduped
    assert done.landed == []
    assert rig.commit("app", 0).deduped


def test_a_commit_drops_the_stages_that_lost(rig: TxnRig) -> None:
    rig.stage("app", 1, "winner", 1, topic="t")
    rig.stage("app", 1, "loser", 1, topic="t")
    rig.stage("app", 2, "next", 2, topic="t")
    rig.commit("app", 1, "winner")
    assert rig.stages("app") == [(2, "next", 1, 1)]
    assert rig.payloads("t") == [1]
    assert rig.hidden() == 1


def test_a_repeated_part_is_not_written_again(rig: TxnRig) -> None:
    first = rig.stage("app", 1, "a", 1, 2, topic="t")
    rig.stage("app", 1, "a", 3, part=1, topic="t")
    assert rig.stage("app", 1, "a", 1, 2, topic="t").part == first.part
    rig.crash()
    assert rig.stage("app", 1, "a", 1, 2, topic="t").part == first.part
    rig.commit("app", 1, "a")
    assert rig.payloads("t") == [1, 2, 3]


def test_two_commits_of_one_version_at_once_are_one(rig: TxnRig) -> None:
    rig.stage_many("app", 1, "a", "t", 5_000)
    first = rig.begin_commit("app", 1, "a")
    with pytest.raises(Busy):
        rig.store.transactions.commit("app", 1, CommitRequest(["a"]))
    second = rig.commit("app", 1, "a")
    assert first.done
    assert second.deduped
    assert len(rig.seqs("t")) == 5_000


def test_apps_do_not_meet(rig: TxnRig) -> None:
    rig.stage("one", 7, "a", 1, topic="t")
    rig.stage("two", 7, "a", 2, topic="t")
    rig.commit("one", 7, "a")
    assert not rig.commit("two", 7, "a").deduped
    assert rig.payloads("t") == [1, 2]


def test_commits_to_the_same_topics_wait_for_each_other_and_never_for_good(rig: TxnRig) -> None:
    for app, topics in (("one", ("x", "y")), ("two", ("y", "x"))):
        for topic in topics:
            rig.stage_many(app, 1, topic, topic, 3_000)
    outcomes = [rig.begin_commit(app, 1, "x", "y") for app in ("one", "two")]
    for outcome in outcomes:
        rig.finish(outcome)
    assert len(rig.seqs("x")) == len(rig.seqs("y")) == 6_000


# --- stages that are not there ---


def test_a_stage_that_nobody_wrote_cannot_be_committed(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    with pytest.raises(StageNotFound):
        rig.commit("app", 1, "a", "b")
    with pytest.raises(StageNotFound):
        rig.commit("app", 2, "a")
    assert not rig.commit("app", 1, "a").deduped


def test_aborted_stages_are_gone(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    assert rig.abort("app", 1, "a", "never") == 1
    assert rig.abort("app", 1, "a") == 0
    assert rig.hidden() == 0
    assert rig.store.state.feature(Ledger).bytes == 0
    with pytest.raises(StageNotFound):
        rig.commit("app", 1, "a")


def test_a_stage_expires_an_hour_after_its_last_part(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    rig.clock.advance(HOUR_MS - 1)
    rig.store.step()
    rig.stage("app", 1, "a", 2, part=1, topic="t")
    rig.clock.advance(HOUR_MS - 1)
    assert rig.stages("app") == [(1, "a", 2, 2)]
    rig.clock.advance(1)
    assert rig.stages("app") == []
    with pytest.raises(StageNotFound):
        rig.commit("app", 1, "a")
    rig.store.step()
    rig.store.commit_log.flush()
    assert rig.hidden() == 0
    assert rig.store.state.feature(Ledger).bytes == 0


def test_a_stage_that_expired_is_not_gone_on_with(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    rig.clock.advance(HOUR_MS)
    with pytest.raises(StageNotFound):
        rig.stage("app", 1, "a", 2, part=1, topic="t")


def test_a_stage_begun_again_after_it_expired_has_only_what_is_new(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", "old", topic="t")
    rig.clock.advance(HOUR_MS)
    rig.stage("app", 1, "a", "new", topic="t")
    rig.commit("app", 1, "a")
    assert rig.payloads("t") == ["new"]


def test_parts_come_in_order(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    with pytest.raises(InvalidRequest) as refused:
        rig.stage("app", 1, "a", 3, part=2, topic="t")
    assert refused.value.detail == {"field": "part"}


def test_stages_outlive_a_kill_and_a_clean_restart(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    rig.crash()
    rig.stage("app", 1, "a", 2, part=1, topic="t")
    rig.checkpoint()
    rig.stage("app", 1, "a", 3, part=2, topic="t")
    rig.reopen()
    rig.stage("app", 1, "b", 4, topic="t")
    rig.commit("app", 1, "a", "b")
    assert rig.payloads("t") == [1, 2, 3, 4]


def test_what_was_prepared_when_the_process_was_killed_is_dropped(rig: TxnRig) -> None:
    rig.append("t", "x")
    for part in range(3):
        rig.stage_many("app", 1, "a", "t", 3_000, part)
    outcome = rig.begin_commit("app", 1, "a")
    for _ in range(6):
        rig.work()
    assert not outcome.done
    assert rig.hidden() == 2
    rig.checkpoint()
    rig.crash()
    assert rig.hidden() == 1
    assert rig.payloads("t") == ["x"]
    rig.commit("app", 1, "a")
    assert len(rig.seqs("t")) == 9_001


# --- tokens ---


def test_a_new_token_shuts_out_who_holds_an_older_one(rig: TxnRig) -> None:
    old = rig.take_fence("app")
    rig.stage("app", 1, "a", 1, topic="t", fence=old)
    new = rig.take_fence("app")
    assert new > old
    for refused in (
        lambda: rig.stage("app", 1, "b", 1, topic="t", fence=old),
        lambda: rig.commit("app", 1, "a", fence=old),
        lambda: rig.commit("app", 1, "a"),
        lambda: rig.abort("app", 1, "a", fence=old),
    ):
        with pytest.raises(Fenced):
            refused()
    rig.commit("app", 1, "a", fence=new)
    assert rig.payloads("t") == [1]


def test_a_token_lasts(rig: TxnRig) -> None:
    assert rig.take_fence("app") == 1
    rig.crash()
    assert rig.take_fence("app") == 2
    rig.reopen()
    assert rig.take_fence("app") == 3
    with pytest.raises(Fenced):
        rig.commit("app", 1, fence=2)


def test_without_a_token_only_an_app_that_never_took_one(rig: TxnRig) -> None:
    rig.commit("app", 1)
    with pytest.raises(Fenced):
        rig.commit("app", 2, fence=1)
    token = rig.take_fence("app")
    with pytest.raises(Fenced):
        rig.commit("app", 2)
    rig.commit("app", 2, fence=token)


def test_a_token_is_taken_after_the_commit_that_is_under_way(rig: TxnRig) -> None:
    rig.stage_many("app", 1, "a", "t", 5_000)
    outcome = rig.begin_commit("app", 1, "a")
    with pytest.raises(Busy):
        rig.store.transactions.take_fence("app")
    rig.take_fence("app")
    assert outcome.done
    assert outcome.error is None


def test_a_forgotten_app_starts_anew(rig: TxnRig) -> None:
    rig.take_fence("app")
    rig.commit("app", 5, fence=1)
    rig.stage("app", 6, "a", 1, topic="t", fence=1)
    assert rig.forget("app")
    assert not rig.forget("app")
    assert rig.hidden() == 0
    assert not rig.commit("app", 1).deduped
    rig.crash()
    assert rig.version("app") == 1


def test_a_step_of_the_clock_neither_ends_a_stage_nor_prolongs_it(rig: TxnRig) -> None:
    rig.clock.step(HOUR_MS)
    assert rig.stage("app", 1, "s", "staged", topic="t").expires_ms == rig.clock.now_ms() + HOUR_MS
    rig.clock.step(HOUR_MS)
    rig.clock.advance(HOUR_MS - 1)
    rig.store.step()
    (looked,) = rig.store.transactions.look("app")[1]
    assert looked.expires_ms == rig.clock.now_ms() + 1
    rig.clock.step(-2 * HOUR_MS)
    rig.crash()
    assert not rig.commit("app", 1, "s").deduped
    rig.stage("app", 2, "s", "staged", topic="t")
    rig.clock.step(-HOUR_MS)
    rig.clock.advance(HOUR_MS)
    with pytest.raises(StageNotFound):
        rig.commit("app", 2, "s")

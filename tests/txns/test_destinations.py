"""Where a transaction goes and what it may hold: destinations of every kind, full ones, and the limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.txns.rig import TxnRig
from topics.engine.core.pending import Busy
from topics.engine.transactions.ledger import Ledger
from topics.model.errors import (
    BatchTooLarge,
    InvalidRequest,
    StageNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotFound,
)
from topics.model.requests.config import ConfigRequest
from topics.model.requests.records import append_decoder
from topics.model.requests.routers import RouterRequest

HOUR_MS = 3_600_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TxnRig]:
    with TxnRig(tmp_path / "data") as rig:
        yield rig


# --- destinations ---


def test_writers_wait_while_a_commit_prepares_and_readers_do_not(rig: TxnRig) -> None:
    rig.append("t", "x")
    rig.stage_many("app", 1, "a", "t", 5_000)
    outcome = rig.begin_commit("app", 1, "a")
    for _ in range(3):
        rig.work()
    assert not outcome.done
    for verb in (
        lambda: rig.engine.append("t", append_decoder.decode(b'{"records":[{"data":1}]}')),
        lambda: rig.engine.drop("t"),
        lambda: rig.engine.configure("t", ConfigRequest(ttl_ms=5)),
    ):
        with pytest.raises(Busy):
            verb()
    assert rig.payloads("t") == ["x"]
    assert rig.append("other", 1).first_seq == 1
    rig.append("t", "after")
    assert outcome.done
    assert rig.seqs("t")[-1] == 5_002


def test_a_full_topic_refuses_the_whole_commit(rig: TxnRig) -> None:
    rig.configure("full", cap_records=2, discard="reject")
    rig.stage("app", 1, "a", {"data": 1, "topic": "a-free"}, *({"data": n, "topic": "full"} for n in range(3)))
    with pytest.raises(TopicFull):
        rig.commit("app", 1, "a")
    assert rig.payloads("a-free") == []
    rig.configure("full", cap_records=3, discard="reject")
    rig.commit("app", 1, "a")
    assert rig.payloads("full") == [0, 1, 2]
    assert rig.payloads("a-free") == [1]


@pytest.mark.parametrize("records", [500, 3_000])
def test_a_topic_takes_exactly_what_its_byte_cap_allows(rig: TxnRig, records: int) -> None:
    rig.append("t", "x")
    rig.stage_many("app", 1, "a", "t", records)
    rig.stage_many("probe", 1, "a", "u", records)
    rig.append("u", "x")
    rig.commit("probe", 1, "a")
    needed = rig.look("u").bytes
    rig.configure("t", cap_bytes=needed - 1, discard="reject")
    with pytest.raises(TopicFull):
        rig.commit("app", 1, "a")
    rig.configure("t", cap_bytes=needed, discard="reject")
    rig.commit("app", 1, "a")
    assert rig.look("t").bytes == needed


def test_caps_hold_after_a_commit(rig: TxnRig) -> None:
    rig.configure("t", cap_records=100)
    rig.append("t", "x")
    rig.stage_many("app", 1, "a", "t", 3_000)
    rig.commit("app", 1, "a")
    assert rig.payloads("t") == list(range(2_900, 3_000))
    rig.crash()
    assert rig.payloads("t") == list(range(2_900, 3_000))


def test_the_quota_of_all_topics_holds(tmp_path: Path) -> None:
    with TxnRig(tmp_path / "data", max_total_bytes=10_000) as rig:
        rig.stage_many("app", 1, "a", "t", 1_000)
        with pytest.raises(Throttled) as refused:
            rig.commit("app", 1, "a")
        assert refused.value.detail["limit"] == "max_total_bytes"
        assert rig.stages("app") == [(1, "a", 1, 1_000)]


def test_an_ephemeral_topic_takes_no_part(rig: TxnRig) -> None:
    rig.configure("t", durability="ephemeral")
    rig.stage("app", 1, "a", 1, topic="t")
    with pytest.raises(TopicExistsIncompatible):
        rig.commit("app", 1, "a")
    assert rig.append("t", 2).first_seq == 1


def test_a_topic_is_made_by_a_commit_unless_told_not_to(rig: TxnRig) -> None:
    rig.stage("app", 1, "a", 1, topic="t")
    with pytest.raises(TopicNotFound):
        rig.commit("app", 1, "a", create=False)
    rig.commit("app", 1, "a")
    rig.stage("app", 2, "a", 2, topic="t")
    rig.commit("app", 2, "a", create=False)
    assert rig.payloads("t") == [1, 2]


def test_a_topic_dropped_in_between_is_made_anew(rig: TxnRig) -> None:
    rig.append("t", "old")
    rig.stage("app", 1, "a", 1, topic="t")
    rig.drop("t")
    rig.commit("app", 1, "a")
    assert rig.records("t")[0]["$seq"] == 1


@pytest.mark.parametrize("records", [5, 5_000])
def test_jobs_of_a_queue_come_by_commit(rig: TxnRig, records: int) -> None:
    rig.configure("jobs", type="queue")
    rig.stage_many("app", 1, "a", "jobs", records)
    rig.commit("app", 1, "a")
    state = rig.look("jobs").queue
    assert state is not None
    assert state.ready == records


@pytest.mark.parametrize("records", [5, 5_000])
def test_routers_copy_what_was_committed(rig: TxnRig, records: int) -> None:
    rig.append("t", "x")
    rig.finish(rig._run(lambda: rig.store.routers.put("r", RouterRequest("t", "copy"))))
    rig.stage_many("app", 1, "a", "t", records)
    rig.commit("app", 1, "a")
    while rig.work() or rig.store.forwarder.step() or rig.store.state.by_name["copy"].head_seq < records:
        rig.store.settle()
    assert rig.payloads("copy")[-records:] == list(range(records))
    rig.crash()
    assert rig.payloads("copy")[-records:] == list(range(records))


# --- limits ---


def test_what_is_staged_is_bounded(tmp_path: Path) -> None:
    with TxnRig(tmp_path / "data", max_staged_bytes=2_900, max_staged_bytes_per_app=1_800, max_stages=3) as rig:
        rig.stage_many("one", 1, "a", "t", 100)
        with pytest.raises(Throttled) as refused:
            rig.stage_many("one", 1, "b", "t", 100)
        assert refused.value.detail == {"limit": "max_staged_bytes_per_app", "max": 1_800}
        rig.stage_many("two", 1, "a", "t", 100)
        with pytest.raises(Throttled) as refused:
            rig.stage_many("three", 1, "a", "t", 100)
        assert refused.value.detail["limit"] == "max_staged_bytes"
        rig.stage("one", 1, "c", 1, topic="t")
        with pytest.raises(Throttled) as refused:
            rig.stage("one", 1, "d", 1, topic="t")
        assert refused.value.detail["limit"] == "max_stages"
        rig.abort("two", 1, "a")
        rig.stage("one", 1, "d", 1, topic="t")


def test_apps_are_bounded(tmp_path: Path) -> None:
    with TxnRig(tmp_path / "data", max_txn_apps=2) as rig:
        rig.commit("one", 1)
        rig.take_fence("two")
        with pytest.raises(Throttled) as refused:
            rig.commit("three", 1)
        assert refused.value.detail["limit"] == "max_txn_apps"
        rig.forget("two")
        rig.commit("three", 1)


def test_a_part_is_bounded_like_an_append(tmp_path: Path) -> None:
    with TxnRig(tmp_path / "data", max_batch_records=2) as rig, pytest.raises(BatchTooLarge):
        rig.stage("app", 1, "a", 1, 2, 3, topic="t")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"topic": None}, "topic"),
        ({"stage": ""}, "stage"),
        ({"stage": "x" * 129}, "stage"),
        ({"version": 2**63}, "version"),
        ({"app": ""}, "app"),
        ({"app": "a/b"}, "app"),
        ({"app": "a\nb"}, "app"),
        ({"record": {"data": 1, "delay_ms": 5}}, "records"),
        ({"record": {"data": 1, "unique_key": "k"}}, "records"),
    ],
)
def test_nonsense_is_refused_and_the_field_named(rig: TxnRig, fields: dict[str, object], field: str) -> None:
    wanted = {"app": "app", "version": 1, "stage": "a", "topic": "t", "record": 1, **fields}
    with pytest.raises(InvalidRequest) as refused:
        rig.stage(
            str(wanted["app"]),
            int(str(wanted["version"])),
            str(wanted["stage"]),
            wanted["record"],
            topic=wanted["topic"],
        )
    assert refused.value.detail["field"] == field
    assert rig.store.state.feature(Ledger).by_name == {}


def test_a_failed_request_leaves_nothing_behind(rig: TxnRig) -> None:
    for number in range(5):
        with pytest.raises(StageNotFound):
            rig.commit(f"app-{number}", 1, "a")
    assert rig.store.engine.in_flight.busy == {}

"""Appends to several topics: what they answer, what refuses them whole, and what their idempotency key stands for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_backup import begin, read_all, unpacked
from tests.multi_append.rig import MultiRig
from topics.engine.core.appended import Appended
from topics.engine.core.ops import Created, KeyNoted, MultiAppended
from topics.engine.core.pending import Busy
from topics.engine.opening.composition import OPS
from topics.engine.opening.scan import Chunk, Scan, read_part
from topics.model.errors import (
    BatchTooLarge,
    InvalidRequest,
    RecordTooLarge,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotFound,
    TopicsError,
)
from topics.model.requests.batch import Batch
from topics.model.requests.multi_append import MULTI_TOPICS_MAX
from topics.model.requests.records import append_decoder, decode_body
from topics.model.requests.routers import RouterRequest


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MultiRig]:
    with MultiRig(tmp_path / "data") as rig:
        yield rig


def names(rig: MultiRig) -> list[str]:
    return list(rig.store.state.names)


def job(data: Any, **fields: Any) -> dict[str, Any]:
    return {"data": data, **fields}


# --- what is written ---


def test_every_topic_gets_its_records_and_tells_where_they_are(rig: MultiRig) -> None:
    rig.append("a", "before")
    landed = rig.landed({"b": ["x"], "a": ["y", "z"]})
    assert [
        (name, place.first_seq, place.last_seq, place.head_seq, place.created) for name, place in landed.items()
    ] == [
        ("a", 2, 3, 3, False),
        ("b", 1, 1, 1, True),
    ]
    assert landed["a"].all_seqs() == [2, 3]
    assert (rig.payloads("a"), rig.payloads("b")) == (["before", "y", "z"], ["x"])
    # Nothing is left on its way.
    assert rig.store.commit_log.pending_bytes == 0
    assert all((topic.pending_count, topic.pending_bytes) == (0, 0) for topic in rig.store.state.by_id.values())


def test_node_config_and_create_are_of_each_topic(rig: MultiRig) -> None:
    rig.append_all(
        {
            "a": {"records": [job(1, tag="t", meta={"m": 1}), job(2, node="own")], "node": "n"},
            "q": {"records": [job(3)], "config": {"type": "queue", "durability": "fsync"}},
        }
    )
    first, second = rig.records("a", include_tags=True)
    assert (first["$node"], first["$tag"], first["meta"], second["$node"]) == ("n", "t", {"m": 1}, "own")
    assert rig.look("q").config.durability == "fsync"
    assert rig.look("q").config.type == "queue"


def test_a_write_is_one_op_of_the_log(rig: MultiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.append("a", 1)
    written: list[bytes] = []
    append = rig.store.wal.append

    def noted(body: bytes, urgent: bool = False) -> int:
        written.append(body)
        return append(body, urgent)

    monkeypatch.setattr(rig.store.wal, "append", noted)
    rig.append_all({"a": [2], "b": [3], "c": [4]})
    (body,) = written
    op = OPS.decode(body)
    assert isinstance(op, MultiAppended)
    assert [type(part) for part in op.parts] == [Appended, Created, Appended, Created, Appended]
    assert op.encode() == body


def test_topics_that_it_creates_during_a_checkpoint_are_not_part_of_it(rig: MultiRig) -> None:
    rig.append("old", 1)
    state, steps = rig.store.state, rig.store._checkpointer.steps()
    number = state.checkpoint
    while state.checkpoint == number:
        next(steps)
        rig.store.settle()
    rig.append_all({"new": [2], "old": [3]})
    for _ in steps:
        rig.store.settle()
    rig.crash()
    assert rig.store.state.names == ["new", "old"]
    assert (rig.payloads("old"), rig.payloads("new")) == ([1, 3], [2])


def test_delays_and_unique_keys_work_in_it(rig: MultiRig) -> None:
    rig.configure("q", type="queue")
    first = rig.landed({"q": {"records": [job(1, unique_key="k"), job(2, delay_ms=60_000)]}, "log": ["x"]})
    assert first["q"].all_seqs() == [1, 2]
    queue = rig.look("q").queue
    assert queue is not None
    assert (queue.ready, queue.delayed) == (1, 1)
    second = rig.append_all({"q": {"records": [job(3, unique_key="k"), job(4)]}, "log": ["y"]})
    assert second.result["q"].all_seqs() == [1, 3]
    assert not second.deduped
    assert rig.payloads("log") == ["x", "y"]
    third = rig.append_all({"q": {"records": [job(5, unique_key="k")]}})
    assert third.deduped
    assert third.result["q"].all_seqs() == [1]
    assert rig.look("q").head_seq == 3


def test_a_unique_key_on_its_way_is_waited_for(rig: MultiRig) -> None:
    rig.configure("q", type="queue", durability="fsync")
    first = rig.begin_all({"q": {"records": [job(1, unique_key="k")]}})
    with pytest.raises(Busy):
        rig.store.multi_append.append(rig.request({"q": {"records": [job(2, unique_key="k")]}}))
    rig.finish(first)
    assert rig.landed({"q": {"records": [job(2, unique_key="k")]}})["q"].all_seqs() == [1]


# --- when it is answered ---


def test_the_strictest_class_decides_when_it_is_visible(rig: MultiRig) -> None:
    rig.configure("lax", durability="memory")
    rig.configure("strict", durability="fsync")
    change = rig.begin_all({"lax": [1], "strict": [2]})
    rig.store.commit_log.flush()
    assert not change.done
    assert rig.payloads("lax") == []
    # What comes after it in the lax topic comes after it.
    later = rig.engine.append("lax", decode_body(append_decoder, b'{"records":[{"data":9}]}'))
    rig.store.commit_log.flush()
    assert not later.done
    rig.finish(change)
    rig.finish(later)
    assert rig.payloads("lax") == [1, 9]
    change = rig.begin_all({"lax": [3]})
    rig.store.commit_log.flush()
    assert change.done


def test_ephemeral_topics_go_together_and_with_no_other_class(rig: MultiRig) -> None:
    rig.configure("e1", durability="ephemeral")
    config = {"durability": "ephemeral"}
    assert rig.landed({"e1": [1], "e2": {"records": [job(2)], "config": config}})["e2"].created
    assert (rig.payloads("e1"), rig.payloads("e2")) == ([1], [2])
    for other in ({"log": [3]}, {"fsync": {"records": [job(3)], "config": {"durable": True}}}):
        with pytest.raises(TopicExistsIncompatible) as refused:
            rig.append_all({"e1": [3], **other})
        assert refused.value.detail == {"topic": "e1", "field": "durability"}
    assert names(rig) == ["e1", "e2"]
    rig.crash()
    assert (rig.payloads("e1"), rig.payloads("e2")) == ([], [])


# --- all or nothing ---


@pytest.mark.parametrize(
    ("bad", "error", "field"),
    [
        ({"b": []}, InvalidRequest, "topics.b.records"),
        ({"b": {"records": [job(1)], "node": "n" * 1_000}}, InvalidRequest, "topics.b.node"),
        ({"b": {"records": [job(1, tag="t" * 2_000)]}}, InvalidRequest, "topics.b.records[0].tag"),
        ({"b": {"records": [job(1, delay_ms=5)]}}, InvalidRequest, "topics.b.records[0].delay_ms"),
        ({"b": {"records": [job(1), job(1, unique_key="k")]}}, InvalidRequest, "topics.b.records[1].unique_key"),
        ({"b": {"records": [job(1)], "config": {"dead_letter": "b"}}}, InvalidRequest, "topics.b.config.dead_letter"),
        ({"!b": [1]}, InvalidRequest, "topics"),
        ({"b": ["x" * 2_000_000]}, RecordTooLarge, "topics.b.records[0]"),
        ({"b": {"records": [job(1)], "create": False}}, TopicNotFound, None),
        ({"full": [1]}, TopicFull, None),
        (
            {"new-and-full": {"records": [job(1), job(2)], "config": {"cap_records": 1, "discard": "reject"}}},
            TopicFull,
            None,
        ),
    ],
)
def test_what_refuses_one_topic_refuses_all(
    rig: MultiRig, bad: dict[str, Any], error: type[TopicsError], field: str | None
) -> None:
    rig.configure("full", cap_records=1, discard="reject")
    rig.append("full", 0)
    rig.append("a", 0)
    before = names(rig)
    with pytest.raises(error) as refused:
        rig.append_all({"a": [1], "c": [2], **bad})
    assert refused.value.detail.get("field") == field
    if field is not None:
        assert refused.value.message.startswith(field)
    assert names(rig) == before
    assert rig.payloads("a") == [0]
    topic = rig.store.state.by_name["a"]
    assert (topic.assigned_seq, topic.pending_count, topic.pending_bytes) == (1, 0, 0)
    assert rig.store.commit_log.pending_bytes == 0
    assert rig.landed({"a": [1], "c": [2]})["a"].first_seq == 2


def test_limits_count_over_all_topics(tmp_path: Path) -> None:
    with MultiRig(tmp_path / "data", max_batch_records=10, max_topics=4) as rig:
        with pytest.raises(BatchTooLarge) as refused:
            rig.append_all({"a": [0] * 6, "b": [0] * 5})
        assert (refused.value.detail["field"], refused.value.detail["max"]) == ("topics", 10)
        with pytest.raises(BatchTooLarge) as refused:
            rig.append_all({f"t{number}": [0] for number in range(MULTI_TOPICS_MAX + 1)})
        assert refused.value.detail["max"] == MULTI_TOPICS_MAX
        with pytest.raises(InvalidRequest):
            rig.append_all({})
        rig.append_all({"a": [0] * 5, "b": [0] * 5})
        with pytest.raises(Throttled) as throttled:
            rig.append_all({"a": [0], "c": [0], "d": [0], "e": [0]})
        assert throttled.value.detail["limit"] == "max_topics"
        assert names(rig) == ["a", "b"]
        rig.append_all({"c": [0], "d": [0]})


def test_a_quota_counts_what_all_topics_get(tmp_path: Path) -> None:
    with MultiRig(tmp_path / "data", max_total_bytes=1_000) as rig:
        with pytest.raises(Throttled) as refused:
            rig.append_all({"a": ["x" * 500], "b": ["x" * 500]})
        assert refused.value.detail["limit"] == "max_total_bytes"
        assert names(rig) == []
        rig.append_all({"a": ["x" * 300], "b": ["x" * 300]})
        # What the caps push out makes room.
        rig.configure("a", cap_records=1)
        rig.append_all({"a": ["y" * 500]})
        assert rig.payloads("a") == ["y" * 500]


def test_caps_are_enforced_in_every_topic(rig: MultiRig) -> None:
    rig.configure("a", cap_records=2)
    rig.configure("b", cap_records=1)
    rig.append_all({"a": [1, 2, 3], "b": [1, 2]})
    assert (rig.payloads("a"), rig.payloads("b")) == ([2, 3], [2])
    rig.crash()
    assert (rig.payloads("a"), rig.payloads("b")) == ([2, 3], [2])


# --- idempotency ---


def test_a_key_is_for_the_set_of_topics(rig: MultiRig) -> None:
    first = rig.append_all({"a": [1], "b": [2, 3]}, idempotency_key="k")
    assert not first.deduped
    rig.append("a", 8)
    again = rig.append_all({"b": ["other"], "a": ["body"]}, idempotency_key="k")
    assert again.deduped
    assert {name: (place.first_seq, place.last_seq, place.head_seq) for name, place in again.result.items()} == {
        "a": (1, 1, 2),
        "b": (1, 2, 2),
    }
    # Another set of topics is another write, and so is one topic by itself.
    assert not rig.append_all({"a": [4]}, idempotency_key="k").deduped
    assert not rig.append("a", 5, idempotency_key="k").deduped
    assert not rig.append_all({"a": [6], "b": [7], "c": [8]}, idempotency_key="k").deduped
    assert rig.payloads("a") == [1, 8, 4, 5, 6]


def test_a_key_on_its_way_is_waited_for(rig: MultiRig) -> None:
    rig.configure("a", durability="fsync")
    rig.append("b", 0)
    first = rig.begin_all({"a": [1], "b": [2]}, idempotency_key="k")
    second = rig.begin_all({"a": [1], "b": [2]}, idempotency_key="k")
    assert not second.done
    rig.finish(first)
    assert second.done
    assert second.deduped
    assert second.result == first.result


def test_a_key_lasts_for_the_shortest_window(rig: MultiRig) -> None:
    rig.configure("short", idempotency_window_ms=1_000)
    rig.configure("long", idempotency_window_ms=100_000)
    rig.append_all({"short": [1], "long": [1]}, idempotency_key="k")
    rig.clock.advance(1_000)
    assert rig.append_all({"short": [1], "long": [1]}, idempotency_key="k").deduped
    rig.clock.advance(1)
    assert not rig.append_all({"short": [2], "long": [2]}, idempotency_key="k").deduped
    rig.configure("off", idempotency_window_ms=0)
    for _ in range(2):
        assert not rig.append_all({"off": [1], "long": [1]}, idempotency_key="k").deduped


def test_a_full_topic_or_a_cap_never_blocks_a_repeated_write(tmp_path: Path) -> None:
    with MultiRig(tmp_path / "data", max_topics=2) as rig:
        rig.configure("a", cap_records=1, discard="reject")
        rig.append_all({"a": [1], "b": [1]}, idempotency_key="k")
        assert rig.append_all({"a": [1], "b": [1]}, idempotency_key="k").deduped


def test_a_topic_made_anew_knows_no_key(rig: MultiRig) -> None:
    rig.append_all({"a": [1], "b": [1]}, idempotency_key="k")
    rig.drop("b")
    assert not rig.append_all({"a": [2], "b": [2]}, idempotency_key="k").deduped


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_key_and_its_answer_outlive_a_crash(rig: MultiRig, checkpointed: bool) -> None:
    rig.configure("q", type="queue")
    rig.append("q", {"data": 0, "unique_key": "u"})
    write = {"q": {"records": [job(1), job(2, unique_key="u")]}, "p": {"records": [job(3)]}}
    first = rig.append_all(write, idempotency_key="k").result
    pending = {"q": {"records": [job(4, unique_key="u")]}}
    rig.append_all(pending, idempotency_key="all-pending")
    if checkpointed:
        rig.checkpoint()
    rig.crash()
    again = rig.append_all(write, idempotency_key="k")
    assert again.deduped
    assert {name: place.all_seqs() for name, place in again.result.items()} == {
        name: place.all_seqs() for name, place in first.items()
    }
    rig.delete("q", before_seq=100)
    kept = rig.append_all(pending, idempotency_key="all-pending")
    assert (kept.deduped, kept.result["q"].all_seqs()) == (True, [1])


# --- who sees it ---


def test_waiters_of_each_topic_are_woken_once_and_see_all_of_it(rig: MultiRig) -> None:
    seen: list[tuple[str, int, int]] = []
    for name in ("a", "b"):
        rig.append(name, 0)
    for name in ("a", "b"):
        topic = rig.store.state.by_name[name]

        def look(name: str = name) -> None:
            heads = [rig.store.state.by_name[each].head_seq for each in ("a", "b")]
            seen.append((name, heads[0], heads[1]))

        rig.store.waiters.add(topic, look)
    rig.append_all({"a": [1, 2], "b": [3]})
    assert sorted(seen) == [("a", 3, 2), ("b", 3, 2)]


def test_routers_forward_what_it_adds(rig: MultiRig) -> None:
    rig.append("a", 0)
    rig.finish(rig.store.routers.put("r", RouterRequest(source="a", dest="copy")))
    rig.append_all({"a": [1, 2], "b": [3]})
    while rig.work() or rig.store.forwarder.step() or rig.payloads("copy") != [1, 2]:
        rig.store.settle()
    rig.crash()
    assert rig.payloads("copy") == [1, 2]


def test_files_and_backups_have_it(rig: MultiRig, tmp_path: Path) -> None:
    rig.append_all({"a": [1, 2], "b": [3]})
    scan = Scan.open(str(rig.path))
    try:
        for name, payloads in (("a", 2), ("b", 1)):
            assert scan.topic(name).records == payloads
            (chunk,) = (piece for part in scan.plan(name) for piece in read_part(part))
            assert isinstance(chunk, Chunk)
            assert chunk.lines().count(b"\n") == payloads
    finally:
        scan.close()
    with MultiRig(unpacked(read_all(begin(rig)), tmp_path / "copy"), clock=rig.clock) as copy:
        assert (copy.payloads("a"), copy.payloads("b")) == ([1, 2], [3])


def test_parts_of_an_op_are_decoded_as_they_were() -> None:
    op = MultiAppended([KeyNoted(7, 5, b"k" * 16, [1, 2]), KeyNoted(8, 5, b"k" * 16, [3])])
    assert OPS.decode(op.encode()) == op
    assert op.topic_id == 7


def test_seqs_of_all_topics_are_asked_for_at_once(rig: MultiRig) -> None:
    topics = {name: [0] for name in ("a", "b", "c")}
    rig.append_all(topics)
    for name in topics:
        rig.store.state.by_name[name].ceiling = 1
    with pytest.raises(Busy) as busy:
        rig.store.multi_append.append(rig.request(topics))
    assert all(("seqs", rig.store.state.by_name[name].id) in rig.store.engine.in_flight.busy for name in topics)
    rig.finish(busy.value.change)
    assert [place.first_seq for place in rig.landed(topics).values()] == [2, 2, 2]


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_batches_that_are_large_together_are_joined_by_the_commit_thread(
    rig: MultiRig, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    joined_by: list[str] = []
    join = Batch.join

    def noting(batch: Batch) -> bytes:
        joined_by.append(threading.current_thread().name)
        return join(batch)

    monkeypatch.setattr(Batch, "join", noting)
    for name in ("a", "b", "c", "d"):
        rig.configure(name, durability=durability)
    small = {"a": [1, 2], "b": [3]}
    rig.append_all(small)
    assert set(joined_by) == {threading.current_thread().name}
    joined_by.clear()
    large = {name: [name * 1_000] * 1_500 for name in ("a", "b", "c", "d")}
    rig.append_all(large)
    assert joined_by == ["topics-commit"] * 4
    if durability == "disk":
        rig.crash()
    assert [rig.payloads(name) for name in ("a", "b", "c")] == [[1, 2, *large["a"]], [3, *large["b"]], large["c"]]

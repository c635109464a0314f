"""Recovery folds neighbouring appends of one record in as one op: the state must be that of each by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from tests.engine.folding import Folding, batch_of
from tests.engine.rig import Rig
from tests.examples import examples
from tests.storage.logs import replay
from topics.engine.core.appended import Appended, blob_start
from topics.engine.core.op_table import Op
from topics.engine.core.state import State
from topics.engine.log.block import BLOCK_BYTES
from topics.engine.log.part import TopicPart
from topics.engine.opening.composition import new_state
from topics.engine.opening.single_appends import ops_of
from topics.model.settings import Settings
from topics.storage.disk import Disk
from topics.storage.pack import Packs
from topics.storage.wal.log_scan import SplitBody
from topics.storage.wal.replay import LargeFrame

Step = tuple[Any, ...]
SIMPLE = (int, str, bytes, bytearray, float, bool, type(None))

names = st.sampled_from(["a", "b", "q"])
steps = st.one_of(
    st.tuples(st.just("singles"), names, st.integers(1, 30), st.sampled_from([1, 10, 200])),
    st.tuples(st.just("singles"), names, st.integers(1, 8), st.just(BLOCK_BYTES // 3)),
    st.tuples(st.just("in turn"), st.integers(1, 6)),
    st.tuples(st.just("batch"), names, st.integers(2, 4)),
    st.tuples(st.just("tagged"), names),
    st.tuples(st.just("keyed"), names),
    st.tuples(st.just("delete"), names, st.integers(0, 20)),
    st.tuples(st.just("cap"), st.sampled_from([0, 5])),
    st.tuples(st.just("wait"), st.sampled_from([1, 400, 3_000])),
)


def run(rig: Rig, step: Step) -> None:
    match step:
        case "singles", name, count, size:
            for number in range(count):
                rig.append(name, "x" * size + str(number))
        case "in turn", count:
            for number in range(count):
                rig.append("a", number)
                rig.append("b", number)
        case "batch", name, count:
            rig.append(name, *range(count))
        case "tagged", name:
            rig.append(name, {"data": 1, "tag": "t"})
        case "keyed", name:
            rig.append(name, 1, idempotency_key="k")
        case "delete", name, back:
            rig.delete(name, before_seq=max(0, rig.look(name).head_seq - back))
        case "cap", records:
            rig.configure("a", cap_records=records)
        case "wait", ms:
            rig.clock.advance(ms)
        case _:
            raise AssertionError(step)


def described(thing: Any) -> Any:
    """All that an object with slots holds, as far as it is data."""
    if isinstance(thing, SIMPLE):
        return bytes(thing) if isinstance(thing, bytearray) else thing
    if isinstance(thing, list | tuple):
        return [described(each) for each in thing]
    if hasattr(thing, "tobytes"):
        return thing.tobytes()
    slots = [slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ())]
    return {slot: described(getattr(thing, slot)) for slot in slots if slot in KEPT or hasattr(thing, "first_seq")}


KEPT = frozenset(
    (
        *("blocks", "bytes", "ceiling", "clock_ms", "count", "evict_floor", "head_seq", "holes", "last_write_ts"),
        *("logged_floor", "losses", "segment", "segment_bytes", "segment_events", "segment_ts", "volatile_to"),
        *("buf", "ends", "frozen", "metas", "node_names", "nodes", "tags", "tag_ends", "queue", "jobs", "fresh"),
        *("cursor", "ahead"),
    )
)


def folded(frames: list[tuple[int, bytes]], folder: str, limits: Settings, border: int, *, join: bool) -> State:
    state = new_state(limits, Packs(Disk(), folder, None))
    for position, op in ops_of(state, frames, border, join=join):
        if join and isinstance(op, Appended) and op.batch.count > 4:
            event("joined")
        state.apply(op, position)
    return state


@settings(max_examples=examples(40), deadline=None)
@given(talk=st.lists(steps, min_size=2, max_size=12), place=st.integers(0, 100))
@example([("singles", "a", 30, 1), ("wait", 3_000), ("singles", "a", 30, 1), ("delete", "a", 3)], 50)
@example([("singles", "q", 8, BLOCK_BYTES // 3), ("cap", 5), ("singles", "a", 30, 200)], 0)
def test_joined_appends_lead_to_the_state_of_each_by_itself(talk: list[Step], place: int) -> None:
    limits: dict[str, Any] = {"segment_max_events": 50, "segment_max_age_ms": 2_000, "wal_file_bytes": 1 << 22}
    with tempfile.TemporaryDirectory() as folder:
        with Rig(Path(folder), **limits) as rig:
            rig.configure("q", type="queue")
            for name in ("a", "b", "q"):
                rig.append(name, 0)
            for step in talk:
                run(rig, step)
        frames = list(replay(Disk(), Path(rig.store.wal.path)))
        border = frames[len(frames) * place // 101][0]
        one, other = (folded(frames, folder, Settings(**limits), border, join=join) for join in (True, False))
        assert {name: described(topic) for name, topic in one.by_name.items()} == {
            name: described(topic) for name, topic in other.by_name.items()
        }
        for total in ("count", "bytes", "unpacked_bytes", "cooling"):
            assert getattr(one, total) == getattr(other, total), total


def test_no_op_joins_what_is_on_both_sides_of_a_position(tmp_path: Path) -> None:
    with Rig(tmp_path, wal_file_bytes=1 << 20) as rig:
        for number in range(40):
            rig.append("t", number)
    frames = list(replay(Disk(), Path(rig.store.wal.path)))
    border = frames[20][0]
    state = new_state(Settings(), Packs(Disk(), str(tmp_path), None))
    positions = []
    for position, op in ops_of(state, frames, border, join=True):
        positions.append(position)
        state.apply(op, position)
    assert border in positions
    assert len(positions) < 10
    assert state.by_name["t"].head_seq == 40


# --- where a joined op ends ---


def joined(log: Folding, frames: list[bytes], border: int = 0, *, join: bool = True) -> list[tuple[int, int, int]]:
    """Frames at the positions 10, 20 and so on are folded: the position, first seq and count of each op."""
    found: list[tuple[int, int, int]] = []
    for position, op in ops_of(log.state, list(zip(range(10, 1000, 10), frames, strict=False)), border, join=join):
        assert isinstance(op, Appended)
        log.state.apply(op, position)
        found.append((position, op.batch.first_seq, op.batch.count))
    return found


def single(seq: int, payload: Any = 0, *, topic_id: int = 1, floor: int = 0, ts: int = 1, key: bytes = b"") -> bytes:
    return Appended(topic_id, floor, key, batch_of(seq, payload, ts=ts)).encode()


def new_folding(folder: Path, **limits: Any) -> Folding:
    log = Folding(folder, **limits)
    log.create(1, "t")
    log.create(2, "other")
    return log


SIX = [single(seq) for seq in range(1, 7)]


@pytest.mark.parametrize(
    ("border", "found"),
    [
        (0, [(10, 1, 1), (60, 2, 5)]),
        (20, [(10, 1, 1), (20, 2, 1), (60, 3, 4)]),
        (30, [(10, 1, 1), (30, 2, 2), (60, 4, 3)]),
        (35, [(10, 1, 1), (30, 2, 2), (60, 4, 3)]),
        (60, [(10, 1, 1), (60, 2, 5)]),
    ],
)
def test_an_op_joins_all_frames_up_to_the_border(
    tmp_path: Path, border: int, found: list[tuple[int, int, int]]
) -> None:
    assert joined(new_folding(tmp_path), SIX, border) == found


def test_a_repair_joins_nothing(tmp_path: Path) -> None:
    assert [count for _, _, count in joined(new_folding(tmp_path), SIX, join=False)] == [1] * 6


@pytest.mark.parametrize(
    ("frames", "counts"),
    [
        ([single(4, ts=1000)], [1, 3]),
        ([single(4, ts=1001), single(5, ts=1001), single(6, ts=1001)], [1, 2, 1, 2]),
        ([single(1, topic_id=2), single(4), single(5)], [1, 2, 1, 2]),
        ([single(4, key=b"k" * 16), single(5), single(6)], [1, 2, 1, 2]),
        ([single(4, floor=1), single(5)], [1, 4]),
        ([single(4, floor=2), single(5), single(6)], [1, 2, 1, 2]),
        ([single(4, {"data": 0, "tag": "t"}), single(5), single(6)], [1, 2, 1, 2]),
        ([Appended(1, 0, b"", batch_of(4, 1, 2)).encode(), single(6), single(7)], [1, 2, 2, 2]),
        ([single(5), single(6), single(7)], [1, 2, 1, 2]),
    ],
    ids=["in time", "too late", "other topic", "key", "floor", "higher floor", "tag", "two records", "seqs between"],
)
def test_an_op_ends_before_a_frame_that_is_not_like_the_others(
    tmp_path: Path, frames: list[bytes], counts: list[int]
) -> None:
    log = new_folding(tmp_path, segment_max_age_ms=1000)
    log.state.by_id[1].logged_floor = 1
    assert [count for _, _, count in joined(log, [*SIX[:3], *frames])] == counts


def test_an_op_ends_where_a_segment_is_full(tmp_path: Path) -> None:
    log = new_folding(tmp_path, segment_max_events=4)
    assert joined(log, SIX) == [(10, 1, 1), (40, 2, 3), (50, 5, 1), (60, 6, 1)]


@pytest.mark.parametrize(("more", "counts"), [(0, [1, 2]), (1, [1, 1, 1])])
def test_an_op_ends_where_a_block_is_full(tmp_path: Path, more: int, counts: list[int]) -> None:
    log = new_folding(tmp_path)
    room = BLOCK_BYTES - batch_of(1, 0).size
    large = "x" * (room // 2 - batch_of(2, "").size)
    rest = "x" * (room - batch_of(2, large).size - batch_of(3, "").size + more)
    assert [count for _, _, count in joined(log, [SIX[0], single(2, large), single(3, rest)])] == counts
    assert len(log.state.by_id[1].blocks) == 1 + more


def test_records_that_state_is_built_from_are_not_joined(tmp_path: Path) -> None:
    log = new_folding(tmp_path)
    log.state.by_id[1].content = TopicPart()
    assert len(joined(log, SIX)) == 6


def test_a_large_frame_is_one_op(tmp_path: Path) -> None:
    log = new_folding(tmp_path)
    for number, split in enumerate((False, True)):
        body = single(number + 1, "x" * 100)
        blob_at = blob_start(body, len(body))
        parts = SplitBody(body[:blob_at], body[blob_at:]) if split else body
        ((position, op),) = ops_of(log.state, LargeFrame(70, parts), 0, join=True)
        assert isinstance(op, Appended)
        assert (position, op.encode()) == (70, body)


def test_a_joined_op_has_the_floor_of_its_topic_and_the_time_of_its_last_record(tmp_path: Path) -> None:
    log = new_folding(tmp_path)
    frames = [single(1), single(2, ts=5), single(3, ts=7)]
    log.state.by_id[1].logged_floor = 1
    ops = [op for _, op in _folding(log, frames)]
    last = ops[-1]
    assert isinstance(last, Appended)
    assert (last.topic_id, last.floor, last.key, last.batch.ts) == (1, 1, b"", 7)


def _folding(log: Folding, frames: list[bytes]) -> Iterator[tuple[int, Op]]:
    for position, op in ops_of(log.state, list(enumerate(frames, 1)), 0, join=True):
        log.state.apply(op, position)
        yield position, op

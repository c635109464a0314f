"""Recovery folds neighbouring appends of one record in as one op: the state must be that of each by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from tests.engine.rig import Rig
from tests.examples import examples
from tests.storage.logs import replay
from topics.engine.core.appended import Appended
from topics.engine.core.state import State
from topics.engine.log.block import BLOCK_BYTES
from topics.engine.opening.composition import new_state
from topics.engine.opening.single_appends import ops_of
from topics.model.settings import Settings
from topics.storage.disk import Disk
from topics.storage.pack import Packs

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

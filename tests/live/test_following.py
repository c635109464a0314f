"""The engine's side of live delivery, driven by hand: shared frames, slices, strong readers, pacing, damage, cycles."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.rig import Rig
from topics.api.live.following import Follower
from topics.engine.live.feeds import Frame, FrameOptions, LiveFeeds, Subscription
from topics.engine.log.block import Block
from topics.engine.log.on_disk.cold import ColdMiss, Reader
from topics.engine.log.reading import View
from topics.engine.log.retention import Tombstone
from topics.model.errors import DamagedData, TopicsError


class Recorder(Follower):
    """A client that remembers what it got, and says itself whether it keeps up."""

    def __init__(self, live: LiveFeeds, reads: Reader) -> None:
        super().__init__(live, reads)
        self.seen: list[tuple[Any, ...]] = []
        self.frames: list[Frame] = []

    @property
    def _has_room(self) -> bool:
        return not self._blocked

    def _write_records(self, subscription: Subscription, frame: Frame) -> int:
        self.frames.append(frame)
        self.seen.append(("record", subscription.name, frame.from_seq, frame.to_seq))
        return len(frame.records)

    def _write_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: str) -> None:
        self.seen.append(("tombstone", subscription.name, reason, subscription.seq))

    def _write_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        self.seen.append(("caught-up", subscription.name, head_seq))

    def _write_gone(self, subscription: Subscription) -> None:
        self.seen.append(("gone", subscription.name))

    def _write_paced(self, subscription: Subscription) -> None:
        self.seen.append(("paced", subscription.name))

    def _write_unreadable(self, subscription: Subscription, error: TopicsError) -> None:
        self.seen.append(("unreadable", subscription.name, error.code))


class Stage:
    """A store, its live readers, and ticks that are run by the test."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.live = LiveFeeds(rig.engine, rig.clock, lambda: None)
        self.options = self.options_of()

    def options_of(self, limit: int = 100, *, strong: bool = False) -> FrameOptions:
        return self.live.frame_options(View(), limit, 1 << 20, strong=strong)

    def reader(self, topic: str, seq: int = 0, options: FrameOptions | None = None) -> Recorder:
        reader = Recorder(self.live, self.rig.store.reader)
        reader.follow(self.rig.engine.state.by_name[topic], seq, options or self.options)
        reader.catch_up()
        return reader

    def tick(self, times: int = 20) -> None:
        for _ in range(times):
            self.live.run()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Rig(tmp_path / "data") as rig:
        yield Stage(rig)


def test_a_frame_is_rendered_once_for_all_who_stand_at_its_position(stage: Stage) -> None:
    stage.rig.append("t", 1)
    readers = [stage.reader("t") for _ in range(50)]
    stage.tick()
    stage.rig.append("t", 2)
    stage.tick()
    assert len({id(reader.frames[1]) for reader in readers}) == 1
    assert all(reader.seen[-1] == ("record", "t", 1, 2) for reader in readers)


def test_frames_that_all_have_seen_are_let_go(stage: Stage) -> None:
    stage.rig.append("t", 1)
    readers = [stage.reader("t") for _ in range(2)]
    stage.tick()
    assert len(stage.live.sharing) == 1
    stage.live.weigh(pressed=False)
    assert not stage.live.sharing
    assert all(reader.seen[-1] == ("caught-up", "t", 1) for reader in readers)


def test_other_views_get_frames_of_their_own(stage: Stage) -> None:
    stage.rig.append("t", 1, 2)
    plain, small = stage.reader("t"), stage.reader("t", options=stage.options_of(1))
    stage.tick()
    assert plain.seen == [("record", "t", 0, 2), ("caught-up", "t", 2)]
    assert small.seen == [("record", "t", 0, 1), ("record", "t", 1, 2), ("caught-up", "t", 2)]


def test_readers_with_a_node_each_share_what_is_not_their_own(stage: Stage) -> None:
    stage.rig.append("t", 0)

    def of(node: str) -> Recorder:
        return stage.reader("t", options=stage.live.frame_options(View(frozenset((node,))), 100, 1 << 20, strong=False))

    readers = [of(f"n{number}") for number in range(20)]
    ours = of('"nö"')
    stage.tick()
    stage.rig.append("t", 1, node='"nö"')
    stage.tick()
    assert len({id(reader.frames[1]) for reader in readers}) == 1
    assert ours.seen[-1] == ("caught-up", "t", 1)
    assert next(iter(ours.subscriptions.values())).seq == 2
    stage.rig.append("t", 2, node="n3")
    stage.tick()
    assert ours.seen[-1] == ("record", "t", 2, 3)
    assert readers[3].seen[-1] == ("record", "t", 1, 2)


def test_a_stalled_reader_gets_one_larger_frame_when_it_goes_on(stage: Stage) -> None:
    stage.rig.append("t", 0)
    reader = stage.reader("t")
    stage.tick()
    reader.stall()
    for number in range(5):
        stage.rig.append("t", number)
        stage.tick()
    assert len(reader.seen) == 2
    reader.resume(was_long=False)
    stage.tick()
    assert reader.seen[2:] == [("record", "t", 1, 6), ("caught-up", "t", 6)]


def test_a_gap_is_the_readers_own_only_after_a_long_stall(stage: Stage) -> None:
    for was_long, reason in ((False, "cap"), (True, "from_seq_too_old")):
        name = f"t-{reason}"
        stage.rig.append(name, 0, config={"cap_records": 2})
        reader = stage.reader(name)
        stage.tick()
        reader.stall()
        stage.rig.append(name, *range(5))
        stage.tick()
        reader.resume(was_long=was_long)
        stage.tick()
        assert reader.seen[2] == ("tombstone", name, reason, 4)


def test_a_strong_reader_of_a_disk_topic_waits_for_the_sync(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Callable[[], None]] = []
    monkeypatch.setattr(stage.rig.store.commit_log, "when_synced", synced.append)
    stage.rig.append("t", 1)
    strong, eventual = stage.reader("t", options=stage.options_of(strong=True)), stage.reader("t")
    stage.tick()
    assert eventual.seen[0] == ("record", "t", 0, 1)
    assert strong.seen == [("caught-up", "t", 0)]
    synced.pop()()
    stage.tick()
    assert strong.seen[1:] == [("record", "t", 0, 1)]
    stage.rig.append("t", 2)
    stage.rig.append("t", 3)
    stage.tick()
    first, second = synced
    first()
    stage.tick()
    assert strong.seen[-1] == ("record", "t", 1, 2)
    second()
    stage.tick()
    assert strong.seen[-1] == ("record", "t", 2, 3)


def test_paced_topics_are_told_once_and_shown_when_the_pressure_has_gone(stage: Stage) -> None:
    stage.rig.append("low", 1)
    stage.rig.append("high", 1)
    reader = stage.reader("low")
    reader.follow(stage.rig.engine.state.by_name["high"], 0, stage.options)
    stage.tick()
    shed = True
    stage.live.is_shed = lambda topic: shed and topic.name == "low"
    stage.live.weigh(pressed=True)
    stage.rig.append("low", 2)
    stage.rig.append("high", 2)
    stage.tick()
    assert reader.seen[-2:] == [("paced", "low"), ("record", "high", 1, 2)]
    shed = False
    stage.live.weigh(pressed=False)
    stage.tick()
    assert reader.seen[-1] == ("record", "low", 1, 2)


def test_a_body_that_several_wait_for_is_read_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.rig.append("t", 1)
    store = stage.rig.store
    extent: Any = (1, 2, 3)
    reads: list[object] = []

    def miss(block: Block) -> None:
        raise ColdMiss(block, extent)

    def read(miss: ColdMiss) -> bytes:
        reads.append(miss.extent)
        return b""

    monkeypatch.setattr(store.state.cold, "load", miss)
    monkeypatch.setattr(store.state.cold, "read", read)
    readers = [stage.reader("t") for _ in range(3)]
    stage.tick()
    while store.worker.pending:
        store.settle()
    monkeypatch.undo()
    assert reads == [extent]
    stage.tick()
    assert all(reader.seen[0] == ("record", "t", 0, 1) for reader in readers)


def test_a_log_that_cannot_be_read_ends_its_topic_with_a_word_and_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.rig.append("bad", 1)
    stage.rig.append("good", 1)
    bad = stage.rig.engine.state.by_name["bad"].blocks[0]
    load = stage.rig.engine.state.cold.load

    def damaged(block: Block) -> None:
        if block is bad:
            raise DamagedData("seqs 1 to 1 cannot be read")
        load(block)

    monkeypatch.setattr(stage.rig.engine.state.cold, "load", damaged)
    reader = stage.reader("bad")
    reader.follow(stage.rig.engine.state.by_name["good"], 0, stage.options)
    stage.tick()
    assert reader.seen == [("unreadable", "bad", "internal"), ("record", "good", 0, 1), ("caught-up", "good", 1)]
    assert list(reader.subscriptions) == ["good"]


def test_rounds_over_many_readers_are_cut_into_slices(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.rig.append("t", 0)
    readers = [stage.reader("t") for _ in range(200)]
    stage.tick(400)
    stage.rig.append("t", 1)
    # A clock that moves on by a whole slice whenever it is asked.
    times = iter(range(0, 1_000_000, 10))
    monkeypatch.setattr(stage.rig.clock, "monotonic_ms", lambda: float(next(times)))
    stage.live.run()
    served = sum(reader.seen[-1] == ("record", "t", 1, 2) for reader in readers)
    assert 0 < served < 200
    stage.rig.append("t", 2)
    stage.tick(50)
    assert {reader.seen[-1][3] for reader in readers} == {3}
    assert sum(reader.seen[-1] == ("record", "t", 1, 3) for reader in readers) == 200 - served


def come_and_go(stage: Stage) -> None:
    reader = stage.reader("t")
    stage.tick(2)
    reader.unfollow_all()


def test_readers_that_leave_leave_nothing_behind(stage: Stage) -> None:
    stage.rig.append("t", 1)
    stage.reader("t").unfollow_all()
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            come_and_go(stage)
        assert gc.collect() < 10
    finally:
        gc.enable()
    assert stage.rig.engine.state.by_name["t"].waiters is None

"""Records that are on disk only: reading them back, the window that stays in memory, the cold directory, damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import Rig
from topics.engine.log.on_disk.cold import ColdMiss
from topics.model.errors import DamagedData
from topics.model.requests.records import DiffRequest


def resident(rig: Rig, topic: str) -> int:
    """How many records of a topic have their payload in memory."""
    return sum(block.count for block in rig.store.state.by_name[topic].blocks if block.body is not None)


def packs_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.rglob("*.pack"))


def test_sealed_records_outside_the_window_leave_memory_and_come_back_the_same(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for number in range(20):
        rig.append("a", {"data": number, "tag": f"t{number}"})
    before = rig.records("a", include_tags=True)
    rig.checkpoint()
    assert resident(rig, "a") == 0
    assert rig.records("a", include_tags=True) == before


def test_a_read_tells_how_many_sealed_segments_came_from_disk(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for number in range(10):
        rig.append("a", number)
    assert rig.diff("a").cold_segments == 0
    rig.checkpoint()
    assert rig.diff("a").cold_segments == 5
    assert rig.diff("a", 1, limit=3).cold_segments == 2
    rig.append("a", "hot")
    assert rig.diff("a", 10).cold_segments == 0
    rig.reopen()
    assert rig.diff("a", 2, limit=2).cold_segments == 1


@pytest.mark.parametrize("shrink", [False, True])
def test_a_block_that_was_read_back_leaves_the_cache_with_its_topic_or_is_rewritten(
    open_rig: OpenRig, shrink: bool
) -> None:
    rig = open_rig(**COLD)
    for number in range(10):
        rig.append("a", number)
    rig.checkpoint()
    rig.records("a")
    block = rig.store.state.by_name["a"].blocks[0]
    assert block.cold
    if shrink:
        rig.store.state.shrink_block(block)
    else:
        rig.delete("a", before_seq=5)
    assert not block.cold


def test_the_newest_segments_stay_in_memory(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=2, hot_retain_segments=3)
    for number in range(20):
        rig.append("a", number)
    rig.checkpoint()
    assert 6 <= resident(rig, "a") <= 8
    assert rig.diff("a", 14).cold_segments == 0
    assert rig.diff("a", 0).cold_segments > 0


def test_memory_is_bounded_over_all_topics(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=10, hot_retain_segments=1000, hot_retain_bytes=50_000)
    for topic in "abcdef":
        for _ in range(10):
            rig.append(topic, *["x" * 400] * 10)
        rig.checkpoint()
    kept = sum(
        len(block.body.buf)
        for topic in rig.store.state.by_id.values()
        for block in topic.blocks
        if block.body is not None
    )
    assert kept <= 50_000
    assert [len(rig.seqs(topic)) for topic in "abcdef"] == [100] * 6


@pytest.mark.parametrize(
    ("settings", "segments"),
    [
        ({"segment_max_events": 3}, 4),
        ({"segment_max_bytes": 123}, 4),
        ({"segment_max_age_ms": 30}, 4),
        ({}, 1),
    ],
)
def test_a_segment_ends_by_events_by_bytes_and_by_age(
    open_rig: OpenRig, settings: dict[str, int], segments: int
) -> None:
    rig = open_rig(hot_retain_segments=0, hot_retain_bytes=0, **settings)
    for _ in range(12):
        rig.append("a", 1)
        rig.clock.advance(10)
    rig.checkpoint()
    rig.reopen()
    assert rig.diff("a").cold_segments == segments


def test_packs_move_to_the_cold_directory_and_are_read_there(open_rig: OpenRig, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    rig = open_rig(cold_dir=str(cold), **COLD)
    for number in range(10):
        rig.append("a", {"data": number, "tag": f"t{number}"})
    before = rig.records("a")
    for _ in range(2):
        rig.checkpoint()
    assert packs_in(cold)
    assert not set(packs_in(cold)) & set(packs_in(rig.path))
    assert rig.records("a") == before
    rig.reopen()
    assert rig.records("a") == before
    assert rig.delete("a", match="t3") == 1
    rig.reopen()
    assert [record["data"] for record in rig.records("a")] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_what_is_dropped_leaves_the_cold_directory_too(open_rig: OpenRig, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    rig = open_rig(cold_dir=str(cold), **COLD)
    rig.append("a", *range(10))
    for _ in range(2):
        rig.checkpoint()
    rig.drop("a")
    for _ in range(3):
        rig.append("b", 1)
        rig.checkpoint()
    rig.drop("b")
    for _ in range(3):
        rig.configure("c", ttl_ms=rig.clock.now_ms() % 7 + 1)
        rig.clock.advance(1)
        rig.checkpoint()
    assert packs_in(cold) == []


def test_without_a_cold_directory_packs_stay_where_they_are(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    rig.append("a", *range(10))
    for _ in range(2):
        rig.checkpoint()
    assert packs_in(rig.path / "shard-00" / "packs")


def test_a_read_that_would_block_says_what_to_read_and_runs_again(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    rig.append("a", 1, 2)
    rig.reopen()
    with pytest.raises(ColdMiss) as caught:
        rig.engine.diff("a", DiffRequest())
    rig.fetch(caught.value)
    assert rig.engine.diff("a", DiffRequest()).count == 2


def test_a_filtered_read_over_more_cold_blocks_than_fit_the_cache_ends(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig(**COLD)
    for _ in range(20):
        rig.append("a", {"data": "x" * 1000, "node": "n"})
    rig.append("a", {"data": "found"})
    rig.checkpoint()
    monkeypatch.setattr(rig.store.packs, "read_nowait", lambda extent: None)
    monkeypatch.setattr(rig.store.state.cold, "_cache_bytes", 3000)
    cursor, found, turns = 0, 0, 0
    while cursor < 21:
        turns += 1
        assert turns < 200, "the read goes round in circles"
        try:
            diff = rig.engine.diff("a", DiffRequest(from_seq=cursor, node="n"))
        except ColdMiss as miss:
            rig.fetch(miss)
            continue
        cursor, found = diff.next_from_seq, found + diff.count
    assert found == 1


def test_the_cache_of_cold_bodies_is_bounded(open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = open_rig(**COLD)
    for _ in range(40):
        rig.append("a", "x" * 1000)
    rig.checkpoint()
    monkeypatch.setattr(rig.store.state.cold, "_cache_bytes", 5000)
    assert len(rig.seqs("a")) == 40
    assert resident(rig, "a") <= 6


def test_appending_after_everything_went_cold_goes_on_in_a_new_block(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=1000, hot_retain_segments=0, hot_retain_bytes=0)
    for number in range(5):
        rig.append("a", number)
        rig.checkpoint()
    assert [record["data"] for record in rig.records("a")] == [0, 1, 2, 3, 4]
    rig.reopen()
    rig.append("a", 5)
    assert [record["data"] for record in rig.records("a")] == [0, 1, 2, 3, 4, 5]


# --- damage ---


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def the_pack(rig: Rig) -> Path:
    (pack,) = rig.path.rglob("*.pack")
    return pack


def test_a_damaged_extent_fails_the_read_by_naming_the_range_and_nothing_else(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for _ in range(10):
        rig.append("a", "x" * 100)
    rig.append("b", "fine")
    rig.close()
    block = rig.store.state.by_name["a"].blocks[2]
    assert block.extent is not None
    flip(the_pack(rig), block.extent.offset + 90)
    rig.open()
    with pytest.raises(DamagedData) as caught:
        rig.diff("a", 4)
    assert (caught.value.detail["from_seq"], caught.value.detail["to_seq"]) == (5, 6)
    assert "5 to 6" in caught.value.message
    assert rig.seqs("b") == [1]
    assert rig.seqs("a", 6) == [7, 8, 9, 10]
    assert rig.diff("a", 0, limit=4).count == 4
    assert rig.append("a", "goes on").first_seq == 11
    assert rig.delete("a", before_seq=7) == 6
    assert rig.seqs("a") == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("keep_bytes", [0, 64, 200])
def test_a_pack_cut_short_fails_the_reads_it_cannot_answer(open_rig: OpenRig, keep_bytes: int) -> None:
    rig = open_rig(**COLD)
    for _ in range(10):
        rig.append("a", "x" * 100)
    rig.close()
    path = the_pack(rig)
    path.write_bytes(path.read_bytes()[:keep_bytes])
    rig.open()
    with pytest.raises(DamagedData) as caught:
        rig.seqs("a")
    assert {"from_seq", "to_seq"} <= set(caught.value.detail)
    assert rig.append("b", 1).first_seq == 1


def test_a_missing_pack_fails_reads_and_never_shows_nothing(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    rig.append("a", *range(4))
    rig.close()
    the_pack(rig).unlink()
    rig.open()
    with pytest.raises(DamagedData) as caught:
        rig.diff("a")
    assert {"from_seq", "to_seq"} <= set(caught.value.detail)
    assert rig.look("a").count == 4


def test_every_flipped_bit_of_a_pack_is_noticed_or_harmless(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for number in range(4):
        rig.append("a", {"data": number, "tag": "t", "node": "n", "meta": {"m": number}})
    before = rig.records("a", include_tags=True)
    rig.close()
    whole = the_pack(rig).read_bytes()
    for offset in range(0, len(whole), 11):
        flip(the_pack(rig), offset)
        rig.open()
        try:
            assert rig.records("a", include_tags=True) == before
        except DamagedData:
            pass
        rig.abandon()
        rig.store.directory.close()
        the_pack(rig).write_bytes(whole)


def test_a_checkpoint_over_a_damaged_pack_harms_nothing_else(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for number in range(20):
        rig.append("a", {"data": "x" * 200, "tag": f"t{number}"})
    rig.append("b", "fine")
    rig.checkpoint()
    for number in range(18):
        rig.delete("a", match=f"t{number}")
    path = the_pack(rig)
    rig.store.packs._open.close()
    path.write_bytes(path.read_bytes()[:500])
    for _ in range(3):
        rig.append("b", "more")
        rig.checkpoint()
    assert rig.append("b", "goes on").first_seq == 5
    rig.crash()
    assert rig.seqs("b", 1) == [2, 3, 4, 5]

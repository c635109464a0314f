"""Deleting by seq and by tag: point in time, silent, for good, wherever the records are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders import delete_decoder
from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import Rig
from tests.engine.test_append import request
from tests.faults import FaultyDisk
from topics.engine.log.block import build_filter, in_filter
from topics.engine.log.body import Body
from topics.model.errors import InvalidRequest, TopicNotFound
from topics.model.requests.batch import render
from topics.model.requests.records import TagMatch, append_decoder, decode_body, parse_match

TAGS = ["x", "x:1", "x:2", "y", "x*", "", None, "xé", "X", "x:1"]


@pytest.fixture(params=["growing", "frozen", "sealed", "cold", "recovered", "restarted"])
def tagged(request: pytest.FixtureRequest, open_rig: OpenRig) -> Rig:
    """Ten records with the tags above, at every stage of a record's life."""
    settings: dict[str, Any] = {"growing": {}, "frozen": {"segment_max_events": 3}, "sealed": {}}.get(
        request.param, COLD
    )
    rig = open_rig(**settings)
    for number, tag in enumerate(TAGS, 1):
        rig.append("a", {"data": number} if tag is None else {"data": number, "tag": tag})
    match request.param:
        case "sealed" | "cold":
            rig.checkpoint()
        case "recovered":
            rig.crash()
        case "restarted":
            rig.reopen()
    return rig


def everything_but(*seqs: int) -> list[int]:
    return [seq for seq in range(1, 11) if seq not in seqs]


# --- what dies ---


@pytest.mark.parametrize(
    ("fields", "dead"),
    [
        ({"before_seq": 4}, (1, 2, 3)),
        ({"before_seq": 1}, ()),
        ({"before_seq": 0}, ()),
        ({"before_seq": 11}, tuple(range(1, 11))),
        ({"before_seq": 2**64 - 1}, tuple(range(1, 11))),
        ({"match": "x"}, (1,)),
        ({"match": "x:1"}, (2, 10)),
        ({"match": ["tag", "Eq", "x:1"]}, (2, 10)),
        ({"match": ["tag", "Eq", ""]}, (6,)),
        ({"match": ""}, (6,)),
        ({"match": "x*"}, (5,)),
        ({"match": ["tag", "Eq", "x*"]}, (5,)),
        ({"match": ["tag", "Glob", "x*"]}, (1, 2, 3, 5, 8, 10)),
        ({"match": ["tag", "Glob", "x:*"]}, (2, 3, 10)),
        ({"match": ["tag", "Glob", "x:1*"]}, (2, 10)),
        ({"match": ["tag", "Glob", "*"]}, (1, 2, 3, 4, 5, 6, 8, 9, 10)),
        ({"match": ["tag", "Glob", "xé*"]}, (8,)),
        ({"match": "none"}, ()),
        ({"match": ["tag", "Glob", "none*"]}, ()),
        ({"match": "x:1", "before_seq": 10}, (2,)),
        ({"match": ["tag", "Glob", "x*"], "before_seq": 4}, (1, 2, 3)),
        ({"match": ["tag", "Glob", "*"], "before_seq": 1}, ()),
    ],
)
def test_a_delete_removes_exactly_what_it_names(tagged: Rig, fields: dict[str, Any], dead: tuple[int, ...]) -> None:
    left = everything_but(*dead)
    assert tagged.delete("a", **fields) == len(dead)
    assert tagged.seqs("a") == left
    state = tagged.look("a")
    assert (state.count, state.head_seq) == (len(left), 10)
    assert state.earliest_seq == (left[0] if left else 11)
    assert tagged.diff("a").tombstone is None
    assert tagged.delete("a", **fields) == 0
    tagged.crash()
    assert tagged.seqs("a") == left
    tagged.checkpoint()
    tagged.checkpoint()
    tagged.reopen()
    assert tagged.seqs("a") == left
    assert tagged.look("a").bytes == state.bytes


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"match": None},
        {"before_seq": None},
        {"before_seq": -1},
        {"before_seq": "5"},
        {"before_seq": 1.5},
        {"before_seq": 2**64},
        {"match": 5},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Eq", "a", "b"]},
        {"match": ["node", "Eq", "a"]},
        {"match": ["tag", "eq", "a"]},
        {"match": ["tag", "Regex", "a"]},
        {"match": ["tag", "Eq", 5]},
        {"match": ["tag", "Glob", "a"]},
        {"match": ["tag", "Glob", ""]},
        {"match": ["tag", "Glob", "a*b"]},
        {"match": ["tag", "Glob", "a**"]},
        {"match": ["tag", "Glob", "*a*"]},
    ],
)
def test_a_wish_that_names_nothing_clear_is_refused(rig: Rig, fields: dict[str, Any]) -> None:
    rig.append("a", {"data": 1, "tag": "a"})
    with pytest.raises(InvalidRequest):
        rig.delete("a", **fields)
    assert rig.seqs("a") == [1]


def test_a_glob_knows_no_other_wildcards(rig: Rig) -> None:
    for tag in ("a?b", "axb", "[a]b"):
        rig.append("a", {"data": tag, "tag": tag})
    assert rig.delete("a", match=["tag", "Glob", "a?*"]) == 1
    assert rig.delete("a", match=["tag", "Glob", "[a]*"]) == 1
    assert [record["data"] for record in rig.records("a")] == ["axb"]


def test_nothing_is_deleted_where_there_is_no_topic(rig: Rig) -> None:
    with pytest.raises(TopicNotFound):
        rig.delete("a", before_seq=5)
    assert rig.engine.list().topics == []


def test_untagged_records_never_match(rig: Rig) -> None:
    rig.append("a", 1, 2, 3)
    assert rig.delete("a", match=["tag", "Glob", "*"]) == 0
    assert rig.delete("a", match="") == 0


# --- when ---


def test_what_comes_after_a_delete_is_not_touched_by_it(rig: Rig) -> None:
    rig.append("a", {"data": 1, "tag": "t"})
    rig.delete("a", match="t", before_seq=100)
    rig.append("a", {"data": 2, "tag": "t"})
    assert rig.seqs("a") == [2]
    rig.crash()
    assert rig.seqs("a") == [2]
    rig.append("a", {"data": 3, "tag": "t"})
    assert rig.seqs("a") == [2, 3]


def test_what_is_still_on_its_way_does_not_exist_yet(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    rig.append("a", {"data": 1, "tag": "t"})
    gate = disk.hold("fdatasync", path=".log")
    change = rig.engine.append("a", request(2))
    rig.store.commit_log.flush()
    gate.open()
    assert rig.delete("a", before_seq=100) == 1
    rig.finish(change)
    assert rig.seqs("a") == [2]


def test_a_delete_on_an_fsync_topic_is_seen_when_it_is_durable(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    rig.append("a", 1, 2)
    gate = disk.hold("fdatasync", path=".log")
    finding = rig.engine.delete("a", decode_body(delete_decoder, b'{"before_seq":2}'))
    with pytest.raises(StopIteration) as end:
        next(finding)
    rig.store.commit_log.flush()
    assert rig.seqs("a") == [1, 2]
    gate.open()
    assert rig.finish(end.value.value).result[0] == 1
    assert rig.seqs("a") == [2]


def test_two_deletes_of_one_tick_count_a_record_once(rig: Rig) -> None:
    rig.append("a", *range(5))
    body = decode_body(delete_decoder, b'{"before_seq":4}')
    change = []
    for _ in range(2):
        with pytest.raises(StopIteration) as end:
            next(rig.engine.delete("a", body))
        change.append(end.value.value)
    rig.store.commit_log.flush()
    assert [one.result[0] for one in change] == [3, 0]
    assert rig.look("a").count == 2


def test_expired_records_are_not_counted_as_deleted(open_rig: OpenRig) -> None:
    for settings in ({}, {"segment_max_events": 100, "hot_retain_segments": 0, "hot_retain_bytes": 0}):
        rig = open_rig(**settings)
        rig.configure("a", ttl_ms=50)
        rig.append("a", 1, 2, 3)
        rig.clock.advance(40)
        rig.append("a", 4, 5)
        rig.checkpoint()
        rig.clock.advance(20)
        assert rig.delete("a", before_seq=100) == 2
        tombstone = rig.diff("a", 0).tombstone
        assert tombstone is not None
        assert tombstone.reason == "ttl"


def test_a_delete_of_evicted_records_is_nothing(rig: Rig) -> None:
    rig.configure("a", cap_records=2)
    rig.append("a", *range(5))
    assert rig.delete("a", before_seq=4) == 0
    assert rig.delete("a", before_seq=5) == 1


# --- on disk ---


def test_deleting_sealed_records_survives_checkpoints_that_trim_the_log(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=4, hot_retain_segments=0, hot_retain_bytes=0, wal_file_bytes=4096)
    for number in range(40):
        rig.append("a", {"data": "x" * 100, "tag": f"t{number % 4}"})
    rig.checkpoint()
    assert rig.delete("a", match="t1") == 10
    left = [seq for seq in range(1, 41) if seq % 4 != 2]
    for _ in range(3):
        rig.append("b", "y" * 3000)
        rig.checkpoint()
        assert rig.seqs("a") == left
    rig.crash()
    assert rig.seqs("a") == left
    rig.reopen()
    assert rig.seqs("a") == left
    assert rig.delete("a", match="t1") == 0


def test_space_on_disk_comes_back_when_everything_in_it_is_deleted(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=10, hot_retain_segments=0, hot_retain_bytes=0, wal_file_bytes=8192)

    def bytes_on_disk() -> int:
        return sum(path.stat().st_size for path in (rig.path / "shard-00" / "packs").glob("*.pack"))

    for _ in range(20):
        rig.append("a", *["x" * 100] * 10)
    rig.checkpoint()
    full = bytes_on_disk()
    assert full > 20_000
    rig.delete("a", before_seq=201)
    for _ in range(3):
        rig.append("b", 1)
        rig.checkpoint()
    assert bytes_on_disk() < full / 10


def test_space_on_disk_comes_back_when_most_is_deleted_and_the_rest_stays_readable(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=10, hot_retain_segments=0, hot_retain_bytes=0, wal_file_bytes=8192)
    for number in range(200):
        rig.append("a", {"data": f"{number}" * 50, "tag": f"t{number % 20}"})
    before = rig.records("a")[::20]
    rig.checkpoint()
    (pack,) = rig.store.packs.numbers()
    for number in range(1, 20):
        rig.delete("a", match=f"t{number}")
    for _ in range(4):
        rig.append("b", 1)
        rig.checkpoint()
        assert rig.records("a") == before
    assert pack not in rig.store.packs.numbers()
    rig.reopen()
    assert rig.records("a") == before
    assert rig.delete("a", match="t0") == 10


def test_a_mostly_dead_block_keeps_its_records_tags_nodes_and_metas(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=20)
    for number in range(20):
        rig.append(
            "a", {"data": number, "tag": f"t{number % 5}:{number}", "node": f"n{number % 2}", "meta": {"m": number}}
        )
    rig.append("a", "tail")
    for number in range(1, 5):
        rig.delete("a", match=["tag", "Glob", f"t{number}:*"])
    before = rig.records("a", include_tags=True)
    assert [record["$seq"] for record in before] == [1, 6, 11, 16, 21]
    for _ in range(2):
        rig.checkpoint()
        assert rig.records("a", include_tags=True) == before
        assert rig.seqs("a", 1, limit=1) == [6, 11, 16, 21]
        assert rig.seqs("a", 7) == [11, 16, 21]
        assert rig.seqs("a", node="n1") == [1, 11, 21]
    rig.reopen()
    assert rig.records("a", include_tags=True) == before
    assert rig.delete("a", match=["tag", "Glob", "t0:*"], before_seq=12) == 3
    assert rig.delete("a", before_seq=17) == 1
    rig.crash()
    assert rig.seqs("a") == [21]


def test_a_cold_block_that_cannot_hold_a_tag_is_not_read(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for number in range(20):
        rig.append("a", {"data": number, "tag": f"tag-{number}"})
    rig.checkpoint()
    rig.reopen()
    finding = rig.engine.delete("a", decode_body(delete_decoder, msgspec.json.encode({"match": "tag-7"})))
    read = []
    try:
        while True:
            read.append(next(finding))
            rig.fetch(read[-1])
    except StopIteration as end:
        rig.finish(end.value)
    assert 7 not in [record["data"] for record in rig.records("a")]
    assert len(read) <= 3, "one block holds it; a filter errs rarely"


def test_a_cold_topic_without_tags_is_not_read_at_all(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    rig.append("a", *range(10))
    rig.reopen()
    finding = rig.engine.delete("a", decode_body(delete_decoder, b'{"match":["tag","Glob","*"]}'))
    with pytest.raises(StopIteration):
        next(finding)


def test_a_delete_whose_topic_goes_while_it_reads_finds_no_topic(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for _ in range(4):
        rig.append("a", {"data": 1, "tag": "t"})
    rig.reopen()
    finding = rig.engine.delete("a", decode_body(delete_decoder, b'{"match":"t"}'))
    miss = next(finding)
    rig.drop("a")
    rig.append("a", {"data": "new", "tag": "t"})
    rig.fetch(miss)
    with pytest.raises(TopicNotFound):
        next(finding)
    assert rig.seqs("a") == [1]


def test_records_that_come_while_a_delete_reads_are_not_its_business(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for _ in range(4):
        rig.append("a", {"data": 1, "tag": "t"})
    rig.reopen()
    finding = rig.engine.delete("a", decode_body(delete_decoder, b'{"match":"t"}'))
    rig.fetch(next(finding))
    rig.append("a", {"data": "late", "tag": "t"})
    died = 0
    try:
        while True:
            rig.fetch(next(finding))
    except StopIteration as end:
        died = rig.finish(end.value).result[0]
    assert died == 4
    assert rig.seqs("a") == [5]


# --- finding tags ---


def test_a_match_is_by_bytes() -> None:
    assert parse_match("é") == TagMatch("é".encode(), prefix=False)
    assert parse_match(["tag", "Glob", "é*"]) == TagMatch("é".encode(), prefix=True)
    assert not parse_match("e\u0301")("é".encode())


@given(
    tags=st.lists(st.none() | st.text("ab*:", max_size=3), min_size=1, max_size=30),
    pattern=st.text("ab*:", max_size=2),
    prefix=st.booleans(),
    frozen=st.booleans(),
)
def test_an_index_finds_what_a_scan_finds(tags: list[str | None], pattern: str, prefix: bool, frozen: bool) -> None:
    body = Body()
    for seq, tag in enumerate(tags, 1):
        record = {"data": 1} if tag is None else {"data": 1, "tag": tag}
        appended = msgspec.json.encode({"records": [record]})
        body.extend(render(decode_body(append_decoder, appended), seq, 0, bare=tag is None))
    match = TagMatch(pattern.encode(), prefix)
    if not frozen:
        body.find(match)
    else:
        body.freeze()
    wanted = [number for number, tag in enumerate(tags) if tag is not None and match(tag.encode())]
    assert list(body.find(match)) == wanted


@given(tags=st.lists(st.binary(max_size=8), max_size=200))
def test_a_filter_never_denies_what_it_holds(tags: list[bytes]) -> None:
    data = build_filter(tags)
    assert all(in_filter(data, tag) for tag in tags)


def test_a_filter_errs_rarely() -> None:
    data = build_filter([b"in%d" % number for number in range(1000)])
    assert sum(in_filter(data, b"out%d" % number) for number in range(1000)) < 50

"""Bodies on disk: every damaged byte is found, and records that are reported as good are good."""

from __future__ import annotations

import random
import struct
from array import array

import pytest
from xxhash import xxh3_64_intdigest

from topics.engine.log.body import Body
from topics.engine.log.on_disk.extent import decode_body, encode_body, salvage
from topics.model.errors import DamagedData
from topics.model.requests.batch import Batch

RECORDS = 60


def record(seq: int) -> bytes:
    return b'{"$seq":%d,"$ts":1,"data":"%b"},' % (seq, b"x" * (seq * 7 % 90))


def body_of(*columns: str) -> Body:
    body = Body()
    for seq in range(1, RECORDS + 1):
        blob = record(seq)
        batch = Batch(seq, 1, 1, blob, array("I", (len(blob),)))
        if "nodes" in columns and seq % 3:
            batch.node_names, batch.nodes = [f"node-{seq % 5}"], array("I", (1,))
        if "tags" in columns and seq % 4:
            tag = b"\1tag-%d" % (seq % 7)
            batch.tags, batch.tag_ends = tag, array("I", (len(tag),))
        if "metas" in columns:
            batch.metas = array("I", (seq % 2,))
        body.extend(batch)
    body.freeze()
    return body


def facts(body: Body, number: int) -> tuple[object, ...]:
    """All that a reader can see of a record."""
    node = body.nodes[number] if body.nodes is not None else 0
    return (
        bytes(body.record(number)),
        body.node_names[node - 1] if node else None,
        body.tag_at(number),
        body.metas[number] if body.metas is not None else 0,
    )


def all_facts(body: Body) -> list[tuple[object, ...]]:
    return [facts(body, number) for number in range(body.count())]


MASKS = (0x01, 0x10, 0xFF)
COLUMNS = [(), ("nodes",), ("tags",), ("metas",), ("nodes", "tags", "metas")]
SEQS = array("Q", range(1, 2 * RECORDS, 2))


@pytest.mark.parametrize("seqs", [None, SEQS], ids=["dense", "sparse"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_body_comes_back_as_it_was(columns: tuple[str, ...], seqs: array[int] | None) -> None:
    body = body_of(*columns)
    again = decode_body(b"".join(encode_body(body, 1, seqs)), 1)
    assert all_facts(again) == all_facts(body)
    assert again.tag_order == body.tag_order


@pytest.mark.parametrize("seqs", [None, SEQS], ids=["dense", "sparse"])
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("each", [pytest.param("every mask", marks=pytest.mark.slow), "a third of the bytes"])
def test_whatever_byte_is_flipped_no_record_is_wrong_and_few_are_lost(
    columns: tuple[str, ...], seqs: array[int] | None, each: str
) -> None:
    body = body_of(*columns)
    wanted = all_facts(body)
    whole = b"".join(encode_body(body, 1, seqs))
    lost_most = 0
    every = each == "every mask"
    for offset in range(0, len(whole), 1 if every else len(MASKS)):
        for mask in MASKS if every else MASKS[offset % 9 // 3 :][:1]:
            changed = bytearray(whole)
            changed[offset] ^= mask
            data = bytes(changed)
            try:
                assert all_facts(decode_body(data, 1)) == wanted, "served in silence"
            except DamagedData:
                left = salvage(data, 1, RECORDS)
                if left is None:
                    assert "nodes" in columns, "only the names of the nodes are of all records"
                    continue
                good = [number for number in range(RECORDS) if not left.hit[number]]
                assert [facts(left.body, number) for number in good] == [wanted[number] for number in good]
                lost_most = max(lost_most, RECORDS - len(good))
    assert 0 < lost_most < 40


@pytest.mark.parametrize("seed", range(30))
def test_much_damage_leaves_no_wrong_record(seed: int) -> None:
    rng = random.Random(seed)
    body = body_of("tags", "metas")
    wanted = all_facts(body)
    changed = bytearray(b"".join(encode_body(body, 1, None)))
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(changed))
        stop = min(start + rng.choice((1, 16, 512)), len(changed))
        changed[start:stop] = rng.randbytes(stop - start)
    data = bytes(changed)
    with pytest.raises(DamagedData):
        decode_body(data, 1)
    left = salvage(data, 1, RECORDS)
    if left is not None:
        good = [number for number in range(RECORDS) if not left.hit[number]]
        assert [facts(left.body, number) for number in good] == [wanted[number] for number in good]


def test_a_cut_extent_is_damage_and_nothing_is_told_of_it() -> None:
    whole = b"".join(encode_body(body_of("tags"), 1, None))
    for length in range(len(whole)):
        with pytest.raises(DamagedData):
            decode_body(whole[:length], 1)
        assert salvage(whole[:length], 1, RECORDS) is None


def test_an_extent_of_version_0_1_is_read_and_cannot_be_salvaged() -> None:
    """It ends with the records, and its flags do not speak of sums."""
    body = body_of("tags", "metas")
    old = bytearray(b"".join(encode_body(body, 1, None)[:3]))
    old[4] &= ~16
    old[8:16] = struct.pack("<Q", xxh3_64_intdigest(bytes(old[16:])))
    assert all_facts(decode_body(bytes(old), 1)) == all_facts(body)
    for offset in range(len(old)):
        changed = bytearray(old)
        changed[offset] ^= 0x08
        with pytest.raises(DamagedData):
            decode_body(bytes(changed), 1)
        assert salvage(bytes(changed), 1, RECORDS) is None


def test_the_sums_take_about_a_hundredth() -> None:
    body = Body()
    for seq in range(2000):
        blob = record(seq) + b" " * 100
        body.extend(Batch(seq, 1, 1, blob, array("I", (len(blob),))))
    extent = encode_body(body, 0, None)
    assert sum(map(len, extent[3:])) < 0.011 * sum(map(len, extent[:3]))

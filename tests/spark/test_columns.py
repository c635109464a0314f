"""Columns of rendered records: whatever is in them, lines and blocks give what decoding each record gives."""

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.spark.batches import record_batch
from topics.engine.log.block import Block
from topics.engine.log.reading import View, render_run
from topics.engine.log.run_columns import ALL, block_columns
from topics.model.requests.batch import check_batch, render
from topics.model.requests.records import append_decoder
from topics.model.settings import Settings
from topics_spark.payloads import columns
from topics_spark.payloads.columns import SCHEMA, Lines

TS = 1_748_450_001_000
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [',"data":', '"},{"$seq":1', "\n"]
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["meta", "data", "$seq"]), inner),
    max_leaves=5,
)


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Usually alike, sometimes not."""
    node = draw(st.none() | st.just("eu-1") | st.just('q","data":'))
    varied = draw(st.booleans())
    made: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 12))):
        record: dict[str, Any] = {"data": draw(DATA), "node": node}
        if varied:
            record["node"] = draw(st.sampled_from([None, "a", "ünode"]))
            record["tag"] = draw(st.none() | TEXTS)
            if draw(st.booleans()):
                record["meta"] = draw(st.dictionaries(st.sampled_from(["meta", "k"]), DATA, max_size=2))
        made.append(record)
    return made


def block_of(wished: list[dict[str, Any]], first_seq: int = 1, ts: int = TS) -> Block:
    request = append_decoder.decode(json.dumps({"records": wished}).encode())
    return Block.whole(render(request, first_seq, ts, bare=check_batch(request, Settings())), 0)


def line_columns(chunk: bytes, wants: frozenset[str] = ALL) -> Lines:
    """Cut by Arrow; the same comes of decoding, as for a few lines."""
    few = columns.line_columns(chunk, wants)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "DECODED_BYTES", 0)
        cut = columns.line_columns(chunk, wants)
    assert (few.records, few.others, few.columns.keys()) == (cut.records, cut.others, cut.columns.keys())
    assert all(few.columns[name].equals(cut.columns[name]) for name in wants)
    return cut


def expected(block: Block) -> list[dict[str, Any]]:
    """Each live record decoded by itself."""
    body = block.body
    assert body is not None
    rows: list[dict[str, Any]] = []
    for first, stop in block.alive_runs(0, block.count):
        for number in range(first, stop):
            raw = msgspec.json.decode(bytes(body.record(number)), type=dict[str, msgspec.Raw])
            tag = body.tag_at(number)
            rows.append(
                {
                    "topic": "t",
                    "seq": int(bytes(raw["$seq"])),
                    "ts": int(bytes(raw["$ts"])),
                    "node": json.loads(bytes(raw["$node"])) if "$node" in raw else None,
                    "tag": None if tag is None else tag.decode(),
                    "data": bytes(raw["data"]).decode(),
                    "meta": bytes(raw["meta"]).decode() if "meta" in raw else None,
                }
            )
    return rows


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == SCHEMA
    found = pa.Table.from_batches(batches, SCHEMA)
    ms = found["ts"].cast(pa.int64()).to_pylist()
    return [{**row, "ts": us // 1000} for row, us in zip(found.drop(["ts"]).to_pylist(), ms, strict=True)]


def block_rows(block: Block, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
    found = block_columns(block, start, block.count if stop is None else stop)
    return rows([record_batch("t", columns, count) for columns, count in found])


@given(wished=records(), first_seq=st.sampled_from([1, 5, 95, 10**6 - 3]), ts=st.sampled_from([TS, 5, 10**13 - 1]))
@settings(max_examples=examples(40))
def test_a_block_gives_the_columns_of_its_records(wished: list[dict[str, Any]], first_seq: int, ts: int) -> None:
    block = block_of(wished, first_seq, ts)
    assert block_rows(block) == expected(block)


@given(wished=records(), first_seq=st.sampled_from([1, 95]), data=st.data())
@settings(max_examples=examples(40))
def test_dead_records_and_those_outside_a_range_are_left_out(
    wished: list[dict[str, Any]], first_seq: int, data: st.DataObject
) -> None:
    block = block_of(wished, first_seq)
    whole = {row["seq"]: row for row in expected(block)}
    for number in data.draw(st.sets(st.integers(0, block.count - 1))):
        block.kill(number, number + 1)
    start = data.draw(st.integers(0, block.count))
    stop = data.draw(st.integers(start, block.count))
    wanted = {block.seq_at(number) for first, end in block.alive_runs(start, stop) for number in range(first, end)}
    assert block_rows(block, start, stop) == [whole[seq] for seq in sorted(wanted)]


@given(wished=records(), first_seq=st.sampled_from([1, 95]), ts=st.sampled_from([TS, 5, 10**13]))
@settings(max_examples=examples(40))
def test_lines_give_the_columns_of_their_records_and_hand_the_others_on(
    wished: list[dict[str, Any]], first_seq: int, ts: int
) -> None:
    block = block_of(wished, first_seq, ts)
    assert block.body is not None
    for number in range(0, block.count, 5):
        block.kill(number, number + 1)
    chunk = b"".join(bytes(block.body.lines(*run)) for run in block.alive_runs(0, block.count))
    wanted = [{**row, "tag": None} for row in expected(block)]
    gap, end = b'{"tombstone":{"gap_from":1}}', b'{"end":{"records":2}}'
    for text, others in ((chunk, []), (gap + b"\n" + chunk + end + b"\n", [gap, end])):
        if text:
            found = line_columns(text)
            assert found.others == others
            assert found.records == len(wanted)
            assert rows([record_batch("t", found.columns, found.records)]) == wanted
            some = line_columns(text, frozenset(("ts", "data"))).columns
            assert all(some[name].equals(found.columns[name]) for name in ("ts", "data"))


@given(wished=records(), tagged=st.sampled_from(["", "same", "all", "odd"]), first_seq=st.sampled_from([1, 95]))
@settings(max_examples=examples(60))
def test_tags_of_lines_are_columns_however_they_differ(
    wished: list[dict[str, Any]], tagged: str, first_seq: int
) -> None:
    for number, record in enumerate(wished):
        record.pop("meta", None)
        if tagged == "odd" and number % 2 == 0:
            record.pop("tag", None)
        elif tagged:
            record["tag"] = "t" if tagged == "same" else f"t{number}"
    block = block_of(wished, first_seq)
    assert block.body is not None
    chunk = render_run(block.body, 0, block.count, View(tags=True, lines=True))
    found = line_columns(chunk)
    assert rows([record_batch("t", found.columns, found.records)]) == expected(block)


def test_lines_without_payloads_have_no_data() -> None:
    found = line_columns(b'{"$seq":1,"$ts":%d}\n{"$seq":2,"$ts":%d,"meta":{"a":",\\"data\\":"}}\n' % (TS, TS))
    assert found.columns["data"].to_pylist() == [None, None]
    assert found.columns["meta"].to_pylist() == [None, '{"a":",\\"data\\":"}']


def test_tags_that_an_export_shows_are_a_column() -> None:
    lines = b'{"$seq":1,"$ts":%d,"$tag":"a\\nb","data":1}\n{"$seq":2,"$ts":%d,"data":[2],"meta":{}}\n' % (TS, TS + 1)
    found = line_columns(lines)
    assert found.columns["tag"].to_pylist() == ["a\nb", None]
    assert found.columns["meta"].to_pylist() == [None, "{}"]


@pytest.mark.parametrize("wants", [frozenset[str](), frozenset(("data",)), frozenset(("seq", "ts"))])
def test_only_the_columns_that_are_wanted_are_made(wants: frozenset[str]) -> None:
    block = block_of([{"data": 1}, {"data": 2}])
    ((columns, count),) = block_columns(block, 0, 2, wants)
    assert (columns.keys(), count) == (wants, 2)
    assert block.body is not None
    found = line_columns(bytes(block.body.lines(0, 2)), wants)
    assert (found.columns.keys(), found.records) == (wants, 2)
    assert wants <= ALL

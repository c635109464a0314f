"""Export: chunks of whole lines, however they arrive, and nothing lost or doubled when the connection breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.client.scripted import ScriptedServer, Seen, answer
from topics.client import BadAnswer, ConnectionFailed, Outgoing, TopicNotFound
from topics.client.exporting import Cutter, last_seq


def test_everything_comes_in_chunks_of_whole_lines(client: Any, topic: str) -> None:
    client.append_many(topic, [Outgoing({"n": number, "pad": "x" * 50}, tag="t") for number in range(2_000)])
    export = client.export(topic, chunk_bytes=20_000)
    chunks = list(export)
    assert len(chunks) > 1
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    records = [json.loads(line) for chunk in chunks for line in chunk.splitlines()]
    assert [record["$seq"] for record in records] == list(range(1, 2_001))
    assert records[7]["data"]["n"] == 7
    assert records[7]["$tag"] == "t"
    assert (export.end.records, export.end.next_from_seq, export.from_seq) == (2_000, 2_000, 2_000)


def test_a_part_is_exported_as_it_was_asked_for(client: Any, topic: str) -> None:
    client.append_many(topic, [Outgoing(n, tag="t", meta={"m": 1}, node=f"n{n % 3}") for n in range(1, 10)])
    export = client.export(topic, 2, 8, include_tags=False, include_meta=False, node=["n0", "n1"])
    (chunk,) = list(export)
    lines = [json.loads(line) for line in chunk.splitlines()]
    assert [line["$seq"] for line in lines] == [5, 8]
    assert "$tag" not in lines[0]
    assert "meta" not in lines[0]
    assert export.end.next_from_seq == 8


def test_an_empty_topic_and_one_that_is_not_there(client: Any, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        list(client.export(topic))
    client.create(topic)
    export = client.export(topic)
    assert list(export) == []
    assert export.end.records == 0


def test_a_gap_is_a_line_in_its_place(client: Any, topic: str) -> None:
    client.create(topic, cap_records=1)
    client.append_many(topic, [1, 2, 3])
    first, second = b"".join(client.export(topic)).splitlines()
    assert json.loads(first)["tombstone"]["gap_to"] == 2
    assert json.loads(second)["$seq"] == 3


def lines(first: int, last: int, size: int = 40) -> bytes:
    return b"".join(b'{"$seq":%d,"$ts":1,"data":"%b"}\n' % (seq, b"x" * size) for seq in range(first, last + 1))


def end(next_from_seq: int) -> bytes:
    return b'{"end":{"next_from_seq":%d,"head_seq":9,"earliest_seq":1,"epoch":1,"records":9}}\n' % next_from_seq


def test_a_cut_export_continues_after_what_was_handed_out(connect: Connect) -> None:
    """The first answer ends in the middle of a line, though its length fits; the second is cut short."""
    large = 20_000
    first = answer(200, lines(1, 30, large) + b'{"$seq":31,"$t')

    def second(seen: Seen) -> bytes:
        return answer(200, lines(after(seen) + 1, 45, large), length=10_000_000)

    def third(seen: Seen) -> bytes:
        return answer(200, lines(after(seen) + 1, 60, large) + end(60))

    with ScriptedServer(first, second, third) as server:
        export = connect(server.url).export("t", to_seq=60, chunk_bytes=400)
        got = [json.loads(line)["$seq"] for chunk in export for line in chunk.splitlines()]
    assert got == list(range(1, 61))
    assert export.end.next_from_seq == 60
    assert all("to_seq=60" in seen.path for seen in server.seen)
    assert 0 < after(server.seen[1]) < after(server.seen[2])


def after(seen: Seen) -> int:
    return int(seen.path.partition("from_seq=")[2].partition("&")[0])


def test_an_export_that_is_always_cut_is_given_up(connect: Connect) -> None:
    with ScriptedServer(answer(200, lines(1, 3))) as server:
        with pytest.raises(ConnectionFailed, match="last line is missing"):
            list(connect(server.url, retries_max=2).export("t"))
        assert len(server.seen) == 3


def test_a_page_of_html_is_no_export(connect: Connect) -> None:
    page = answer(200, b"<html>\n" * 100, Content_Type="text/html")
    with ScriptedServer(page) as server, pytest.raises((BadAnswer, ConnectionFailed)):
        list(connect(server.url, retries_max=1).export("t", chunk_bytes=100))


@pytest.mark.parametrize("piece", [1, 7, 64, 1_000, 100_000])
@pytest.mark.parametrize("chunk", [1, 50, 1_000, 100_000])
def test_pieces_of_any_size_become_whole_lines(piece: int, chunk: int) -> None:
    whole = lines(1, 40)
    stream = whole + end(40)
    cutter = Cutter(chunk)
    chunks: list[bytes] = []
    for at in range(0, len(stream), piece):
        cut = cutter.feed(stream[at : at + piece])
        if cut is not None:
            chunks.append(cut)
    last = cutter.finish(chunks.pop() if chunks else None)
    assert b"".join([*chunks, last]) == whole
    assert all(part.endswith(b"\n") for part in [*chunks, last] if part)
    assert cutter.end is not None
    assert cutter.end.next_from_seq == 40


def test_the_last_line_tells_where_to_go_on() -> None:
    assert last_seq(lines(1, 5)) == 5
    assert last_seq(b'{"tombstone":{"gap_from":1,"gap_to":12}}\n') == 12
    with pytest.raises(BadAnswer, match=r"no \$seq"):
        last_seq(b"{}\n")

"""The event stream of one topic: where it starts, what an event holds, and that its id is enough to continue."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.live.rig import Event, EventSource, Watcher, watching
from tests.serving import Client, serving
from topics import testing
from topics.api.auth import authenticator_of
from topics.model.settings import Settings
from topics.server import Server
from topics.storage.disk import Disk
from topics.testing import Engine
from topics.testing.exchange import Exchange, request_of
from topics.testing.loop import HandLoop

EVENTS = [(b"Accept", b"text/event-stream")]


def opened(
    watcher: Watcher, topic: str, query: str = "", last_id: str | None = None, key: str | None = None
) -> EventSource:
    stream = watcher.open(f"/v0/topics/{topic}/stream{query}", last_id, key)
    assert stream.status == 200
    assert stream.next() == Event("retry", 2000)
    return stream


def records(stream: EventSource, count: int) -> list[Any]:
    events = [stream.event() for _ in range(count)]
    assert {event.event for event in events} <= {"message"}
    assert [event.id.partition("~")[0] for event in events if event.id] == [str(event.data["$seq"]) for event in events]
    return [event.data["data"] for event in events]


# --- the start ---


@pytest.mark.parametrize(
    ("query", "last_id", "start", "first"),
    [
        ("", None, "0", 1),
        ("?from_seq=0", None, "0", 1),
        ("?from_seq=2", None, "2", 3),
        ("?tail=false&from_seq=2", None, "2", 3),
        ("?tail=true", None, "4", 5),
        ("?tail=true", "1", "1", 2),
        ("?from_seq=3", "1", "1", 2),
        ("?from_ts=0", "3", "3", 4),
        ("?from_ts=0", None, "0", 1),
    ],
)
def test_a_stream_opens_with_the_id_of_its_start(
    watcher: Watcher, client: Client, topic: str, query: str, last_id: str | None, start: str, first: int
) -> None:
    client.append(topic, 1, 2, 3, 4)
    stream = opened(watcher, topic, query, last_id)
    assert stream.event() == Event("id", None, start)
    client.append(topic, 5)
    assert records(stream, 6 - first) == list(range(first, 6))


def test_a_time_starts_with_the_first_record_at_or_after_it(watcher: Watcher, client: Client, topic: str) -> None:
    for number in range(20):
        client.append(topic, number)
    shown = client.diff(topic)["records"]
    ts = shown[10]["$ts"]
    stream = opened(watcher, topic, f"?from_ts={ts}")
    expected = [record["data"] for record in shown if record["$ts"] >= ts]
    stream.event()
    assert records(stream, len(expected)) == expected
    late = opened(watcher, topic, f"?from_ts={shown[-1]['$ts'] + 10**9}")
    assert late.event() == Event("id", None, "20")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?from_seq=1&tail=true", "tail"),
        ("?from_seq=1&from_ts=5", "from_ts"),
        ("?tail=true&from_ts=5", "from_ts"),
        ("?from_seq=1&from_seq=2", "from_seq"),
        ("?from_seq=-1", "from_seq"),
        ("?from_seq=", "from_seq"),
        ("?from_seq=x", "from_seq"),
        ("?from_seq=1~", "from_seq"),
        ("?from_seq=18446744073709551616", "from_seq"),
        ("?from_ts=-5", "from_ts"),
        ("?from_ts=now", "from_ts"),
        ("?tail=maybe", "tail"),
        ("?tag=" + "x" * 257, "tag"),
        ("?node=" + "x" * 129, "node"),
    ],
)
def test_a_start_that_cannot_be_meant_is_400(client: Client, topic: str, query: str, field: str) -> None:
    client.append(topic, 1)
    reply = client.get(f"/v0/topics/{topic}/stream{query}", headers={"Accept": "text/event-stream"})
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", field)


@pytest.mark.parametrize("last_id", ["x", "-1", "1~", "~1", "1~2~3", "1.5", "eyJ0Ijo1fQ", "9" * 21])
def test_an_id_that_no_stream_gave_out_is_400(client: Client, topic: str, last_id: str) -> None:
    client.append(topic, 1)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last_id}
    reply = client.get(f"/v0/topics/{topic}/stream", headers=headers)
    assert (reply.status, reply.detail["field"]) == (400, "Last-Event-ID")


def test_no_topic_is_404(client: Client, topic: str) -> None:
    reply = client.get(f"/v0/topics/{topic}/stream", headers={"Accept": "text/event-stream"})
    assert (reply.status, reply.code, reply.detail) == (404, "topic_not_found", {"topic": topic})
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize(
    "accept", [None, "*/*", "text/*", "application/json", "text/html,*/*;q=0.8", "text/event-stream;q=0"]
)
def test_another_accept_is_406(client: Client, topic: str, accept: str | None) -> None:
    client.append(topic, 1)
    headers = {} if accept is None else {"Accept": accept}
    reply = client.get(f"/v0/topics/{topic}/stream", headers=headers)
    assert (reply.status, reply.code) == (406, "not_acceptable")


def test_head_opens_no_stream(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    before = watcher.metric("topics_sse_connections")
    reply = client.request("HEAD", f"/v0/topics/{topic}/stream", headers={"Accept": "text/event-stream"})
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert watcher.metric("topics_sse_connections") == before


# --- what an event holds ---


def test_an_event_is_a_record_as_diff_renders_it(watcher: Watcher, client: Client, topic: str) -> None:
    payload = b'{"a" :\n1, "$seq":9, "b":"{\\"$seq\\":1"}'
    lines = b'"id: 5\\ndata: x\\r\\n"'
    body = b'{"records":[{"data":%b,"meta":{"m":[1]},"node":"n\\"x","tag":"t"},{"data":%b},{"data":null}]}'
    body %= (payload, lines)
    headers = {"Content-Type": "application/json"}
    assert client.post(f"/v0/topics/{topic}", body=body, headers=headers).status == 201
    rendered = client.post(f"/v0/topics/{topic}/diff", {}).body.replace(b"\n", b" ")
    stream = opened(watcher, topic)
    stream.event()
    assert len(client.diff(topic)["records"]) == 3
    raw = b""
    while raw.count(b"\n\n") < 3:
        while b"\n\n" not in stream._text:
            stream._take_chunk()
        raw, stream._text = raw + stream._text, b""
    shown = re.findall(rb"id: (\d+)\ndata: (.*)\n\n", raw)
    assert [seq for seq, _ in shown] == [b"1", b"2", b"3"]
    assert b",".join(data for _, data in shown) in rendered


def test_only_records_of_the_tag_and_of_no_such_node(watcher: Watcher, client: Client, topic: str) -> None:
    def put(number: int, tag: str | None, node: str | None) -> None:
        record = {"data": number, "tag": tag, "node": node}
        assert client.post(f"/v0/topics/{topic}", {"records": [record]}).status in (200, 201)

    put(1, "a", "me")
    put(2, "a", "you")
    put(3, "ab", "you")
    put(4, None, None)
    put(5, "a", None)
    by_tag, by_node = opened(watcher, topic, "?tag=a"), opened(watcher, topic, "?node=me&node=us")
    by_both = opened(watcher, topic, "?tag=a&node=me")
    put(6, "b", "us")
    put(7, "a", "us")
    put(8, "a", "you")
    for stream in (by_tag, by_node, by_both):
        stream.event()
    assert records(by_tag, 5) == [1, 2, 5, 7, 8]
    assert records(by_node, 5) == [2, 3, 4, 5, 8]
    assert records(by_both, 4) == [2, 5, 7, 8]


def test_a_tag_is_found_in_cold_segments_as_in_hot_ones(tmp_path: Path) -> None:
    cold = {"hot_retain_segments": 0, "hot_retain_bytes": 0, "segment_max_events": 500, "checkpoint_bytes": 1}
    with serving(tmp_path, **cold) as server, watching(server) as watcher:
        for start in range(0, 6000, 500):
            numbers = range(start, start + 500)
            batch = [{"data": number, "tag": f"t{number % 7}" if number % 1999 else "rare"} for number in numbers]
            watcher.client.post("/v0/topics/t", {"records": batch})
        stream = opened(watcher, "t", "?tag=rare")
        stream.event()
        assert records(stream, 4) == [0, 1999, 3998, 5997]


def test_many_records_arrive_whole_and_in_order(watcher: Watcher, client: Client, topic: str) -> None:
    for start in range(0, 5000, 1000):
        client.append(topic, *range(start, start + 1000))
    stream = opened(watcher, topic)
    stream.event()
    assert records(stream, 5000) == list(range(5000))


# --- losses ---


def test_a_gap_is_a_tombstone_that_moves_the_id(watcher: Watcher, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    client.append(topic, 1, 2, 3, 4, 5)
    stream = opened(watcher, topic, last_id="1")
    assert stream.event() == Event("id", None, "1")
    tombstone = stream.event()
    assert (tombstone.event, tombstone.id) == ("tombstone", "3")
    assert tombstone.data["topic"] == topic
    assert (tombstone.data["reason"], tombstone.data["gap_from"], tombstone.data["gap_to"]) == (
        "from_seq_too_old",
        2,
        3,
    )
    assert records(stream, 2) == [4, 5]


def test_a_deleted_topic_ends_the_stream(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    stream = opened(watcher, topic)
    stream.event()
    records(stream, 2)
    client.delete(f"/v0/topics/{topic}")
    gone = stream.event()
    assert (gone.event, gone.id, gone.data) == (
        "topic-deleted",
        "2",
        {"topic": topic, "head_seq": 2, "reason": "deleted"},
    )
    with pytest.raises(EOFError):
        stream.next()


def test_ids_tell_a_recreated_topic_from_the_first_one(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, "old", "old", "old")
    stream = opened(watcher, topic)
    stream.event()
    records(stream, 3)
    first_id = stream.last_id
    assert first_id == "3"
    client.delete(f"/v0/topics/{topic}")
    client.append(topic, "new", "new", "new", "new")
    epoch = client.state(topic)["epoch"]
    again = opened(watcher, topic, last_id=first_id)
    assert again.event() == Event("id", None, "3")
    tombstone = again.event()
    assert (tombstone.event, tombstone.id, tombstone.data["reason"]) == ("tombstone", f"0~{epoch}", "recreated")
    assert records(again, 4) == ["new"] * 4
    assert again.last_id == f"4~{epoch}"
    client.append(topic, "newer")
    for query, last_id in ((f"?from_seq=4~{epoch}", None), ("?tail=true", f"4~{epoch}")):
        third = opened(watcher, topic, query, last_id)
        assert third.event() == Event("id", None, f"4~{epoch}")
        assert records(third, 1) == ["newer"]
    # A number of one's own is a seq of the topic that is there.
    assert opened(watcher, topic, "?from_seq=4").event() == Event("id", None, f"4~{epoch}")
    # A third topic of the name: the id of the second one is none of its own, though the seq is.
    client.delete(f"/v0/topics/{topic}")
    client.append(topic, 1, 2, 3, 4, 5, 6)
    fourth = opened(watcher, topic, last_id=f"4~{epoch}")
    assert fourth.event() == Event("id", None, f"4~{epoch}")
    assert fourth.event().data["reason"] == "recreated"
    assert records(fourth, 6) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("stop", ["terminate", "kill"])
def test_a_restart_remembers_which_names_were_deleted(tmp_path: Path, stop: str) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.append("gone", 1)
        client.append("kept", 1)
        assert client.delete("/v0/topics/gone").status == 200
        getattr(server, stop)()
    with serving(tmp_path) as server:
        getattr(server, stop)()
    with serving(tmp_path) as server, watching(server) as watcher:
        watcher.client.append("gone", 1)
        watcher.client.append("fresh", 1)
        epoch = watcher.client.state("gone")["epoch"]
        assert opened(watcher, "gone").event().id == f"0~{epoch}"
        assert opened(watcher, "fresh").event().id == opened(watcher, "kept").event().id == "0"


# --- caps ---


def test_it_counts_as_a_stream(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="one:read,two", max_sse_connections=2, max_sse_connections_per_key=1) as server:
        server.key = "two"
        with watching(server) as watcher:
            watcher.client.append("t", 1)
            first = opened(watcher, "t", key="one")
            reply = server.client("one").get("/v0/topics/t/stream", headers={"Accept": "text/event-stream"})
            assert (reply.status, reply.detail["limit"]) == (429, "max_sse_connections_per_key")
            opened(watcher, "t", "?token=two")
            first.close()


# --- time, by hand ---


@pytest.fixture
def engine() -> Iterator[Engine]:
    with testing.engine() as engine:
        yield engine


def test_left_out_records_move_the_id_with_the_next_heartbeat(engine: Engine) -> None:
    client = engine.client()
    client.append("t", 0, node="me")
    exchange, _ = engine.begin("GET", b"/v0/topics/t/stream?node=me", EVENTS, b"")
    assert exchange.take() == b"retry: 2000\n\nid: 0\n\n"
    client.append_many("t", list(range(10)), node="me")
    assert exchange.take() == b""
    engine.advance(15_500)
    assert re.fullmatch(rb"id: 11\n\n: hb \d+\n\n", exchange.take())
    engine.advance(15_500)
    assert re.fullmatch(rb": hb \d+\n\n", exchange.take())


@pytest.mark.parametrize("draining", [False, True])
def test_a_server_that_is_not_serving_sends_an_event_source_away_to_come_again(tmp_path: Path, draining: bool) -> None:
    settings = Settings(data_dir=str(tmp_path))
    clock: Any = SimpleNamespace(now_ms=lambda: 0, monotonic_ms=lambda: 0.0)
    loop = HandLoop(clock)
    server = Server(settings, authenticator_of(settings), loop, Disk(), clock=clock)
    if draining:
        for _ in server.store.opening():
            pass
        server.take_requests()
        server._lifecycle.drain()
    exchange = Exchange(loop.call_soon)
    server.accept(request_of(exchange, "GET", b"/v0/topics/t/stream", EVENTS, b""))
    loop.run()
    assert (exchange.status, exchange.ended) == (200, True)
    retry, error, _ = exchange.take().split(b"\n\n")
    assert retry == b"retry: 2000"
    event, data = error.split(b"\n")
    assert (event, json.loads(data.removeprefix(b"data: "))["code"]) == (b"event: error", 503)
    if draining:
        server.put_away()

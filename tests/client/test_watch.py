"""Watching: many topics, where to begin, and going on after everything that can happen to a stream."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.client.scripted import ScriptedServer, Seen, answer
from tests.serving import ServerProcess, free_port
from topics.client import (
    Arrived,
    AsyncClient,
    AsyncWatch,
    BadAnswer,
    CaughtUp,
    InvalidRequest,
    Tombstone,
    TopicDeleted,
    TopicFailed,
    TopicNotFound,
)
from topics.client.sse import EventParser


def taken(watch: Any, count: int) -> list[tuple[str, Any]]:
    """Topic and payload of the next `count` records."""
    found: list[tuple[str, Any]] = []
    for event in watch:
        found += [(event.topic, record.data) for record in event.records]
        if len(found) >= count:
            return found
    raise AssertionError(f"the stream ended after {found}")


@pytest.fixture
def watching(client: Any) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def watch(*given: Any, **named: Any) -> Any:
            return stack.enter_context(client.watch(*given, **named))

        yield watch


def test_many_topics_come_over_one_stream(client: Any, watching: Any, topic: str) -> None:
    client.append_many(topic, [1, 2, 3])
    client.append_many(f"{topic}.b", ["x", "y"])
    watch = watching({topic: 1, f"{topic}.b": 0})
    assert sorted(taken(watch, 4), key=str) == [
        *((topic, 2), (topic, 3)),
        *((f"{topic}.b", "x"), (f"{topic}.b", "y")),
    ]
    assert watch.positions == {topic: 3, f"{topic}.b": 2}


def test_names_start_at_the_beginning_or_at_the_end(client: Any, watching: Any, topic: str) -> None:
    client.append(topic, "old", tag="t", meta={"k": 1})
    (event,) = [next(watching(topic))]
    assert isinstance(event, Arrived)
    assert (event.records[0].tag, event.records[0].meta, event.to_seq) == ("t", {"k": 1}, 1)
    tail = watching([topic], tail=True)
    assert isinstance(next(tail), CaughtUp)
    client.append(topic, "new")
    assert taken(tail, 1) == [(topic, "new")]


def test_a_start_can_be_a_time(client: Any, watching: Any, topic: str) -> None:
    client.append(topic, 1)
    later = client.diff(topic).records[0].ts + 1
    while client.append(topic, 2) and client.diff(topic, from_ts=later).records == []:
        continue
    assert taken(watching({topic: {"from_ts": later}}), 1)[0] == (topic, 2)


def test_a_start_that_means_nothing_is_refused(client: Any, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="tail"):
        client.watch({topic: "head"})


def test_a_cursor_continues_an_earlier_watch(client: Any, watching: Any, topic: str) -> None:
    client.append_many(topic, [1, 2, 3])
    first = watching([topic], limit=2)
    assert [record.data for record in next(first).records] == [1, 2]
    kept = first.cursor
    assert taken(watching([topic], cursor=kept), 1) == [(topic, 3)]


def test_an_unknown_topic_is_refused_or_left_out(client: Any, watching: Any, topic: str) -> None:
    client.append(topic, 1)
    with pytest.raises(TopicNotFound):
        next(watching([topic, "never-made"]))
    assert taken(watching([topic, "never-made"], lenient=True), 1) == [(topic, 1)]


def test_a_gap_is_an_event(client: Any, watching: Any, topic: str) -> None:
    client.create(topic, cap_records=1)
    client.append_many(topic, [1, 2, 3])
    gap = next(watching([topic]))
    assert isinstance(gap, Tombstone)
    assert (gap.topic, gap.gap_from, gap.gap_to, gap.records) == (topic, 1, 2, [])


def test_the_iteration_ends_with_the_last_topic(client: Any, watching: Any, topic: str) -> None:
    client.append(topic, 1)
    client.append(f"{topic}.b", 2)
    watch = watching([topic, f"{topic}.b"])
    taken(watch, 2)
    client.drop(topic)
    client.drop(f"{topic}.b")
    gone = [event.topic for event in watch if isinstance(event, TopicDeleted)]
    assert sorted(gone) == [topic, f"{topic}.b"]
    assert list(watch) == []


def test_a_watch_is_closed_from_elsewhere(client: Any, watching: Any, topic: str) -> None:
    client.create(topic)
    watch = watching([topic])
    assert isinstance(next(watch), CaughtUp)
    closing = threading.Timer(0.1, watch.close)
    closing.start()
    assert list(watch) == []
    closing.join()


def test_waiting_with_a_limit_loses_nothing(url: str, topic: str) -> None:
    asyncio.run(wait_in_vain(url, topic))


async def wait_in_vain(url: str, topic: str) -> None:
    async with AsyncClient(url) as client:
        await client.create(topic)
        async with client.watch([topic]) as watch:
            for number in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(next_payloads(watch), 0.05)
                await client.append(topic, number)
                assert await asyncio.wait_for(next_payloads(watch), 60) == [number]


async def next_payloads(watch: AsyncWatch) -> list[Any]:
    while not (event := await anext(watch)).records:
        continue
    return [record.data for record in event.records]


@pytest.mark.slow
def test_a_watch_goes_on_across_kills_and_restarts(connect: Connect, tmp_path: Path) -> None:
    """Also one that was waiting at the end, and has not been given anything yet."""
    port = free_port()
    server = ServerProcess(tmp_path, port=port).ready()
    client = connect(f"http://127.0.0.1:{port}")
    client.append_many("a", [1, 2])
    client.create("b")
    watch = client.watch({"a": 0, "b": "tail"})
    tail = client.watch(["a"], tail=True)
    assert taken(watch, 2) == [("a", 1), ("a", 2)]
    assert isinstance(next(tail), CaughtUp)
    seen: list[Any] = []
    try:
        for number in (3, 4):
            server.kill()
            server = ServerProcess(tmp_path, port=port).ready()
            client.append("a", number)
            client.append("b", -number)
            seen += taken(watch, 2)
            assert taken(tail, 1) == [("a", number)]
        assert sorted(seen, key=str) == sorted([("a", 3), ("b", -3), ("a", 4), ("b", -4)], key=str)
        assert watch.connections == 3
        watch.close()
        tail.close()
    finally:
        server.kill()


# --- streams as only a script can make them ---

SESSION = answer(
    200,
    {
        "wid": "w",
        "stream_url": "/v0/watch/w",
        "session_ttl_ms": 1,
        "topics": {"t": {"from_seq": 7, "head_seq": 7, "earliest_seq": 1}},
    },
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def frame(name: str, data: bytes, cursor: str = "") -> bytes:
    return (b"id: %b\n" % cursor.encode() if cursor else b"") + b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def record(seq: int) -> bytes:
    return frame(
        "record",
        b'{"topic":"t","records":[{"$seq":%d,"$ts":1,"data":%d}],"from_seq":%d,"to_seq":%d,"head_seq":9}'
        % (seq, seq, seq - 1, seq),
        f"c{seq}",
    )


def streamed(*frames: bytes) -> bytes:
    """A stream that ends without a word, in the middle of a frame."""
    body = b"".join(frames) + b"event: rec"
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_the_last_id_is_handed_over_when_a_stream_breaks(connect: Connect) -> None:
    with ScriptedServer(SESSION, streamed(record(8)), streamed(record(9))) as server:
        watch = connect(server.url).watch(["t"], tail=True)
        assert taken(watch, 2) == [("t", 8), ("t", 9)]
        watch.close()
    assert [seen.headers.get("last-event-id") for seen in server.seen[1:3]] == [None, "c8"]


def test_a_lost_session_is_made_anew_where_it_was(connect: Connect) -> None:
    gone = answer(404, {"error": {"code": "not_found", "message": "no such wid"}})
    with ScriptedServer(SESSION, streamed(), gone, SESSION, streamed(record(8)), gone, SESSION, streamed()) as server:
        watch = connect(server.url, retries_max=2).watch(["t"], tail=True)
        assert taken(watch, 1) == [("t", 8)]
        with contextlib.suppress(StopIteration):
            threading.Timer(0.3, watch.close).start()
            next(watch)
        posts: list[Seen] = [seen for seen in server.seen if seen.method == "POST"]
    # `tail` must not skip what came since the first session, even before the first frame.
    assert posts[0].json["topics"] == {"t": {"tail": True}}
    assert posts[1].json["topics"] == {"t": {"from_seq": 7}}
    assert posts[2].json["cursor"] == "c8"


def test_an_error_frame_ends_slows_or_names_a_topic(connect: Connect) -> None:
    frames = (
        frame("error", b'{"code":429,"error":"paced","topics":["t"]}'),
        frame("error", b'{"code":500,"error":"damaged","topics":["t"]}'),
        frame("a-later-kind", b"{}"),
        record(8),
        frame("error", b'{"code":409,"error":"replaced"}'),
    )
    with ScriptedServer(SESSION, streamed(*frames), SESSION, streamed(record(9))) as server:
        watch = connect(server.url).watch(["t"])
        failed, eighth, ninth = next(watch), next(watch), next(watch)
        watch.close()
    assert isinstance(failed, TopicFailed)
    assert (failed.message, eighth.to_seq, ninth.to_seq) == ("damaged", 8, 9)


def test_a_frame_of_garbage_is_an_error(connect: Connect) -> None:
    garbage = streamed(frame("record", b"{not json"))
    with ScriptedServer(SESSION, garbage) as server, pytest.raises(BadAnswer, match="cannot be read"):
        next(connect(server.url).watch(["t"]))


def test_reconnecting_has_a_limit(connect: Connect) -> None:
    with ScriptedServer(SESSION, None) as server:
        with pytest.raises(Exception, match=r"broke|ended"):
            next(connect(server.url).watch(["t"], reconnect_s_max=0.3))
        assert len(server.seen) > 2


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_frames_are_put_together_from_any_pieces(step: int) -> None:
    stream = b"retry: 2000\n\n: hb 1\n\nid: 5\r\nevent: job\r\ndata: a\r\ndata: b\r\n\r\ndata:c\n\nevent: x\n\n"
    parser = EventParser()
    events = [event for at in range(0, len(stream), step) for event in parser.feed(stream[at : at + step])]
    assert events == [("job", b"a\nb", "5"), ("message", b"c", None)]

"""GET /v0/watch/:wid: headers, frames and their order, gaps, deletion, heartbeats, and the end of a server."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live.rig import Event, Watcher, eventually, watching
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving


def test_the_response_headers_are_those_that_proxies_need(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    stream = watcher.watch({topic: {}})
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["connection"] == "keep-alive"
    assert stream.headers["x-accel-buffering"] == "no"


def test_backlog_then_caught_up_then_live_records(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, "a", "b")
    stream = watcher.watch({topic: {}})
    backlog = stream.event()
    assert backlog.event == "record"
    assert [record["data"] for record in backlog.data["records"]] == ["a", "b"]
    assert {name: backlog.data[name] for name in ("topic", "from_seq", "to_seq", "head_seq")} == {
        "topic": topic,
        "from_seq": 0,
        "to_seq": 2,
        "head_seq": 2,
    }
    assert backlog.cursor == {topic: 2}
    assert stream.event() == Event("caught-up", {"topic": topic, "head_seq": 2}, backlog.id)
    client.append(topic, "c")
    live = stream.event()
    assert (live.event, live.seqs, live.cursor) == ("record", [3], {topic: 3})
    assert stream.is_quiet()


def test_tail_gives_only_what_comes_after_the_session(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    session = watcher.session({topic: {"tail": True}})
    client.append(topic, 3)
    stream = watcher.open(session["stream_url"])
    assert stream.event().seqs == [3]


def test_frames_hold_no_more_records_than_the_limit(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    frames = watcher.watch({topic: {}}, limit=4).until("caught-up")
    assert [frame.seqs for frame in frames[:-1]] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert [frame.data["from_seq"] for frame in frames[:-1]] == [0, 4, 8]
    assert all(frame.data["head_seq"] == 10 for frame in frames)


def test_frames_hold_no_more_bytes_than_asked_but_always_a_record(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, *("x" * 500 for _ in range(10)))
    frames = watcher.watch({topic: {}}, max_batch_bytes=1200).until("caught-up")
    assert [len(frame.seqs) for frame in frames[:-1]] == [2, 2, 2, 2, 2]
    frames = watcher.watch({topic: {}}, max_batch_bytes=1).until("caught-up")
    assert [len(frame.seqs) for frame in frames[:-1]] == [1] * 10
    frames = watcher.watch({topic: {}}, max_batch_bytes=0).until("caught-up")
    assert len(frames) == 2


def test_caught_up_comes_again_after_every_backlog(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    stream = watcher.watch({topic: {}}, limit=2)
    stream.until("caught-up")
    client.append(topic, 2)
    assert stream.event().seqs == [2]
    client.append(topic, *range(5))
    assert [frame.event for frame in stream.until("caught-up")] == ["record", "record", "record", "caught-up"]
    assert stream.is_quiet()


def test_a_view_says_which_fields_a_record_has(watcher: Watcher, client: Client, topic: str) -> None:
    record = {"data": {"a": 1}, "tag": "t1", "node": "n1", "meta": {"m": 1}}
    client.post(f"/v0/topics/{topic}", {"records": [record]})

    def seen(**request: object) -> set[str]:
        return set(watcher.watch({topic: {}}, **request).event().data["records"][0])

    assert seen() == {"$seq", "$ts", "$node", "data", "meta"}
    assert seen(include_tags=True) == {"$seq", "$ts", "$node", "$tag", "data", "meta"}
    assert seen(include_meta=False) == {"$seq", "$ts", "$node", "data"}
    assert seen(include_data=False, include_tags=True) == {"$seq", "$ts", "$node", "$tag"}
    assert seen(include_data=False) == {"$seq", "$ts", "$node"}
    assert seen(include_data=False, include_meta=None) == {"$seq", "$ts", "$node"}
    assert seen(include_data=False, include_meta=False) == {"$seq", "$ts", "$node"}
    assert seen(include_data=False, include_meta=True) == {"$seq", "$ts", "$node", "meta"}
    assert seen(include_data=None, include_meta=None) == {"$seq", "$ts", "$node", "data", "meta"}


def test_a_node_does_not_get_its_own_records(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, "mine", node="me")
    stream = watcher.watch({topic: {}}, node="me")
    caught_up = stream.event()
    assert (caught_up.event, caught_up.cursor) == ("caught-up", {topic: 1})
    client.append(topic, "mine", node="me")
    client.append(topic, "yours", node="you")
    frame = stream.event()
    assert (frame.seqs, frame.cursor) == ([3], {topic: 3})


def test_line_breaks_between_tokens_become_spaces_and_payloads_stay(
    watcher: Watcher, client: Client, topic: str
) -> None:
    body = b'{"records":[{"data":{"a":\n1,\r\n"b":"x\\ny"}}]}'
    client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    frame = watcher.watch({topic: {}}).event()
    assert frame.data["records"][0]["data"] == {"a": 1, "b": "x\ny"}
    assert b"\n" in client.post(f"/v0/topics/{topic}/diff", {}).body


def test_many_topics_share_a_stream_and_each_id_tells_all_positions(
    watcher: Watcher, client: Client, topic: str, other: str
) -> None:
    client.append(topic, 1, 2)
    client.append(other, 1)
    frames = watcher.watch({topic: {}, other: {}})
    seen = [frames.event() for _ in range(4)]
    assert sorted((frame.event, frame.data["topic"]) for frame in seen) == sorted(
        [("record", topic), ("record", other), ("caught-up", topic), ("caught-up", other)]
    )
    assert seen[-1].cursor == {topic: 2, other: 1}
    client.append(other, 2)
    assert frames.event().cursor == {topic: 2, other: 2}


def test_a_position_too_old_is_told_on_connect(watcher: Watcher, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 3})
    client.append(topic, *range(10))
    stream = watcher.watch({topic: {"from_seq": 2}})
    gap = stream.event()
    assert gap.event == "tombstone"
    assert gap.data == {
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 3,
        "gap_to": 7,
        "missed_estimate": 5,
        "earliest_seq": 8,
        "head_seq": 10,
    }
    assert gap.cursor == {topic: 7}
    assert stream.event().seqs == [8, 9, 10]


def test_a_loss_while_watching_tells_its_reason(watcher: Watcher, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 3})
    client.append(topic, 0)
    stream = watcher.watch({topic: {}})
    stream.until("caught-up")
    client.append(topic, *range(10))
    gap = stream.event()
    assert (gap.event, gap.data["reason"], gap.data["gap_from"], gap.data["gap_to"]) == ("tombstone", "cap", 2, 8)
    assert stream.event().seqs == [9, 10, 11]


def test_a_gap_made_by_deletes_is_silent(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, *range(5))
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 4})
    assert watcher.watch({topic: {}}).event().seqs == [4, 5]


def test_a_position_beyond_the_head_means_that_the_topic_is_another_one(
    watcher: Watcher, client: Client, topic: str
) -> None:
    client.append(topic, 1, 2)
    stream = watcher.watch({topic: {"from_seq": 50}})
    gap = stream.event()
    assert (gap.data["reason"], gap.data["gap_from"], gap.data["gap_to"]) == ("recreated", 1, 2)
    assert gap.cursor == {topic: 0}
    assert stream.event().seqs == [1, 2]


def test_a_deleted_topic_ends_for_itself_alone(watcher: Watcher, client: Client, topic: str, other: str) -> None:
    client.append(topic, 1)
    client.append(other, 1)
    stream = watcher.watch({topic: {}, other: {}})
    for _ in range(2):
        stream.until("caught-up")
    client.delete(f"/v0/topics/{topic}")
    gone = stream.event()
    assert (gone.event, gone.data) == ("topic-deleted", {"topic": topic, "head_seq": 1, "reason": "deleted"})
    client.append(topic, "of another topic")
    client.append(other, 2)
    assert stream.event().data["topic"] == other
    assert stream.is_quiet()


def test_a_topic_deleted_and_created_again_between_two_streams_is_reported(
    watcher: Watcher, client: Client, topic: str
) -> None:
    client.append(topic, 1, 2, 3)
    url = watcher.session({topic: {}})["stream_url"]
    stream = watcher.open(url)
    stream.until("caught-up")
    stream.close()
    client.delete(f"/v0/topics/{topic}")
    client.append(topic, *range(5))
    again = watcher.open(url, stream.last_id)
    gap = again.event()
    assert (gap.event, gap.data["reason"], gap.data["gap_to"]) == ("tombstone", "recreated", 5)
    assert again.event().seqs == [1, 2, 3, 4, 5]
    # The client has not processed any of that: the id it comes back with is of the old topic.
    once_more = watcher.open(url, stream.last_id)
    assert once_more.event().data["reason"] == "recreated"
    assert once_more.event().seqs == [1, 2, 3, 4, 5]


def test_a_topic_that_is_gone_when_a_stream_opens_is_reported(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    url = watcher.session({topic: {}})["stream_url"]
    client.delete(f"/v0/topics/{topic}")
    assert watcher.open(url).event().event == "topic-deleted"


def test_heartbeats_come_when_idle_and_only_then(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    stream = watcher.watch({topic: {}}, heartbeat_ms=1)
    stream.until("caught-up")
    beats = [stream.next() for _ in range(2)]
    assert [beat.event for beat in beats] == [":", ":"]
    assert [beat.data.split()[0] for beat in beats] == ["hb", "hb"]
    first_ms, second_ms = (int(beat.data.split()[1]) for beat in beats)
    assert second_ms - first_ms >= 900, "a second is the shortest time between two"
    assert abs(second_ms - time.time() * 1000) < 60_000
    last_ms = second_ms
    for number in range(12):
        client.append(topic, number)
        frame = stream.next()
        while frame.event == ":":
            beat_ms, frame = int(frame.data.split()[1]), stream.next()
            assert beat_ms - last_ms >= 900, "it was idle for that long"
            last_ms = beat_ms
        assert frame.event == "record"
        last_ms = frame.data["records"][0]["$ts"]
        time.sleep(0.15)
    assert stream.next().event == ":"


def test_the_newer_of_two_streams_wins(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    url = watcher.session({topic: {}})["stream_url"]
    older = watcher.open(url)
    older.until("caught-up")
    newer = watcher.open(url)
    assert older.event().data["code"] == 409
    with pytest.raises(EOFError):
        older.event()
    newer.until("caught-up")
    client.append(topic, 2)
    assert newer.event().seqs == [2]


def test_strong_shows_disk_records_after_their_sync_and_the_others_at_once(
    watcher: Watcher, client: Client, topic: str
) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        name = f"{topic}-{durability}"
        client.put(f"/v0/topics/{name}", {"durability": durability})
        stream = watcher.watch({name: {}}, consistency="strong")
        stream.until("caught-up")
        for number in range(1, 20):
            syncs = watcher.metric("topics_wal_fsyncs_total")
            client.append(name, number)
            frames = [stream.event()]
            while frames[-1].event != "record" or frames[-1].seqs[-1] != number:
                frames.append(stream.event())
            if durability == "disk":
                assert watcher.metric("topics_wal_fsyncs_total") > syncs


def test_an_open_stream_takes_no_request_slot(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="k", max_inflight_per_key=1) as server, watching(server) as watcher:
        server.key = "k"
        watcher.client.key = "k"
        watcher.client.append("t", 1)
        stream = watcher.open(watcher.session({"t": {}})["stream_url"], key="k")
        stream.until("caught-up")
        assert watcher.client.append("t", 2).status == 200
        assert stream.event().seqs == [2]


def test_streams_open_when_all_request_slots_are_taken(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="k,other", max_inflight_per_key=1) as server, watching(server) as watcher:
        watcher.client.key = "k"
        client = server.client("other")
        client.append("t", 1)
        client.put("/v0/topics/q", {"type": "queue"})
        session = watcher.session({"t": {}})
        with ThreadPoolExecutor(1) as pool:
            poll = pool.submit(server.client("k").post, "/v0/topics/t/diff", {"from_seq": 1, "wait_ms": 20_000})
            eventually(lambda: watcher.client.get("/v0/topics/t").status == 429)
            for path in (session["stream_url"], "/v0/topics/q/work?node=w"):
                assert watcher.open(path, key="k").status == 200, path
            assert watcher.client.get("/v0/ws").detail["field"] == "upgrade", "a WebSocket would open"
            client.append("t", 2)
            assert poll.result().status == 200


def test_a_stream_that_ends_frees_its_place(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    before = watcher.metric("topics_sse_connections")
    streams = [watcher.watch({topic: {}}) for _ in range(5)]
    assert watcher.metric("topics_sse_connections") == before + 5
    streams[0].close()
    for stream in streams[1:]:
        stream.reset()
    eventually(lambda: watcher.metric("topics_sse_connections") == before)


def test_a_draining_server_ends_its_streams_properly(tmp_path: Path) -> None:
    with serving(tmp_path) as server, watching(server) as watcher:
        watcher.client.append("t", 1)
        stream = watcher.watch({"t": {}})
        stream.until("caught-up")
        assert server.terminate() == 0
        assert stream.event().data["code"] == 503
        with pytest.raises(EOFError):
            stream.event()


def test_a_queue_can_be_watched(watcher: Watcher, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    client.append(topic, "job")
    assert watcher.watch({topic: {}}).event().seqs == [1]


def test_cold_records_are_streamed_like_others(tmp_path: Path) -> None:
    settings = {"hot_retain_bytes": 0, "checkpoint_ms": 50, "segment_max_events": 500, "hot_retain_segments": 0}
    with serving(tmp_path, **settings) as server, watching(server) as watcher:
        for start in range(0, 20_000, 2_000):
            watcher.client.append("t", *("x" * 50 for _ in range(start, start + 2_000)))
        eventually(lambda: watcher.client.diff("t")["performance"].get("cold_segments_read", 0) > 0)
        frames = watcher.watch({"t": {}}, limit=1000).until("caught-up")
        assert [seq for frame in frames[:-1] for seq in frame.seqs] == list(range(1, 20_001))


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(
    server: ServerProcess, watcher: Watcher, topic: str
) -> None:
    import socket

    watcher.client.append(topic, 1)
    url = watcher.session({topic: {}})["stream_url"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
        raw.sendall(f"GET {url} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        seen = b""
        while b"caught-up" not in seen:
            seen += raw.recv(65536)
        assert b"Transfer-Encoding" not in seen
        assert b"retry: 2000\n\n" in seen

"""POST /v0/watch: what a session may request, its reply, who may open its stream, and when it is forgotten."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.rig import Watcher, encode_id, eventually, watching
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving


def test_a_session_tells_where_each_topic_stands(watcher: Watcher, client: Client, topic: str, other: str) -> None:
    client.append(topic, 1, 2, 3)
    client.append(other, 1)
    session = watcher.session({topic: {"from_seq": 1}, other: {"tail": True}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22,}", session["wid"])
    assert session["stream_url"] == f"/v0/watch/{session['wid']}"
    assert session["session_ttl_ms"] == 300_000
    assert session["topics"] == {
        topic: {"from_seq": 1, "head_seq": 3, "earliest_seq": 1},
        other: {"from_seq": 1, "head_seq": 1, "earliest_seq": 1},
    }
    assert "server_total_ms" in session["performance"]


def test_a_topic_without_options_starts_at_its_earliest_record(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert watcher.session({topic: {}})["topics"][topic]["from_seq"] == 0
    assert watcher.session({topic: None})["topics"][topic]["from_seq"] == 0


def test_wids_do_not_repeat(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert len({watcher.session({topic: {}})["wid"] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": []},
        {"topics": {"x y": {}}},
        {"topics": {"t": {"from_seq": -1}}},
        {"topics": {"t": {"from_seq": "1"}}},
        {"topics": {"t": {"tail": "yes"}}},
        {"topics": {"t": {}}, "limit": None},
        {"topics": {"t": {}}, "consistency": "later"},
        {"topics": {"t": {}}, "node": "n" * 129},
        {"topics": {"t": {}}, "node": [f"n{number}" for number in range(65)]},
        {"topics": {"t": {}}, "cursor": "not a cursor"},
        {"topics": {f"t{number}": {} for number in range(257)}},
    ],
)
def test_a_malformed_session_is_400(client: Client, body: object) -> None:
    reply = client.post("/v0/watch", body)
    assert (reply.status, reply.code) == (400, "invalid_request")


def test_a_bad_name_is_told_where_it_stands(client: Client) -> None:
    assert client.post("/v0/watch", {"topics": {"x y": {}}}).detail["field"] == "topics.x y"


def test_an_unknown_topic_is_404(client: Client, topic: str) -> None:
    client.append(topic, 1)
    reply = client.post("/v0/watch", {"topics": {topic: {}, "no-such-topic": {}}})
    assert (reply.status, reply.code) == (404, "topic_not_found")


def test_lenient_leaves_unknown_topics_out(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    session = watcher.session({topic: {}, "no-such-topic": {}}, query="?lenient=true")
    assert list(session["topics"]) == [topic]
    assert list(watcher.session({"no-such-topic": {}}, query="?lenient=true")["topics"]) == []


def test_a_session_may_start_at_a_time(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, "old")
    time.sleep(0.01)
    second = client.append(topic, "new").json["first_seq"]
    ts = client.diff(topic, from_seq=1)["records"][0]["$ts"]
    assert watcher.session({topic: {"from_ts": ts}})["topics"][topic]["from_seq"] == second - 1


def test_a_cursor_wins_over_positions_and_can_stand_for_topics(
    watcher: Watcher, client: Client, topic: str, other: str
) -> None:
    client.append(topic, 1, 2, 3)
    client.append(other, 1)
    cursor = encode_id({topic: 2})
    session = watcher.session({topic: {"tail": True}, other: {}}, cursor=cursor)
    assert session["topics"][topic]["from_seq"] == 2
    assert session["topics"][other]["from_seq"] == 0
    assert watcher.session(None, cursor=cursor)["topics"] == {topic: {"from_seq": 2, "head_seq": 3, "earliest_seq": 1}}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = "full,mate,other:read:ten-,writer:write,full2"
    with serving(tmp_path_factory.mktemp("keys"), api_keys=keys, max_sse_connections_per_key=2) as server:
        server.key = "full"
        yield server


@pytest.fixture
def keyed(guarded: ServerProcess) -> Iterator[Watcher]:
    with watching(guarded) as watcher:
        watcher.client.append("ten-a", 1)
        watcher.client.append("mine", 1)
        yield watcher


def test_a_session_needs_the_read_scope_and_every_name_allowed(guarded: ServerProcess, keyed: Watcher) -> None:
    assert guarded.stranger().post("/v0/watch", {"topics": {"mine": {}}}).status == 401
    assert guarded.client("writer").post("/v0/watch", {"topics": {"mine": {}}}).status == 403
    assert guarded.client("other").post("/v0/watch", {"topics": {"ten-a": {}, "mine": {}}}).status == 403
    assert guarded.client("other").post("/v0/watch", {"topics": {"ten-a": {}}}).status == 200


def test_a_stream_opens_only_for_the_key_that_made_the_session(guarded: ServerProcess, keyed: Watcher) -> None:
    url = keyed.session({"mine": {}})["stream_url"]
    assert keyed.open(url).status == 401
    assert keyed.open(url, key="wrong").status == 401
    assert keyed.open("/v0/watch/wid_unknown").status == 401
    assert keyed.open("/v0/watch/wid_unknown", key="wrong").status == 401
    assert keyed.open(url, key="mate").status == 401
    assert keyed.open("/v0/watch/wid_unknown", key="mate").status == 404
    assert keyed.open(url, key="full").status == 200


def test_a_key_limited_by_prefix_opens_its_own_stream(guarded: ServerProcess, keyed: Watcher) -> None:
    url = keyed.session({"ten-a": {}}, guarded.client("other"))["stream_url"]
    assert keyed.open(url, key="other").status == 200


def test_a_token_in_the_query_opens_a_stream_and_nothing_else(guarded: ServerProcess, keyed: Watcher) -> None:
    url = keyed.session({"mine": {}})["stream_url"]
    assert keyed.open(f"{url}?token=wrong&token=full").status == 401
    assert keyed.open(f"{url}?token=%66ull&token=wrong").status == 200
    assert guarded.stranger().get("/v0/topics/mine?token=full").status == 401


def test_streams_count_for_the_key_of_their_session(guarded: ServerProcess) -> None:
    with watching(guarded) as watcher:
        mine = guarded.client("full2")
        urls = [watcher.session({"mine": {}}, mine)["stream_url"] for _ in range(3)]
        first, second = (watcher.open(url, key="full2") for url in urls[:2])
        reply = mine.get(urls[2], headers={"Accept": "text/event-stream"})
        assert (reply.status, reply.code) == (429, "throttled")
        assert reply.detail == {"limit": "max_sse_connections_per_key", "max": 2}
        assert "retry-after" in reply.headers
        again = watcher.open(urls[1], key="full2")
        assert (first.status, second.status, again.status) == (200, 200, 200)
        first.close()
        deadline_s = time.monotonic() + PATIENCE_S
        while watcher.open(urls[2], key="full2").status != 200:
            assert time.monotonic() < deadline_s


def test_sessions_and_streams_are_capped_and_idle_sessions_make_room(tmp_path: Path) -> None:
    with (
        serving(tmp_path, max_watch_sessions=2, max_sse_connections=1, session_ttl_ms=5_000) as server,
        watching(server) as watcher,
    ):
        watcher.client.append("t", 1)
        kept, forgotten = watcher.session({"t": {}}), watcher.session({"t": {}})
        reply = watcher.client.post("/v0/watch", {"topics": {"t": {}}})
        assert (reply.status, reply.detail) == (429, {"limit": "max_watch_sessions", "max": 2})
        stream = watcher.open(kept["stream_url"])
        reply = watcher.client.get(forgotten["stream_url"], headers={"Accept": "text/event-stream"})
        assert (reply.status, reply.detail) == (429, {"limit": "max_sse_connections", "max": 1})
        assert watcher.metric("topics_watch_sessions") == 2
        assert watcher.metric("topics_sse_connections") == 1
        eventually(lambda: watcher.client.post("/v0/watch", {"topics": {"t": {}}}).status < 300)
        assert watcher.client.get(forgotten["stream_url"]).status == 404
        assert watcher.open(kept["stream_url"]).status == 200
        assert stream.until("error")[-1].data["code"] == 409


def test_a_stream_is_406_for_those_who_want_something_else(watcher: Watcher, topic: str) -> None:
    watcher.client.append(topic, 1)
    url = watcher.session({topic: {}})["stream_url"]
    assert watcher.client.get(url).status == 406
    for accept in ("application/json", "*/*", "text/*", "text/html, */*;q=0.8", "text/event-stream;q=0"):
        reply = watcher.client.get(url, headers={"Accept": accept})
        assert (reply.status, reply.code) == (406, "not_acceptable")
    for accept in ("text/event-stream", "Text/Event-Stream; charset=utf-8", "*/*, text/event-stream;q=0.5"):
        assert watcher.open(url, Accept=accept).status == 200


def test_head_of_a_stream_opens_none(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    url = watcher.session({topic: {}})["stream_url"]
    before = watcher.metric("topics_sse_connections")
    assert client.request("HEAD", url, headers={"Accept": "text/event-stream"}).status == 200
    assert watcher.metric("topics_sse_connections") == before

"""GET /v0/ws: commands and their answers, frames, who may do what, limits, keep-alive and closing."""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.live.rig import Watcher, eventually, watching
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving

SECONDS_MAX = 60.0


class Socket:
    """A WebSocket that speaks JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, op: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"op": op, **fields}))

    def next(self, timeout_s: float = SECONDS_MAX) -> Any:
        return json.loads(self.connection.recv(timeout_s))

    def ask(self, op: str, **fields: Any) -> Any:
        self.send(op, **fields)
        return self.next()

    def until(self, op: str) -> list[Any]:
        frames = [self.next()]
        while frames[-1]["op"] != op:
            frames.append(self.next())
        return frames

    def is_quiet(self, for_s: float = 0.3) -> bool:
        try:
            found = self.next(for_s)
        except TimeoutError:
            return True
        raise AssertionError(f"unexpected: {found}")


@contextmanager
def open_socket(server: ServerProcess, key: str | None = None, **options: Any) -> Iterator[Socket]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"ws://127.0.0.1:{server.port}/v0/ws"
    options = {"open_timeout": SECONDS_MAX, **options}
    with connect(url, additional_headers=headers, max_size=None, **options) as connection:
        yield Socket(connection)


@pytest.fixture
def ws(server: ServerProcess) -> Iterator[Socket]:
    with open_socket(server) as ws:
        yield ws


def test_ping_is_answered_with_its_request_id(ws: Socket) -> None:
    assert ws.ask("ping", request_id="p-1") == {"op": "pong", "request_id": "p-1"}
    assert ws.ask("ping", request_id=7) == {"op": "pong", "request_id": 7}
    assert ws.ask("ping") == {"op": "pong"}


def test_subscribe_tells_positions_then_backlog_then_caught_up_then_live(
    ws: Socket, client: Client, topic: str
) -> None:
    client.append(topic, "a", "b")
    assert ws.ask("subscribe", request_id="s1", topic=topic) == {
        "op": "subscribed",
        "request_id": "s1",
        "topics": {topic: {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}},
    }
    frame = ws.next()
    assert [record["data"] for record in frame.pop("records")] == ["a", "b"]
    assert frame == {"op": "record", "topic": topic, "from_seq": 0, "to_seq": 2, "head_seq": 2}
    assert ws.next() == {"op": "caught_up", "topic": topic, "head_seq": 2}
    client.append(topic, "c")
    assert ws.next()["records"][0]["data"] == "c"
    assert ws.is_quiet()


def test_subscribe_takes_a_map_of_topics(ws: Socket, client: Client, topic: str, other: str) -> None:
    client.append(topic, 1, 2)
    client.append(other, 1)
    reply = ws.ask("subscribe", topics={topic: {"from_seq": 1}, other: {"tail": True}})
    assert reply["topics"] == {
        topic: {"from_seq": 1, "head_seq": 2, "earliest_seq": 1},
        other: {"from_seq": 1, "head_seq": 1, "earliest_seq": 1},
    }
    frames = [ws.next() for _ in range(3)]
    assert sorted(frame["op"] for frame in frames) == ["caught_up", "caught_up", "record"]


def test_a_subscription_has_its_own_view_node_and_limits(ws: Socket, client: Client, topic: str) -> None:
    record = {"data": 1, "tag": "t", "node": "n", "meta": {"m": 1}}
    client.post(f"/v0/topics/{topic}", {"records": [record, {**record, "node": "me"}, record]})
    request = {"node": "me", "limit": 1, "include_data": False, "include_tags": True}
    ws.ask("subscribe", topic=topic, **request)
    frames = ws.until("caught_up")
    assert [[record["$seq"] for record in frame["records"]] for frame in frames[:-1]] == [[1], [3]]
    assert set(frames[0]["records"][0]) == {"$seq", "$ts", "$node", "$tag"}
    ws.ask("subscribe", topic=topic, **request, include_meta=True)
    assert set(ws.next()["records"][0]) == {"$seq", "$ts", "$node", "$tag", "meta"}


def test_subscribing_again_starts_again(ws: Socket, client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    ws.ask("subscribe", topic=topic, tail=True)
    assert ws.next()["op"] == "caught_up"
    ws.ask("subscribe", topic=topic, from_seq=1)
    assert [record["$seq"] for record in ws.next()["records"]] == [2]
    assert ws.next()["op"] == "caught_up"
    client.append(topic, 3)
    assert [record["$seq"] for record in ws.next()["records"]] == [3]
    assert ws.is_quiet()


def test_unsubscribe_ends_one_topic(ws: Socket, client: Client, topic: str, other: str) -> None:
    client.append(topic, 1)
    client.append(other, 1)
    ws.ask("subscribe", topics={topic: {"tail": True}, other: {"tail": True}})
    ws.until("caught_up")
    ws.until("caught_up")
    reply = ws.ask("unsubscribe", request_id="u1", topic=topic)
    assert reply == {"op": "unsubscribed", "request_id": "u1", "topic": topic}
    client.append(topic, 2)
    client.append(other, 2)
    assert ws.next()["topic"] == other
    assert ws.is_quiet()


def test_publish_is_acknowledged_as_over_http(ws: Socket, client: Client, topic: str) -> None:
    ack = ws.ask("publish", request_id="p1", topic=topic, return_seqs=False, records=[{"node": "u", "data": {"a": 1}}])
    assert ack.pop("performance")["fsync_ms"] == 0.0
    assert ack == {
        "op": "ack",
        "request_id": "p1",
        "topic": topic,
        "first_seq": 1,
        "last_seq": 1,
        "head_seq": 1,
        "count": 1,
        "created": True,
        "deduped": False,
    }
    assert ws.ask("publish", topic=topic, records=[{"data": 1}, {"data": 2}])["seqs"] == [2, 3]
    assert client.payloads(topic) == [{"a": 1}, 1, 2]


def test_publish_answers_pending_jobs_with_the_seqs_they_have(ws: Socket, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    a, b = {"data": 0, "unique_key": "a"}, {"data": 0, "unique_key": "b"}
    assert ws.ask("publish", topic=topic, records=[a, b])["seqs"] == [1, 2]
    mixed = ws.ask("publish", topic=topic, records=[{"data": 1}, a, {"data": 3}])
    assert (mixed["seqs"], mixed["first_seq"], mixed["last_seq"], mixed["count"]) == ([3, 1, 4], 3, 4, 2)
    repeated = ws.ask("publish", topic=topic, records=[b, a, b])
    assert (repeated["seqs"], repeated["first_seq"], repeated["last_seq"], repeated["count"]) == ([2, 1, 2], 1, 2, 3)


def test_publish_takes_keys_and_configuration(ws: Socket, client: Client, topic: str) -> None:
    request = {"topic": topic, "records": [{"data": 1}], "idempotency_key": "k", "config": {"durability": "fsync"}}
    first = ws.ask("publish", **request)
    assert first["performance"]["fsync_ms"] > 0
    again = ws.ask("publish", **request)
    assert (again["deduped"], again["last_seq"]) == (True, 1)
    assert client.state(topic)["config"]["durability"] == "fsync"
    absent = ws.ask("publish", topic=f"{topic}-absent", create=False, records=[{"data": 1}])
    assert (absent["op"], absent["code"]) == ("error", "topic_not_found")


def test_publishes_are_appended_in_the_order_they_were_sent(ws: Socket, client: Client, topic: str) -> None:
    for number in range(600):
        ws.send("publish", request_id=number, topic=topic, records=[{"data": number}], config={"durability": "fsync"})
    acks = [ws.next() for _ in range(600)]
    assert [ack["last_seq"] for ack in acks] == list(range(1, 601))
    assert client.payloads(topic, limit=1000) == list(range(600))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('{"op":"zap","request_id":"r"}', "invalid_request"),
        ('{"request_id":"r"}', "invalid_request"),
        ('{"op":null,"request_id":"r"}', "invalid_request"),
        ('{"op":5,"request_id":"r"}', "invalid_request"),
        ('{"op":["publish"],"request_id":"r"}', "invalid_request"),
        ("not json", "invalid_request"),
        ("[]", "invalid_request"),
        ('{"op":"subscribe","request_id":"r"}', "invalid_request"),
        ('{"op":"subscribe","request_id":"r","topic":"no-such-topic"}', "topic_not_found"),
        ('{"op":"subscribe","request_id":"r","topic":"bad name"}', "invalid_request"),
        ('{"op":"unsubscribe","request_id":"r"}', "invalid_request"),
        ('{"op":"publish","request_id":"r","topic":"t"}', "invalid_request"),
        ('{"op":"publish","request_id":"r","records":[{"data":1}]}', "invalid_request"),
        ('{"op":"publish","request_id":"r","topic":"t","records":[]}', "invalid_request"),
    ],
)
def test_a_wrong_command_is_an_error_and_the_socket_lives_on(ws: Socket, message: str, code: str) -> None:
    ws.connection.send(message)
    reply = ws.next()
    assert (reply["op"], reply["code"]) == ("error", code)
    assert reply["message"]
    if "request_id" in message:
        assert reply["request_id"] == "r"
    assert ws.ask("ping") == {"op": "pong"}


def test_a_bad_name_is_told_where_it_stands(ws: Socket) -> None:
    assert ws.ask("subscribe", topic="x y")["detail"]["field"] == "topic"
    assert ws.ask("subscribe", topics={"x y": {}})["detail"]["field"] == "topics.x y"


def test_a_deleted_topic_is_reported(ws: Socket, client: Client, topic: str) -> None:
    client.append(topic, 1)
    ws.ask("subscribe", topic=topic)
    ws.until("caught_up")
    client.delete(f"/v0/topics/{topic}")
    assert ws.next() == {"op": "topic_deleted", "topic": topic, "head_seq": 1, "reason": "deleted"}


def test_a_gap_is_reported(ws: Socket, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    client.append(topic, *range(5))
    ws.ask("subscribe", topic=topic)
    gap = ws.next()
    assert gap == {
        "op": "tombstone",
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 3,
        "missed_estimate": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert len(ws.next()["records"]) == 2


def test_a_frame_keeps_the_payload_byte_for_byte(ws: Socket, client: Client, topic: str) -> None:
    body = b'{"records":[{"data":{"big": 12345678901234567890,\n "e":1e2}}]}'
    client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    ws.ask("subscribe", topic=topic)
    text = ws.connection.recv(5)
    assert isinstance(text, str)
    assert '{"big": 12345678901234567890,\n "e":1e2}' in text


def test_a_plain_get_is_400(client: Client) -> None:
    reply = client.get("/v0/ws")
    assert (reply.status, reply.code) == (400, "invalid_request")


def test_binary_messages_are_refused_with_1003(ws: Socket) -> None:
    ws.connection.send(b"\1\2")
    with pytest.raises(ConnectionClosed) as closed:
        ws.next()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


def test_text_that_is_not_utf_8_is_refused_with_1007(ws: Socket) -> None:
    ws.connection.send(b'{"op":"\xff"}', text=True)
    with pytest.raises(ConnectionClosed) as closed:
        ws.next()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007


def test_a_message_too_large_is_refused_with_1009(tmp_path: Path) -> None:
    with serving(tmp_path, max_body_bytes=100_000) as server, open_socket(server) as ws:
        ws.connection.send("x" * 200_000)
        with pytest.raises(ConnectionClosed) as closed:
            ws.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_pings_of_the_protocol_are_answered(ws: Socket) -> None:
    assert ws.connection.ping().wait(PATIENCE_S)


def test_a_closing_client_is_answered_and_its_place_is_free(server: ServerProcess, watcher: Watcher) -> None:
    before = watcher.metric("topics_sse_connections")
    with open_socket(server) as ws:
        ws.ask("ping")
        assert watcher.metric("topics_sse_connections") == before + 1
    assert ws.connection.close_code == 1000
    eventually(lambda: watcher.metric("topics_sse_connections") == before)


def test_a_draining_server_goes_away_with_1001(tmp_path: Path) -> None:
    with serving(tmp_path) as server, open_socket(server) as ws:
        ws.ask("ping")
        assert server.terminate() == 0
        with pytest.raises(ConnectionClosed) as closed:
            ws.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = "full,reader:read,writer:write,ten:rw:ten-"
    with serving(tmp_path_factory.mktemp("keys"), api_keys=keys, max_sse_connections_per_key=2) as server:
        server.key = "full"
        server.client().append("ten-a", 1)
        server.client().append("mine", 1)
        yield server


def test_the_handshake_needs_a_key(guarded: ServerProcess) -> None:
    for key in (None, "wrong"):
        with pytest.raises(InvalidStatus) as refused, open_socket(guarded, key):
            pass
        assert refused.value.response.status_code == 401


def test_each_command_is_judged_by_itself(guarded: ServerProcess) -> None:
    publish = {"topic": "mine", "records": [{"data": 1}]}
    with open_socket(guarded, "reader") as ws:
        assert ws.ask("publish", request_id="p2", **publish)["code"] == "forbidden"
        assert ws.ask("subscribe", topic="mine", tail=True)["op"] == "subscribed"
    with open_socket(guarded, "writer") as ws:
        assert ws.ask("publish", **publish)["op"] == "ack"
        assert ws.ask("publish", config={}, **publish)["code"] == "forbidden"
        assert ws.ask("subscribe", topic="mine")["code"] == "forbidden"
    with open_socket(guarded, "ten") as ws:
        assert ws.ask("publish", **publish)["code"] == "forbidden"
        assert ws.ask("publish", topic="ten-a", records=[{"data": 1}])["op"] == "ack"
        assert ws.ask("subscribe", topic="mine")["code"] == "forbidden"
        assert ws.ask("subscribe", topics={"ten-a": {"tail": True}, "mine": {}})["code"] == "forbidden"
        assert ws.ask("subscribe", topic="ten-a", tail=True)["op"] == "subscribed"


def test_a_key_may_come_as_a_subprotocol_and_not_in_the_query(guarded: ServerProcess) -> None:
    offer = Subprotocol("topics.bearer." + base64.urlsafe_b64encode(b"reader").decode().rstrip("="))
    with open_socket(guarded, subprotocols=[offer]) as ws:
        assert ws.connection.subprotocol == offer
        assert ws.ask("publish", topic="mine", records=[{"data": 1}])["code"] == "forbidden"
    with open_socket(guarded, subprotocols=[Subprotocol("topics"), offer]) as ws:
        assert ws.connection.subprotocol == "topics"
    with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{guarded.port}/v0/ws?token=full"):
        pass


def test_sockets_count_like_streams(guarded: ServerProcess) -> None:
    with watching(guarded) as watcher, open_socket(guarded, "full"):
        stream = watcher.open(watcher.session({"mine": {}})["stream_url"], key="full")
        assert stream.status == 200
        with pytest.raises(InvalidStatus) as refused, open_socket(guarded, "full"):
            pass
        assert refused.value.response.status_code == 429


def test_a_connection_may_follow_as_many_topics_as_a_session(tmp_path: Path) -> None:
    with serving(tmp_path, max_watch_topics=2) as server, open_socket(server) as ws:
        for name in "abc":
            server.client().append(name, 1)
        ws.ask("subscribe", topics={"a": {"tail": True}, "b": {"tail": True}})
        ws.until("caught_up")
        ws.until("caught_up")
        assert ws.ask("subscribe", topic="c")["code"] == "invalid_request"
        ws.ask("unsubscribe", topic="a")
        assert ws.ask("subscribe", topic="c")["op"] == "subscribed"


def test_a_foreign_page_may_not_connect_without_keys(server: ServerProcess) -> None:
    with pytest.raises(InvalidStatus) as refused, open_socket(server, origin="http://evil.example"):
        pass
    assert refused.value.response.status_code == 403


def test_a_stranger_to_the_protocol_is_closed(server: ServerProcess) -> None:
    key = base64.b64encode(b"0123456789abcdef").decode()
    head = "GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
        raw.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        assert b" 101 " in raw.recv(4096)
        raw.sendall(b"\x81\x05hello")  # not masked
        seen = b""
        while data := raw.recv(4096):
            seen += data
        assert seen[:2] == b"\x88" + bytes([len(seen) - 2])
        assert int.from_bytes(seen[2:4], "big") == 1002
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
        raw.sendall(f"{head}Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        assert b" 400 " in raw.recv(4096)

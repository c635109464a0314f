"""Where a stream continues: the session's own positions, an id that moves them back, and checkpoints of many topics."""

import socket
from pathlib import Path
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived

from tests.live.rig import Watcher, encode_id, watching
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving


def test_a_reconnect_without_an_id_goes_on_where_the_session_is(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    url = watcher.session({topic: {}})["stream_url"]
    first = watcher.open(url)
    first.until("caught-up")
    first.close()
    client.append(topic, 3)
    frames = watcher.open(url).until("caught-up")
    assert [frame.seqs for frame in frames[:-1]] == [[3]]


def test_an_id_takes_the_session_back(watcher: Watcher, client: Client, topic: str, other: str) -> None:
    client.append(topic, *range(5))
    client.append(other, *range(5))
    url = watcher.session({topic: {}, other: {}})["stream_url"]
    for _ in range(2):
        watcher.open(url).until("caught-up")
    back = watcher.open(url, encode_id({topic: 2, other: 4}))
    seen = {
        frame.data["topic"]: frame.seqs
        for frame in (*back.until("caught-up"), *back.until("caught-up"))
        if frame.event == "record"
    }
    assert seen == {topic: [3, 4, 5], other: [5]}


def test_an_id_never_takes_the_session_forward(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, *range(5))
    url = watcher.session({topic: {"from_seq": 1}})["stream_url"]
    assert watcher.open(url, encode_id({topic: 4, "another": 7})).event().seqs == [2, 3, 4, 5]


def test_an_id_that_makes_no_sense_changes_nothing(watcher: Watcher, client: Client, topic: str) -> None:
    client.append(topic, 1)
    for last_id in ("nonsense!", "AQID", encode_id({"x": -1})):
        url = watcher.session({topic: {}})["stream_url"]
        assert watcher.open(url, last_id).event().seqs == [1]


def test_many_topics_get_a_short_checkpoint_instead_of_a_map(watcher: Watcher, client: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(100)]
    for name in names:
        client.append(name, 1, 2)
    wanted = {name: {} for name in names}
    url = watcher.session(wanted)["stream_url"]
    stream = watcher.open(url)
    ids: dict[str, str] = {}
    while len(ids) < len(names):
        frame = stream.event()
        if frame.event == "record":
            assert frame.id is not None
            ids[frame.data["topic"]] = frame.id
    half_way = ids[list(ids)[49]]
    assert len(half_way) < 300
    delivered = set(list(ids)[:50])
    again = watcher.open(url, half_way)
    left: set[str] = set()
    while len(left) < 50:
        frame = again.event()
        if frame.event == "record":
            left.add(frame.data["topic"])
    assert left == set(names) - delivered
    # The same checkpoint starts another session, if it names the same topics.
    fresh = watcher.session(wanted, cursor=half_way)["topics"]
    assert {name for name in names if fresh[name]["from_seq"] == 2} == delivered
    assert client.post("/v0/watch", {"topics": {names[0]: {}}, "cursor": half_way}).status == 400


def test_a_client_goes_on_after_a_crash_of_the_server_with_the_id_it_has(tmp_path: Path) -> None:
    with serving(tmp_path) as server, watching(server) as watcher:
        watcher.client.append("t", 1, 2, 3)
        session = watcher.session({"t": {}}, limit=2)
        stream = watcher.open(session["stream_url"])
        assert stream.event().seqs == [1, 2]
    with serving(tmp_path) as server, watching(server) as watcher:
        assert watcher.client.get(session["stream_url"]).status == 404
        watcher.client.append("t", 4)
        again = watcher.open(watcher.session({"t": {}}, cursor=stream.last_id)["stream_url"])
        assert again.event().seqs == [3, 4]


def test_a_stream_over_http_2_is_like_any_other(server: ServerProcess, watcher: Watcher, topic: str) -> None:
    watcher.client.append(topic, 1)
    url = watcher.session({topic: {}})["stream_url"]
    connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", url)]
    fields.append(("accept", "text/event-stream"))
    connection.send_headers(1, fields, end_stream=True)
    seen = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
        raw.sendall(connection.data_to_send())
        while seen.count(b"event: record") < 2:
            for event in connection.receive_data(raw.recv(65536)):
                if isinstance(event, ResponseReceived):
                    headers: dict[Any, Any] = dict(event.headers)
                    assert headers["content-type"] == "text/event-stream; charset=utf-8"
                    assert "connection" not in headers
                elif isinstance(event, DataReceived):
                    seen += event.data
                    if event.data.endswith(b"\n\n") and b"caught-up" in event.data:
                        watcher.client.append(topic, 2)
    assert seen.startswith(b"retry: 2000\n\n")

"""Resource caps: each refuses with 429 and its name, and each is freed when its holder goes away."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import START_S_MAX, Client, Reply, ServerProcess, serving


def assert_capped(reply: Reply, limit: str, maximum: int) -> None:
    assert (reply.status, reply.code) == (429, "throttled")
    assert int(reply.headers["retry-after"]) >= 1
    assert (reply.detail["limit"], reply.detail["max"]) == (limit, maximum)


# --- topics ---


@pytest.fixture(scope="module")
def three_topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), max_topics=3) as server:
        client = server.client()
        for name in "abc":
            assert client.put(f"/v0/topics/{name}", {}).status == 201
        yield server


def test_a_topic_over_the_cap_is_429_by_put_and_by_write(three_topics: ServerProcess) -> None:
    client = three_topics.client()
    assert_capped(client.put("/v0/topics/d", {}), "max_topics", 3)
    assert_capped(client.append("d", 1), "max_topics", 3)
    assert_capped(client.append("d", 1, disable_backpressure=True), "max_topics", 3)


def test_at_the_cap_what_exists_can_be_reconfigured_and_written(three_topics: ServerProcess) -> None:
    client = three_topics.client()
    assert client.put("/v0/topics/a", {"cap_records": 7}).status == 200
    assert client.append("a", 1).status == 200


def test_a_deleted_topic_makes_room(three_topics: ServerProcess) -> None:
    client = three_topics.client()
    client.delete("/v0/topics/c")
    assert client.put("/v0/topics/e", {}).status == 201
    assert_capped(client.put("/v0/topics/f", {}), "max_topics", 3)


# --- bytes ---


def test_the_total_of_bytes_is_capped_and_freed_by_deletes(tmp_path: Path) -> None:
    with serving(tmp_path, max_total_bytes="10 KiB") as server:
        client = server.client()
        assert client.append("a", "x" * 5000, idempotency_key="k").status == 201
        assert client.append("b", "x" * 4000).status == 201
        assert_capped(client.append("a", "x" * 2000), "max_total_bytes", 10240)
        assert_capped(client.append("new", "x" * 2000), "max_total_bytes", 10240)
        assert_capped(client.append("a", "x" * 2000, disable_backpressure=True), "max_total_bytes", 10240)
        assert client.append("a", "x" * 5000, idempotency_key="k").json["deduped"] is True
        client.post("/v0/topics/a/delete", {"before_seq": 2})
        assert client.append("a", "x" * 2000).status == 200
        client.put("/v0/topics/b", {"cap_records": 1})
        for _ in range(5):
            assert client.append("b", "x" * 6000).status == 200, "what its own cap evicts does not count"


# --- requests in flight ---


@pytest.fixture(scope="module")
def two_in_flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys="one,two", max_inflight_per_key=2) as server:
        server.key = "one"
        server.client().put("/v0/topics/quiet", {})
        yield server


class Poll:
    """A long-poll held open on a raw socket."""

    def __init__(self, server: ServerProcess, key: str, wait_ms: int = 30_000, topic: str = "quiet") -> None:
        body = json.dumps({"wait_ms": wait_ms}).encode()
        head = f"POST /v0/topics/{topic}/diff HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=START_S_MAX)
        self.socket.sendall(
            head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )

    def close(self) -> None:
        self.socket.close()


def until(client: Client, status: int, topic: str = "quiet") -> Reply:
    """Ask until the answer has this status."""
    deadline_s = time.monotonic() + START_S_MAX
    while True:
        reply = client.get(f"/v0/topics/{topic}?touch=false")
        if reply.status == status:
            return reply
        assert time.monotonic() < deadline_s, reply


def test_requests_in_flight_are_capped_per_key_and_freed_by_disconnects(two_in_flight: ServerProcess) -> None:
    one, two = two_in_flight.client("one"), two_in_flight.client("two")
    polls = [Poll(two_in_flight, "one"), Poll(two_in_flight, "one")]
    assert_capped(until(one, 429), "max_inflight_per_key", 2)
    assert two.get("/v0/topics/quiet").status == 200, "another key has its own cap"
    assert one.get("/v0/health").status == 200
    polls[0].close()
    assert until(one, 200)
    polls[1].close()


def test_what_is_wrong_with_a_request_is_told_before_the_cap_on_requests(tmp_path: Path) -> None:
    environ = {"api_keys": "full,two:rw+a:acme.", "max_inflight_per_key": 1}
    with serving(tmp_path, **environ) as server:
        full, two = server.client("full"), server.client("two")
        full.put("/v0/topics/quiet", {})
        full.put("/v0/topics/acme.q", {"type": "queue"})
        full.append("acme.log", 1, idempotency_key="i")
        full.put("/v0/topics/acme.quiet", {})
        poll = Poll(server, "two", topic="acme.quiet")
        capped = until(two, 429, topic="acme.quiet")
        assert_capped(capped, "max_inflight_per_key", 1)
        held = {"node": "w", "seqs": [1]}
        settling = {"ack": held, "nack": held, "extend": {**held, "lease_ms": 5}}
        wrong = [
            (two.post("/v0/watch", {"topics": {"other": {}}}), 403),
            (two.put("/v0/routers/acme.r", {"source": "acme.log", "dest": "other"}), 403),
            (two.post("/v0/watch", {"topics": {"acme.nope": {}}}), 404),
            (two.post("/v0/topics/acme.nope/diff", {}), 404),
            (two.post("/v0/topics/acme.nope/claim", {"node": "w"}), 404),
            (two.append("acme.nope", 1, create=False), 404),
            (two.post("/v0/topics/acme.log/claim", {"node": "w"}), 409),
            *((two.post(f"/v0/topics/acme.log/{verb}", body), 409) for verb, body in settling.items()),
            (two.post("/v0/topics/acme.q/ack", {**held, "seqs": []}), 400),
        ]
        for reply, status in wrong:
            assert reply.status == status, reply
        again = two.append("acme.log", 1, idempotency_key="i")
        assert (again.status, again.json["deduped"], again.json["seqs"]) == (200, True, [1])
        right = [
            two.post("/v0/watch", {"topics": {"acme.log": {}}}),
            two.put("/v0/routers/acme.r", {"source": "acme.log", "dest": "acme.copy"}),
            two.post("/v0/topics/acme.log/diff", {}),
            two.post("/v0/topics/acme.q/claim", {"node": "w"}),
            *(two.post(f"/v0/topics/acme.q/{verb}", body) for verb, body in settling.items()),
            two.append("acme.log", 2),
            two.append("acme.new", 1),
        ]
        for reply in right:
            assert_capped(reply, "max_inflight_per_key", 1)
        poll.close()
        until(two, 200, topic="acme.quiet")
        assert full.state("acme.log")["head_seq"] == 1
        assert full.get("/v0/topics/acme.new").status == 404


def test_answered_requests_free_their_slot(two_in_flight: ServerProcess) -> None:
    one = two_in_flight.client("one")
    polls = [Poll(two_in_flight, "one", wait_ms=100), Poll(two_in_flight, "one", wait_ms=100)]
    for poll in polls:
        assert poll.socket.recv(65536).startswith(b"HTTP/1.1 200 ")
        poll.close()
    for _ in range(5):
        assert one.get("/v0/topics/quiet").status == 200
        assert one.get("/v0/topics/absent").status == 404
        assert one.post("/v0/topics/quiet", {"records": []}).status == 400


def test_a_poll_whose_client_left_holds_nothing(two_in_flight: ServerProcess) -> None:
    one = two_in_flight.client("one")
    for _ in range(10):
        poll = Poll(two_in_flight, "one")
        poll.close()
    assert until(one, 200)
    assert one.append("quiet", 1).status == 200


# --- one request ---


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Every limit of one request set to something small."""
    limits = {"max_batch_records": 3, "max_record_bytes": 40, "max_meta_bytes": 20, "max_tag_bytes": 3}
    limits |= {"max_node_bytes": 3, "max_body_bytes": 300, "max_limit": 2}
    with serving(tmp_path_factory.mktemp("data"), **limits) as server:
        yield server


@pytest.mark.parametrize(
    ("records", "status", "code"),
    [
        ([{"data": 1}] * 4, 400, "batch_too_large"),
        ([{"data": "x" * 50}], 400, "record_too_large"),
        ([{"data": 1, "meta": {"k": "x" * 20}}], 400, "invalid_request"),
        ([{"data": 1, "tag": "four"}], 400, "invalid_request"),
        ([{"data": 1, "node": "four"}], 400, "invalid_request"),
        ([{"data": "x" * 300}], 413, "payload_too_large"),
        ([{"data": "x" * 10, "tag": "abc", "node": "abc", "meta": {"k": "x"}}] * 3, 201, None),
    ],
    ids=["batch_records", "record_bytes", "meta_bytes", "tag_bytes", "node_bytes", "body_bytes", "just right"],
)
def test_limits_of_one_request_have_their_variables(
    narrow: ServerProcess, topic: str, records: Any, status: int, code: str | None
) -> None:
    reply = narrow.client().post(f"/v0/topics/{topic}", {"records": records})
    assert (reply.status, reply.code if code else None) == (status, code)


def test_max_limit_has_its_variable(narrow: ServerProcess, topic: str) -> None:
    client = narrow.client()
    client.append(topic, 1, 2, 3)
    assert len(client.diff(topic, limit=100)["records"]) == 2
    assert len(client.diff(topic)["records"]) == 2


def test_many_writers_at_once_lose_nothing_and_a_cap_of_0_is_off(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="k", max_topics=0, max_inflight_per_key=0, max_total_bytes=0) as server:
        server.key = "k"
        clients = [server.client() for _ in range(8)]
        seqs: list[int] = []

        def write(client: Client) -> None:
            for number in range(100):
                seqs.extend(client.append("shared", number).json["seqs"])

        threads = [threading.Thread(target=write, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seqs) == list(range(1, 801))

"""Appending over HTTP: seqs, creation, limits, dedupe, full topics."""

import json
import socket
import threading
from typing import Any

import pytest

from tests.serving import START_S_MAX, Client, ServerProcess


def test_one_record_gets_the_next_seq(client: Client, topic: str) -> None:
    first = client.append(topic, {"n": 1})
    assert first.status == 201
    assert {**first.json, "performance": 0} == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 1,
        "seqs": [1],
        "head_seq": 1,
        "count": 1,
        "created": True,
        "deduped": False,
        "performance": 0,
    }
    second = client.append(topic, 2)
    assert (second.status, second.json["created"], second.json["seqs"]) == (200, False, [2])


def test_a_batch_gets_contiguous_seqs_in_order(client: Client, topic: str) -> None:
    client.append(topic, 0)
    reply = client.append(topic, *range(500)).json
    assert reply["seqs"] == list(range(2, 502))
    assert (reply["first_seq"], reply["last_seq"], reply["count"], reply["head_seq"]) == (2, 501, 500, 501)
    assert client.payloads(topic, from_seq=1, limit=1000) == list(range(500))


def test_return_seqs_false_leaves_the_list_out(client: Client, topic: str) -> None:
    reply = client.post(f"/v0/topics/{topic}?return_seqs=false", {"records": [{"data": 1}, {"data": 2}]}).json
    assert "seqs" not in reply
    assert (reply["first_seq"], reply["last_seq"]) == (1, 2)
    assert client.post(f"/v0/topics/{topic}?return_seqs=maybe", {"records": [{"data": 1}]}).status == 400


def test_return_seqs_false_holds_when_a_unique_key_was_pending(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    job = {"data": 1, "unique_key": "u"}
    client.post(f"/v0/topics/{topic}", {"records": [job]})
    for records, last_seq in (([job, {"data": 2}], 2), ([job], 1)):
        reply = client.post(f"/v0/topics/{topic}?return_seqs=false", {"records": records}).json
        assert "seqs" not in reply
        assert reply["last_seq"] == last_seq
    assert client.post(f"/v0/topics/{topic}", {"records": [job]}).json["seqs"] == [1]


@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b"true",
        b'"text"',
        b"[]",
        b'{"b": 1, "a": 2}',
        b"123456789012345678901234567890",
        b"1.10",
        b"1E400",
        b'{ "spaced" :\n [1 , 2] }',
        '"\u00e4\u4e2d\U0001f600"'.encode(),
        rb'"\u00e4\/"',
        b'{"a":1,"a":2}',
    ],
)
def test_data_comes_back_byte_for_byte(client: Client, topic: str, payload: bytes) -> None:
    body = b'{"records":[{"data":' + payload + b"}]}"
    client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    reply = client.post(f"/v0/topics/{topic}/diff")
    assert b'"data":' + payload + b"}]" in reply.body


def test_tag_node_and_meta_come_back_and_are_absent_when_not_given(client: Client, topic: str) -> None:
    records: list[Any] = [
        {"data": 1, "tag": "t", "node": "own", "meta": {"trace": "abc"}},
        {"data": 2},
        {"data": None, "node": ""},
    ]
    client.post(f"/v0/topics/{topic}", {"records": records, "node": "batch"})
    full, bare, empty = client.diff(topic, include_tags=True)["records"]
    assert (full["$tag"], full["$node"], full["meta"], full["data"]) == ("t", "own", {"trace": "abc"}, 1)
    assert (bare["$node"], bare["data"]) == ("batch", 2)
    assert not {"$tag", "meta"} & set(bare)
    assert (empty["$node"], empty["data"]) == ("", None)


def test_performance_tells_where_the_time_went(client: Client, topic: str) -> None:
    disk = client.append(topic, 1).json["performance"]
    assert disk["fsync_ms"] == 0
    assert disk["wal_append_ms"] > 0
    client.put(f"/v0/topics/{topic}f", {"durable": True})
    assert client.append(topic + "f", 1).json["performance"]["fsync_ms"] > 0


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_takes_and_gives_records(client: Client, topic: str, durability: str) -> None:
    reply = client.append(topic, 1, 2, config={"durability": durability})
    assert reply.status == 201
    assert client.state(topic)["config"]["durability"] == durability
    assert client.payloads(topic) == [1, 2]


# --- creation ---


def test_create_false_on_an_absent_topic_is_404(client: Client, topic: str) -> None:
    reply = client.append(topic, 1, create=False)
    assert (reply.status, reply.code) == (404, "topic_not_found")
    assert client.append(topic, 1, create=True).status == 201


def test_config_applies_only_to_the_write_that_creates(client: Client, topic: str) -> None:
    client.append(topic, 1, config={"cap_records": 5, "durability": "memory"})
    config = client.state(topic)["config"]
    assert (config["cap_records"], config["durability"]) == (5, "memory")
    client.append(topic, 1, config={"cap_records": 9})
    assert client.state(topic)["config"]["cap_records"] == 5


def test_a_bad_inline_config_is_400(client: Client, topic: str) -> None:
    reply = client.append(topic, 1, config={"ttl_ms": -1})
    assert reply.status == 400
    assert reply.detail["field"] == "config.ttl_ms"


# --- limits ---


@pytest.mark.parametrize(
    ("record", "code", "field"),
    [
        ({"data": 1, "tag": "x" * 257}, "invalid_request", "records[0].tag"),
        ({"data": 1, "node": "x" * 129}, "invalid_request", "records[0].node"),
        ({"data": 1, "meta": {"k": "x" * 17000}}, "invalid_request", "records[0].meta"),
        ({"data": 1, "meta": {str(number): 1 for number in range(65)}}, "invalid_request", "records[0].meta"),
        ({"data": 1, "meta": [1]}, "invalid_request", "records[0].meta"),
        ({"data": "x" * (1 << 20)}, "record_too_large", "records[0]"),
        ({"data": "x" * ((1 << 20) - 100), "meta": {"k": "y" * 200}}, "record_too_large", "records[0]"),
    ],
    ids=["tag", "node", "meta bytes", "meta keys", "meta type", "data", "data and meta"],
)
def test_a_record_over_a_limit_is_400(client: Client, topic: str, record: Any, code: str, field: str) -> None:
    reply = client.post(f"/v0/topics/{topic}", {"records": [record]})
    assert (reply.status, reply.code, reply.detail["field"]) == (400, code, field)
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize(("keys", "status"), [(64, 201), (65, 400)])
@pytest.mark.parametrize("value", ["1", '{"a": "b:c", "d": [1]}'])
def test_a_key_of_meta_counts_each_time_it_stands_there(
    client: Client, topic: str, keys: int, status: int, value: str
) -> None:
    pairs = ",".join([f'"k": {value}'] * keys).encode()
    body = b'{"records":[{"data":1,"meta":{%b}}]}' % pairs
    reply = client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    assert reply.status == status, reply
    assert status == 201 or reply.detail["field"] == "records[0].meta"


def test_what_just_fits_is_taken(client: Client, topic: str) -> None:
    record = {
        "data": "x" * (1 << 10),
        "tag": "t" * 256,
        "node": "n" * 128,
        "meta": {str(number): 1 for number in range(64)},
    }
    assert client.post(f"/v0/topics/{topic}", {"records": [record]}).status == 201
    assert client.append(topic, "x" * ((1 << 20) - 2)).status == 200


def test_too_many_records_are_400(client: Client, topic: str) -> None:
    reply = client.append(topic, *range(10001))
    assert (reply.status, reply.code) == (400, "batch_too_large")
    assert client.append(topic, *range(10000)).json["count"] == 10000


@pytest.mark.parametrize("records", [[], None, {}, [{}], [{"tag": "x"}], [1]])
def test_records_must_be_a_list_of_records(client: Client, topic: str, records: Any) -> None:
    reply = client.post(f"/v0/topics/{topic}", {"records": records})
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.detail["field"].startswith("records")


def test_one_bad_record_spoils_the_whole_batch(client: Client, topic: str) -> None:
    client.append(topic, 0)
    assert client.post(f"/v0/topics/{topic}", {"records": [{"data": 1}, {"data": 2, "tag": "x" * 300}]}).status == 400
    assert client.state(topic)["head_seq"] == 1


# --- idempotency ---


def test_a_repeated_key_gets_the_original_seqs(client: Client, topic: str) -> None:
    first = client.append(topic, 1, 2, idempotency_key="k").json
    client.append(topic, 3)
    again = client.append(topic, "other", idempotency_key="k")
    assert again.status == 200
    assert (again.json["seqs"], again.json["deduped"], again.json["created"]) == (first["seqs"], True, False)
    assert client.state(topic)["head_seq"] == 3


def test_the_header_is_a_key_and_the_body_wins(client: Client, topic: str) -> None:
    body = {"records": [{"data": 1}]}
    header = {"Idempotency-Key": "h"}
    assert client.post(f"/v0/topics/{topic}", body, headers=header).json["deduped"] is False
    assert client.post(f"/v0/topics/{topic}", body, headers=header).json["deduped"] is True
    assert client.append(topic, 1, idempotency_key="h").json["deduped"] is True
    other = client.post(f"/v0/topics/{topic}", {**body, "idempotency_key": "b"}, headers=header).json
    assert (other["deduped"], other["seqs"]) == (False, [2])


def test_keys_are_scoped_to_their_topic(client: Client, topic: str) -> None:
    client.append(topic + "a", 1, idempotency_key="k")
    assert client.append(topic + "b", 1, idempotency_key="k").json["deduped"] is False


@pytest.mark.parametrize("key", ["", "x" * 257, 5])
def test_a_key_has_1_to_256_characters(client: Client, topic: str, key: Any) -> None:
    reply = client.append(topic, 1, idempotency_key=key)
    assert (reply.status, reply.detail["field"]) == (400, "idempotency_key")


def test_a_window_of_0_is_off(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"idempotency_window_ms": 0})
    client.append(topic, 1, idempotency_key="k")
    assert client.append(topic, 1, idempotency_key="k").json["deduped"] is False


def test_a_full_topic_never_blocks_a_repeated_write(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"discard": "reject", "cap_records": 1})
    client.append(topic, 1, idempotency_key="k")
    assert client.append(topic, 2).code == "topic_full"
    assert client.append(topic, 1, idempotency_key="k").json["deduped"] is True


def test_a_key_whose_write_is_on_its_way_gets_that_writes_outcome(server: ServerProcess, topic: str) -> None:
    server.client().put(f"/v0/topics/{topic}", {"durable": True})
    clients = [server.client() for _ in range(8)]
    replies: list[Any] = []

    def write(client: Client) -> None:
        replies.append(client.append(topic, 1, idempotency_key="same").json)

    threads = [threading.Thread(target=write, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply["seqs"] for reply in replies] == [[1]] * 8
    assert sorted(reply["deduped"] for reply in replies) == [False] + [True] * 7


# --- full topics ---


def test_a_full_reject_topic_is_422_and_takes_nothing(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"discard": "reject", "cap_records": 3})
    client.append(topic, 1, 2)
    reply = client.append(topic, 3, 4)
    assert (reply.status, reply.code) == (422, "topic_full")
    assert client.state(topic)["count"] == 2
    assert client.append(topic, 3).status == 200


def test_a_batch_that_could_never_fit_is_topic_full(client: Client, topic: str) -> None:
    reply = client.append(topic, 1, 2, config={"discard": "reject", "cap_records": 1})
    assert reply.code == "topic_full"
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_a_full_old_topic_evicts_and_takes(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    assert client.append(topic, 1, 2, 3).status == 200
    assert client.payloads(topic) == [2, 3]


# --- the connection ---


def test_pipelined_appends_are_answered_in_order(server: ServerProcess, topic: str) -> None:
    one = json.dumps({"records": [{"data": 1}]}).encode()
    head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(one) + one
    with socket.create_connection(("127.0.0.1", server.port), timeout=START_S_MAX) as connection:
        connection.sendall(request * 20)
        received = b""
        while received.count(b'"first_seq"') < 20:
            piece = connection.recv(65536)
            assert piece
            received += piece
    assert [int(part.split(b",")[0]) for part in received.split(b'"first_seq":')[1:]] == list(range(1, 21))


def test_a_chunked_body_is_taken(server: ServerProcess, topic: str) -> None:
    head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = b'10\r\n{"records":[{"da\r\n0D\r\nta":1234}]}  \r\n0\r\n\r\n'
    with socket.create_connection(("127.0.0.1", server.port), timeout=START_S_MAX) as connection:
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201 ")
    assert server.client().payloads(topic) == [1234]

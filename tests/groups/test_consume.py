"""Consume and ack over HTTP: every rule that a worker written for this API relies on."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.groups.consumers import Consumer, payload_of, token
from tests.serving import Client, ServerProcess


def filled(client: Client, topic: str, count: int) -> None:
    assert client.append(topic, *({"n": number} for number in range(count))).status in (200, 201)


# --- messages ---


def test_a_record_appended_through_v0_is_a_message_here(client: Client, consumer: Consumer, topic: str) -> None:
    record = {"data": {"text": "hi"}, "tag": "order-1", "node": "user_123", "meta": {"op": "Update", "x": [1]}}
    client.post(f"/v0/topics/{topic}", {"records": [record]})
    stamp = client.diff(topic)["records"][0]["$ts"]
    batch = consumer.batch()
    assert batch == {
        "messages": [
            {
                "topic_id": topic,
                "partition_id": 0,
                "offset": 0,
                "payload": base64.b64encode(b'{"text": "hi"}').decode(),
                "key": "order-1",
                "timestamp_ms": stamp,
                "user": "user_123",
                "op": "Update",
            }
        ],
        "next_offset": 1,
        "has_more": False,
    }


def test_a_bare_record_has_a_null_key_an_empty_user_and_is_an_insert(
    client: Client, consumer: Consumer, topic: str
) -> None:
    filled(client, topic, 1)
    (message,) = consumer.batch()["messages"]
    assert (message["key"], message["user"], message["op"]) == (None, "", "Insert")


@pytest.mark.parametrize(
    ("meta", "op"),
    [
        ({"op": "Insert"}, "Insert"),
        ({"op": "Update"}, "Update"),
        ({"op": "Delete"}, "Delete"),
        ({"op": "update"}, "Insert"),
        ({"op": "Upsert"}, "Insert"),
        ({"op": 7}, "Insert"),
        ({"op": {"a": 1}}, "Insert"),
        ({"other": "Delete"}, "Insert"),
        ({}, "Insert"),
    ],
)
def test_op_is_one_of_three_or_insert(client: Client, consumer: Consumer, topic: str, meta: Any, op: str) -> None:
    client.post(f"/v0/topics/{topic}", {"records": [{"data": {}, "meta": meta}]})
    assert consumer.batch()["messages"][0]["op"] == op


@pytest.mark.parametrize(
    "data",
    [
        b'{"big":123456789012345678901234567890,"e":1E5 , "s":"\\u00e9\xc3\xa9"}',
        b'{ "data": {"meta":{"op":"Delete"}}, "x": ",\\"data\\":" }',
        b'[1,2,{"$ts":9}]',
        b'"text"',
        b"null",
    ],
)
@pytest.mark.parametrize("node", [None, 'no"de,"data":', "ü"])
def test_the_payload_is_the_data_byte_for_byte(
    client: Client, consumer: Consumer, topic: str, data: bytes, node: str | None
) -> None:
    import json

    fields = f'"node":{json.dumps(node)},' if node is not None else ""
    body = b'{"records":[{%b"data":%b},{"data":{},"tag":"t"},{"data":%b,"meta":{"a":1}}]}' % (
        fields.encode(),
        data,
        data,
    )
    client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    first, _, last = consumer.batch()["messages"]
    assert base64.b64decode(first["payload"], validate=True) == data
    assert base64.b64decode(last["payload"], validate=True) == data
    assert first["user"] == (node or "")


def test_offsets_start_at_zero_without_holes(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 5)
    assert consumer.offsets() == [0, 1, 2, 3, 4]


# --- without a group ---


def test_without_a_group_every_read_honours_start_and_leaves_no_trace(
    client: Client, consumer: Consumer, topic: str
) -> None:
    filled(client, topic, 3)
    consumer.group = None
    assert consumer.offsets() == consumer.offsets() == [0, 1, 2]
    absent = consumer.client.post("/v1/api/topics/consume", {"topic_id": topic, "start": "Earliest"})
    assert len(absent.json["messages"]) == 3
    assert consumer.offsets(start={"Offset": 2}) == [2]
    assert consumer.client.get(f"/v1/api/topics/groups?topic_id={topic}").json == {"groups": []}


@pytest.mark.parametrize(
    ("start", "offsets", "next_offset"),
    [
        ("Latest", [], 3),
        ("latest", [], 3),
        (None, [], 3),
        ("Earliest", [0, 1, 2], 3),
        ("EARLIEST", [0, 1, 2], 3),
        ({"Offset": 1}, [1, 2], 3),
        ({"offset": 2}, [2], 3),
        ({"Offset": 7}, [], 7),
    ],
)
@pytest.mark.parametrize("group", [None, "fresh"])
def test_start_decides_for_a_group_without_progress_and_for_no_group(
    client: Client, consumer: Consumer, topic: str, start: Any, offsets: list[int], next_offset: int, group: str | None
) -> None:
    filled(client, topic, 3)
    consumer.group = group
    batch = consumer.batch(start=start)
    assert [message["offset"] for message in batch["messages"]] == offsets
    assert batch["next_offset"] == next_offset


def test_latest_is_the_default_start(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 3)
    reply = consumer.client.post("/v1/api/topics/consume", {"topic_id": topic})
    assert reply.json == {"messages": [], "next_offset": 3, "has_more": False}


# --- with a group ---


def test_a_group_resumes_after_what_it_acked_and_ignores_start(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 5)
    assert consumer.offsets(limit=2) == [0, 1]
    assert consumer.ack(1) == {"success": True, "acknowledged_offset": 1}
    assert consumer.offsets(limit=1, start={"Offset": 0}) == [2]
    consumer.ack(2)
    assert consumer.offsets(start="Latest") == [3, 4]


def test_nothing_is_acked_by_consuming(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 2)
    consumer.offsets()
    assert consumer.standing()["committed_offset"] is None


def test_a_range_handed_to_one_consumer_is_not_handed_to_another(
    client: Client, consumer: Consumer, another: Consumer, topic: str
) -> None:
    filled(client, topic, 5)
    assert consumer.offsets(limit=2) == [0, 1]
    assert another.offsets(limit=2) == [2, 3]
    assert consumer.offsets() == [4]
    assert another.offsets() == []


def test_groups_do_not_see_each_other(client: Client, consumer: Consumer, another: Consumer, topic: str) -> None:
    filled(client, topic, 2)
    another.group = "others"
    assert consumer.offsets() == another.offsets() == [0, 1]
    consumer.ack(1)
    another.ack(0)
    assert (consumer.standing()["lag"], another.standing()["lag"]) == (0, 1)


def test_an_empty_answer_says_where_reading_goes_on(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 3)
    assert consumer.batch(start="Latest")["next_offset"] == 3
    consumer.offsets()
    consumer.ack(1)
    batch = consumer.batch()
    assert (batch["messages"], batch["next_offset"]) == ([], 2)


@pytest.mark.parametrize("start", ["Earliest", "Latest", {"Offset": 0}])
def test_an_empty_answer_without_a_commit_does_not_say_0(
    client: Client, consumer: Consumer, another: Consumer, topic: str, start: Any
) -> None:
    filled(client, topic, 3)
    consumer.offsets()
    assert another.batch(start=start) == {"messages": [], "next_offset": 3, "has_more": False}
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 99})
    another.group = None
    assert another.batch(start=start)["next_offset"] == 3


@pytest.mark.parametrize(("limit", "count", "has_more"), [(2, 2, True), (3, 3, True), (4, 3, False), (None, 3, False)])
def test_has_more_says_that_the_batch_reached_the_limit(
    client: Client, consumer: Consumer, topic: str, limit: int | None, count: int, has_more: bool
) -> None:
    filled(client, topic, 3)
    batch = consumer.batch(limit=limit)
    assert (len(batch["messages"]), batch["has_more"]) == (count, has_more)


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 1), (-0.0, 1), (10**6, 1000), (10**30, 1000), (1e30, 1000), (None, 100)]
)
def test_a_limit_is_clamped_to_one_and_a_thousand(
    client: Client, consumer: Consumer, topic: str, limit: Any, count: int
) -> None:
    filled(client, topic, 1005)
    assert len(consumer.offsets(limit=limit)) == count
    consumer.group = None
    assert len(consumer.offsets(limit=limit)) == count


def test_unknown_fields_are_ignored(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 1)
    assert consumer.offsets(whatever={"a": 1}) == [0]
    consumer.ack(0, more=True)


def test_deleted_records_are_passed_over(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 5)
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 3})
    assert consumer.offsets() == [2, 3, 4]
    consumer.ack(4)
    assert consumer.standing()["lag"] == 0


def test_lag_counts_what_there_is_to_consume(client: Client, consumer: Consumer, topic: str) -> None:
    client.append(topic, *range(10))
    consumer.ack(1)
    assert consumer.standing()["lag"] == 8
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 6})
    assert consumer.standing()["lag"] == 5
    consumer.offsets(limit=2)
    another = Consumer(consumer.client, topic)
    another.offsets(limit=2)
    another.ack(8, from_offset=7)
    assert consumer.standing()["acked_ahead"] == 2
    assert consumer.standing()["lag"] == 3
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 99})
    assert consumer.offsets() == []
    assert consumer.standing()["lag"] == 0


def test_what_a_worker_does_all_day(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 25)
    seen: list[int] = []
    start: Any = "Earliest"
    while True:
        batch = consumer.batch(start=start, limit=10)
        if not batch["messages"]:
            break
        seen += [payload_of(message)["n"] for message in batch["messages"]]
        consumer.ack(batch["messages"][-1]["offset"])
        start = {"Offset": batch["next_offset"]}
    assert seen == list(range(25))


# --- acks ---


def test_an_ack_commits_inclusively(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 12)
    consumer.offsets(limit=11)
    assert consumer.ack(10) == {"success": True, "acknowledged_offset": 10}
    assert consumer.offsets() == [11]


def test_a_lower_ack_moves_nothing(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 5)
    consumer.offsets()
    consumer.ack(4)
    assert consumer.ack(1) == {"success": True, "acknowledged_offset": 4}
    assert consumer.ack(1, from_offset=0) == {"success": True, "acknowledged_offset": 4}
    assert consumer.standing()["committed_offset"] == 4
    assert consumer.offsets() == []


def test_an_ack_beyond_the_head_is_clamped_to_the_head(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 3)
    consumer.offsets()
    assert consumer.ack(10**15) == {"success": True, "acknowledged_offset": 2}
    filled(client, topic, 1)
    assert consumer.offsets() == [3]


def test_an_ack_before_anything_was_written_is_a_bad_request(client: Client, consumer: Consumer, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    asked = {"topic_id": topic, "group_id": "workers", "upto_offset": 5}
    refused = consumer.client.post("/v1/api/topics/ack", asked)
    assert (refused.status, refused.json["code"]) == (400, "BAD_REQUEST")
    filled(client, topic, 2)
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 99})
    assert consumer.ack(5)["acknowledged_offset"] == 1, "written and deleted is clamped to the head"


def test_an_ack_commits_whatever_was_handed_out_below(
    client: Client, consumer: Consumer, another: Consumer, topic: str
) -> None:
    filled(client, topic, 12)
    assert consumer.offsets(limit=5) == [0, 1, 2, 3, 4]
    assert another.offsets(limit=6) == [5, 6, 7, 8, 9, 10]
    assert another.ack(10) == {"success": True, "acknowledged_offset": 10}
    standing = consumer.standing()
    assert (standing["committed_offset"], standing["open_claims"], standing["lag"]) == (10, 0, 1)
    assert consumer.offsets() == [11]


def test_an_ack_of_a_range_over_anothers_open_claim_says_what_holds_it_back(
    client: Client, consumer: Consumer, another: Consumer, topic: str
) -> None:
    filled(client, topic, 6)
    assert consumer.offsets(limit=2) == [0, 1]
    assert another.offsets(limit=2) == [2, 3]
    assert another.ack(3, from_offset=2) == {
        "success": True,
        "acknowledged_offset": None,
        "committed_offset": None,
        "held_back": [{"from_offset": 0, "to_offset": 1}],
    }
    assert another.offsets() == [4, 5]
    assert consumer.ack(1, from_offset=0) == {"success": True, "acknowledged_offset": 3}
    assert consumer.standing()["committed_offset"] == 3


def test_a_range_beyond_the_end_covers_nothing(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 3)
    assert consumer.offsets() == [0, 1, 2]
    assert consumer.ack(9, from_offset=5) == {"success": True, "acknowledged_offset": None}
    assert consumer.ack(9, from_offset=0) == {"success": True, "acknowledged_offset": 2}
    filled(client, topic, 1)
    assert consumer.offsets() == [3]


def test_groups_are_listed_with_their_lag(client: Client, consumer: Consumer, another: Consumer, topic: str) -> None:
    filled(client, topic, 10)
    consumer.offsets(limit=4)
    consumer.ack(1)
    standing = {
        "topic_id": topic,
        "partition_id": 0,
        "group_id": "workers",
        "committed_offset": 1,
        "next_offset": 2,
        "last_offset": 9,
        "lag": 8,
        "open_claims": 1,
        "expired_claims": 0,
        "acked_ahead": 0,
    }
    assert consumer.standing() == standing
    another.group = "b"
    another.offsets(limit=1)
    listed = consumer.client.get(f"/v1/api/topics/groups?topic_id={topic}").json["groups"]
    assert [group["group_id"] for group in listed] == ["b", "workers"]


def test_latest_offsets_tell_where_partitions_end(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 3)
    client.put(f"/v0/topics/{topic}:p1")
    asked = [{"topic_id": topic, "partition_id": 0}, {"topic_id": topic, "partition_id": 1}, {"topic_id": topic}]
    reply = consumer.client.post("/v1/api/topics/latest-offsets", {"partitions": asked})
    full = {"topic_id": topic, "partition_id": 0, "next_offset": 3, "last_offset": 2}
    empty = {"topic_id": topic, "partition_id": 1, "next_offset": 0, "last_offset": None}
    assert reply.json == {"offsets": [full, empty, full]}


# --- resets ---


@pytest.fixture
def root(server: ServerProcess, topic: str) -> Consumer:
    return Consumer(server.client(token("dba")), topic)


@pytest.mark.parametrize(
    ("start", "next_offset", "offsets"),
    [("Earliest", 0, [0, 1, 2]), ("Latest", 3, []), ({"Offset": 1}, 1, [1, 2]), ({"Offset": 99}, 3, [])],
)
def test_a_group_can_be_put_elsewhere(
    client: Client, consumer: Consumer, root: Consumer, topic: str, start: Any, next_offset: int, offsets: list[int]
) -> None:
    filled(client, topic, 3)
    consumer.offsets(limit=2)
    consumer.ack(0)
    asked = {"topic_id": topic, "group_id": "workers", "start": start}
    reply = root.client.post("/v1/api/topics/groups/reset", asked)
    partitions = [{"partition_id": 0, "next_offset": next_offset}]
    assert (reply.status, reply.json) == (200, {"success": True, "partitions": partitions})
    assert consumer.offsets(start="Latest") == offsets


def test_a_group_can_be_forgotten(client: Client, consumer: Consumer, root: Consumer, topic: str) -> None:
    filled(client, topic, 3)
    consumer.offsets()
    consumer.ack(2)
    asked = {"topic_id": topic, "group_id": "workers", "forget": True}
    assert root.client.post("/v1/api/topics/groups/reset", asked).status == 200
    assert consumer.offsets(start={"Offset": 1}) == [1, 2]


def test_a_reset_without_a_place_is_refused(client: Client, root: Consumer, topic: str) -> None:
    filled(client, topic, 1)
    reply = root.client.post("/v1/api/topics/groups/reset", {"topic_id": topic, "group_id": "workers"})
    assert (reply.status, reply.json["code"]) == (400, "BAD_REQUEST")


def test_groups_end_with_their_topic(client: Client, consumer: Consumer, topic: str) -> None:
    filled(client, topic, 3)
    consumer.offsets()
    consumer.ack(2)
    client.delete(f"/v0/topics/{topic}")
    filled(client, topic, 2)
    assert consumer.offsets() == [0, 1]


# --- bad input ---


def test_an_unknown_topic_is_not_found(consumer: Consumer) -> None:
    for reply in (
        consumer.ask(),
        consumer.ask(group_id=None),
        consumer.ask(partition_id="all"),
        consumer.client.post(
            "/v1/api/topics/ack", {"topic_id": consumer.topic, "group_id": "workers", "upto_offset": 0}
        ),
        consumer.client.post("/v1/api/topics/latest-offsets", {"partitions": [{"topic_id": "no such name!"}]}),
    ):
        assert reply.status == 404
        assert set(reply.json) == {"error", "code"}
        assert reply.json["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "asked",
    [
        {"topic_id": ""},
        {"topic_id": "   "},
        {},
        {"topic_id": 7},
        {"topic_id": "t", "start": "Sometime"},
        {"topic_id": "t", "start": {"Offset": -1}},
        {"topic_id": "t", "start": {"Seq": 1}},
        {"topic_id": "t", "start": 5},
        {"topic_id": "t", "limit": "many"},
        {"topic_id": "t", "limit": 2.5},
        {"topic_id": "t", "limit": -1},
        {"topic_id": "t", "limit": -1e300},
        {"topic_id": "t", "group_id": ""},
        {"topic_id": "t", "group_id": "  "},
        {"topic_id": "t", "partition_id": -1},
        {"topic_id": "t", "partition_id": "first"},
        {"topic_id": "t", "group_id": "g" * 300},
        {"topic_id": "t", "group_id": 1},
        {"topic_id": "t", "timeout_seconds": "long"},
    ],
)
def test_a_consume_that_makes_no_sense_is_a_bad_request(server: ServerProcess, client: Client, asked: Any) -> None:
    filled(client, "t", 1)
    reply = server.client(token()).post("/v1/api/topics/consume", asked)
    assert reply.status == 400
    assert set(reply.json) == {"error", "code"}
    assert reply.json["code"] == "BAD_REQUEST"


@pytest.mark.parametrize(
    "asked",
    [
        {"topic_id": "t", "group_id": "", "upto_offset": 0},
        {"topic_id": "t", "group_id": " ", "upto_offset": 0},
        {"topic_id": "", "group_id": "g", "upto_offset": 0},
        {"topic_id": "t", "upto_offset": 0},
        {"topic_id": "t", "group_id": None, "upto_offset": 0},
        {"topic_id": "t", "group_id": "g"},
        {"topic_id": "t", "group_id": "g", "upto_offset": -1},
        {"topic_id": "t", "group_id": "g", "upto_offset": "1"},
        {"topic_id": "t", "group_id": "g", "upto_offset": 1.5},
        {"topic_id": "t", "group_id": "g", "upto_offset": 2**64},
        {"topic_id": "t", "group_id": "g", "upto_offset": 2, "from_offset": 3},
        {"topic_id": "t", "group_id": "g", "upto_offset": 2, "from_offset": -1},
        {"topic_id": "t", "group_id": "g", "upto_offset": 2, "from_offset": "0"},
        {"topic_id": "t", "group_id": "g", "upto_offset": 0, "partition_id": "all"},
    ],
)
def test_an_ack_that_makes_no_sense_is_a_bad_request(server: ServerProcess, client: Client, asked: Any) -> None:
    filled(client, "t", 1)
    reply = server.client(token()).post("/v1/api/topics/ack", asked)
    assert (reply.status, reply.json["code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff", b'{"topic_id":"t",}', b"[" * 20_000])
def test_bad_json_is_a_bad_request(server: ServerProcess, body: bytes) -> None:
    for path in ("consume", "ack", "latest-offsets"):
        reply = server.client(token()).post(
            f"/v1/api/topics/{path}", body=body, headers={"Content-Type": "application/json"}
        )
        assert (reply.status, reply.json["code"]) == (400, "BAD_REQUEST")


def test_a_body_over_the_limit_is_413(server: ServerProcess) -> None:
    reply = server.client(token()).post(
        "/v1/api/topics/consume",
        body=b"{}",
        headers={"Content-Type": "application/json", "Content-Length": str(1 << 30)},
    )
    assert reply.status == 413


def test_the_routes_are_described(client: Client) -> None:
    document = client.get("/v0/openapi.json").json
    described = {path for path in document["paths"] if path.startswith("/v1/api")}
    assert described == {
        "/v1/api/auth/login",
        "/v1/api/auth/refresh",
        "/v1/api/topics/ack",
        "/v1/api/topics/consume",
        "/v1/api/topics/groups",
        "/v1/api/topics/groups/reset",
        "/v1/api/topics/latest-offsets",
    }
    consume = document["paths"]["/v1/api/topics/consume"]["post"]
    assert consume["security"] == [{"token": []}]
    shapes = {status: item["content"]["application/json"]["schema"] for status, item in consume["responses"].items()}
    assert shapes["404"] == {"$ref": "#/components/schemas/GroupErrorReply"}
    assert shapes["401"] == {"$ref": "#/components/schemas/TokenErrorReply"}

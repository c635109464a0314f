"""`POST /v0/append` over a real socket: forms, order of checks, scopes, prefixes, limits; and the client's verb."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Client, Reply, ServerProcess, serving
from topics.client import AppendedAll, AsyncClient, Outgoing, TopicBatch, TopicsError
from topics.client import Client as SyncClient

KEYS = "root,reader:r,good:w:good:,boss:w+a:good:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("multi") / "data"
    with serving(data, api_keys=KEYS, max_batch_records=100) as server:
        server.key = "root"
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


def append(client: Client, topics: dict[str, Any], query: str = "", **fields: Any) -> Reply:
    parts = {
        name: part if isinstance(part, dict) else {"records": [{"data": payload} for payload in part]}
        for name, part in topics.items()
    }
    return client.post(f"/v0/append{query}", {"topics": parts, **fields})


def test_the_answer_tells_of_every_topic(client: Client) -> None:
    first = append(client, {"shape-a": [1, 2], "shape-b": [3]})
    assert first.status == 201
    assert first.json["topics"] == {
        "shape-a": {"first_seq": 1, "last_seq": 2, "head_seq": 2, "created": True, "seqs": [1, 2]},
        "shape-b": {"first_seq": 1, "last_seq": 1, "head_seq": 1, "created": True, "seqs": [1]},
    }
    assert first.json["deduped"] is False
    assert set(first.json["performance"]) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    second = append(client, {"shape-a": [4], "shape-c": [5]}, "?return_seqs=false")
    assert second.status == 201
    assert second.json["topics"]["shape-a"] == {"first_seq": 3, "last_seq": 3, "head_seq": 3, "created": False}
    assert append(client, {"shape-a": [6]}).status == 200
    assert client.payloads("shape-a") == [1, 2, 4, 6]


def test_a_key_comes_in_the_body_or_in_a_header_and_the_body_wins(client: Client) -> None:
    body = {"topics": {"key-a": {"records": [{"data": 1}]}, "key-b": {"records": [{"data": 2}]}}}
    header = {"Idempotency-Key": "k"}
    assert client.post("/v0/append", body, headers=header).status == 201
    again = client.post("/v0/append", body, headers=header)
    assert (again.status, again.json["deduped"]) == (200, True)
    assert again.json["topics"]["key-a"] == {
        "first_seq": 1,
        "last_seq": 1,
        "head_seq": 1,
        "created": False,
        "seqs": [1],
    }
    other = client.post("/v0/append", {**body, "idempotency_key": "other"}, headers=header)
    assert other.json["deduped"] is False
    for bad in ("", "x" * 257):
        refused = append(client, {"key-a": [1]}, idempotency_key=bad)
        assert (refused.status, refused.detail["field"]) == (400, "idempotency_key")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"topics": {}}, "invalid_request"),
        ({"topics": []}, "invalid_request"),
        ({"topics": {"a": {}}}, "invalid_request"),
        ({"topics": {"a": {"records": []}}}, "invalid_request"),
        ({"topics": {"": {"records": [{"data": 1}]}}}, "invalid_request"),
        ({"topics": {"a/b": {"records": [{"data": 1}]}}}, "invalid_request"),
        ({"topics": {"a": {"records": [{"data": 1}], "idempotency_key": "k"}}}, "invalid_request"),
        ({"topics": {"a": {"records": [{"data": 1}]}}, "create": False}, "invalid_request"),
        ({"topics": {"a": {"records": [{"data": 1, "topic": "b"}]}}}, "invalid_request"),
        ({"topics": {f"t{number}": {"records": [{"data": 1}]} for number in range(1_001)}}, "batch_too_large"),
        ({"topics": {"a": {"records": [{"data": 1}] * 51}, "b": {"records": [{"data": 1}] * 50}}}, "batch_too_large"),
    ],
)
def test_what_is_malformed_is_refused_before_anything_else(server: ServerProcess, body: Any, code: str) -> None:
    for key in ("root", "good"):
        refused = server.client(key).post("/v0/append", body)
        assert (refused.status, refused.code) == (400, code)
        assert refused.detail["field"]


def test_scopes_and_prefixes_hold_for_every_name(server: ServerProcess) -> None:
    assert append(server.client("reader"), {"good:a": [1]}).status == 403
    assert server.client("nobody").post("/v0/append", {}).status == 401
    good, admin = server.client("good"), server.client("boss")
    assert append(good, {"good:a": [1], "good:b": [2]}).status == 201
    refused = append(good, {"good:a": [3], "evil:a": [4]})
    assert (refused.status, refused.code, refused.detail["field"]) == (403, "forbidden", "topics.evil:a")
    # Whatever the other topic is, nothing about it is revealed.
    assert append(good, {"good:a": [3], "evil:a": {"records": [{"data": 1, "delay_ms": 1}]}}).status == 403
    queue = {"records": [{"data": 1}], "config": {"type": "queue", "dead_letter": "evil:dead"}}
    refused = append(admin, {"good:a": [3], "good:queue": queue})
    assert (refused.status, refused.detail["field"]) == (403, "topics.good:queue.config.dead_letter")
    config = {"records": [{"data": 1}], "config": {"cap_records": 5}}
    refused = append(good, {"good:a": [3], "good:new": config})
    assert (refused.status, refused.detail["scope"]) == (403, "admin")
    # A configuration that has no effect needs no administrator.
    assert append(good, {"good:a": [3], "good:b": config}).status == 200
    assert append(admin, {"good:a": [3], "good:new": config}).status == 201
    assert good.post("/v0/append", {"topics": {}}).status == 400


def test_errors_come_in_the_order_of_all_requests(client: Client) -> None:
    client.put("/v0/topics/order-full", {"cap_records": 1, "discard": "reject"})
    client.append("order-full", 0)
    client.put("/v0/topics/order-ephemeral", {"durability": "ephemeral"})
    absent = {"records": [{"data": 1}], "create": False}
    delayed = {"records": [{"data": 1, "delay_ms": 1}]}
    topics: dict[str, Any] = {
        "order-delayed": delayed,
        "order-absent": absent,
        "order-ephemeral": [1],
        "order-full": [1],
        "order-new": [1],
    }
    for gone, status, code in (
        ("order-delayed", 400, "invalid_request"),
        ("order-absent", 404, "topic_not_found"),
        ("order-ephemeral", 409, "topic_exists_incompatible"),
        ("order-full", 422, "topic_full"),
    ):
        refused = append(client, topics)
        assert (refused.status, refused.code) == (status, code)
        del topics[gone]
    assert client.get("/v0/topics/order-new").status == 404
    assert append(client, topics).status == 201


def test_too_many_topics_are_429_and_a_repeated_write_is_not(tmp_path: Path) -> None:
    with serving(tmp_path / "data", max_topics=2) as server:
        client = server.client()
        assert append(client, {"a": [1], "b": [1]}, idempotency_key="k").status == 201
        refused = append(client, {"a": [1], "c": [1]})
        assert (refused.status, refused.detail["limit"]) == (429, "max_topics")
        assert client.payloads("a") == [1]
        assert append(client, {"a": [1], "b": [1]}, idempotency_key="k").json["deduped"] is True


def test_waiting_readers_of_both_topics_are_answered(server: ServerProcess, client: Client) -> None:
    append(client, {"wait-a": [0], "wait-b": [0]})
    found: dict[str, Any] = {}

    def wait(topic: str, reader: Client) -> None:
        found[topic] = reader.payloads(topic, from_seq=1, wait_ms=20_000)

    waiting = [threading.Thread(target=wait, args=(topic, server.client())) for topic in ("wait-a", "wait-b")]
    for thread in waiting:
        thread.start()
    append(client, {"wait-a": [1], "wait-b": [2]})
    for thread in waiting:
        thread.join()
    assert found == {"wait-a": [1], "wait-b": [2]}


def test_a_waiting_claim_gets_its_job(server: ServerProcess, client: Client) -> None:
    assert client.put("/v0/topics/claimed", {"type": "queue"}).status == 201
    worker, found = server.client(), list[Any]()

    def claim() -> None:
        found.append(worker.post("/v0/topics/claimed/claim", {"node": "n", "wait_ms": 20_000}).json)

    waiting = threading.Thread(target=claim)
    waiting.start()
    append(client, {"claimed": {"records": [{"data": "job", "unique_key": "u"}]}, "claimed-log": [1]})
    waiting.join()
    assert [record["data"] for record in found[0]["claimed"]] == ["job"]


def test_readers_never_see_half_of_it(server: ServerProcess) -> None:
    """Who has seen the record in one topic finds its twin in the other, whichever it asks first."""
    client, stop, torn = server.client(), threading.Event(), list[tuple[int, int]]()
    append(client, {"half-a": [0], "half-b": [0]})

    def read(reader: Client, first: str, second: str) -> None:
        while not stop.is_set():
            seen = reader.state(first)["head_seq"]
            twin = reader.state(second)["head_seq"]
            if twin < seen:
                torn.append((seen, twin))

    readers = [
        threading.Thread(target=read, args=(server.client(), *pair))
        for pair in (("half-a", "half-b"), ("half-b", "half-a"))
    ]
    for reader in readers:
        reader.start()
    for number in range(1, 200):
        append(client, {"half-a": [number], "half-b": [number]})
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_openapi_describes_it(client: Client) -> None:
    document = json.loads(client.get("/v0/openapi.json").body)
    operation = document["paths"]["/v0/append"]["post"]
    assert {"200", "201", "400", "403", "404", "409", "422", "429", "507"} <= set(operation["responses"])
    request = document["components"]["schemas"]["MultiAppendRequest"]
    assert request["properties"]["topics"]["maxProperties"] == 1_000


# --- the client ---


def test_the_client_appends_to_all(server: ServerProcess) -> None:
    with SyncClient(f"http://127.0.0.1:{server.port}", key="root", node="me") as client:
        done = client.append_all(
            {
                "client-a": [1, Outgoing(2, tag="t")],
                "client-b": TopicBatch([3], node="other", config={"type": "queue"}),
                "client-c": b'[{"data":4}]',
            },
            idempotency_key="k",
        )
        assert not done.deduped
        assert done.topics["client-a"].seqs == [1, 2]
        assert done.topics["client-b"].created
        assert [(record.data, record.node) for record in client.diff("client-a").records] == [(1, "me"), (2, "me")]
        again = client.append_all({"client-a": [1], "client-b": [3], "client-c": [4]}, idempotency_key="k")
        assert again.deduped
        assert again.topics["client-a"].seqs == [1, 2]
        with pytest.raises(TopicsError, match="client-absent"):
            client.append_all({"client-a": [5], "client-absent": TopicBatch([6], create=False)})
        assert client.state("client-a").head_seq == 2
        short = client.append_all({"client-a": [5, 6]}, return_seqs=False)
        assert short.topics["client-a"].seqs == [3, 4]


def test_the_asynchronous_client_does_the_same(server: ServerProcess) -> None:
    async def append() -> AppendedAll:
        async with AsyncClient(f"http://127.0.0.1:{server.port}", key="root") as client:
            return await client.append_all({"async-a": [1], "async-b": [2]})

    done = asyncio.run(append())
    assert (done.topics["async-a"].last_seq, done.topics["async-b"].head_seq) == (1, 1)

"""Transactions over a real socket: forms, scopes, prefixes, limits and garbage."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.serving import Client, Reply, ServerProcess, serving

VERSION_MAX = 2**63 - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = "all:rw+d+a,writer:w,reader:r,limited:w:orders-"
    with serving(tmp_path_factory.mktemp("txns") / "data", api_keys=keys, max_staged_bytes_per_app=40_000) as server:
        server.key = "all"
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


def stage(client: Client, app: str, version: int, *payloads: Any, **fields: Any) -> Reply:
    records = [payload if isinstance(payload, dict) else {"data": payload} for payload in payloads]
    return client.post(f"/v0/txns/{app}/{version}/stage", {"stage": "s", "records": records, **fields})


def test_stage_commit_and_read(client: Client) -> None:
    staged = stage(client, "etl", 7, 1, 2, topic="t")
    assert staged.status == 200
    assert staged.json["done"] is False
    assert {key: staged.json[key] for key in ("stage", "part", "records")} == {"stage": "s", "part": 0, "records": 2}
    assert client.get("/v0/topics/t").status == 404
    listed = client.get("/v0/txns/etl").json
    assert listed["version"] is None
    assert [item["stage"] for item in listed["stages"]] == ["s"]
    done = client.post("/v0/txns/etl/7/commit", {"stages": ["s"]})
    assert done.status == 200
    assert done.json["deduped"] is False
    assert done.json["topics"] == {"t": {"first_seq": 1, "last_seq": 2, "records": 2}}
    again = client.post("/v0/txns/etl/7/commit", {"stages": ["s"]})
    assert (again.status, again.json["deduped"], again.json["topics"]) == (200, True, done.json["topics"])
    assert stage(client, "etl", 7, 3, topic="t").json["done"] is True
    assert "topics" not in client.post("/v0/txns/etl/3/commit", {}).json
    assert client.get("/v0/txns/etl").json["version"] == 7


def test_tokens_over_http(client: Client) -> None:
    first = client.post("/v0/txns/fenced/fence", {}).json["fence"]
    second = client.post("/v0/txns/fenced/fence").json["fence"]
    assert second == first + 1
    refused = stage(client, "fenced", 1, 1, topic="t", fence=first)
    assert (refused.status, refused.code) == (409, "fenced")
    assert stage(client, "fenced", 1, 1, topic="t", fence=second).status == 200
    assert client.post("/v0/txns/fenced/1/commit", {"stages": ["s"]}).code == "fenced"
    assert client.post("/v0/txns/fenced/1/abort", {"stages": ["s"], "fence": second}).json["aborted"] == 1
    refused = client.post("/v0/txns/fenced/1/commit", {"stages": ["s"], "fence": second})
    assert (refused.status, refused.code) == (409, "stage_not_found")


def test_apps_are_listed_in_pages_and_forgotten(client: Client) -> None:
    for name in ("page-a", "page-b", "page-c"):
        assert client.post(f"/v0/txns/{name}/1/commit", {}).status == 200
    first = client.get("/v0/txns?prefix=page-&page_size=2").json
    assert [item["app"] for item in first["apps"]] == ["page-a", "page-b"]
    rest = client.get(f"/v0/txns?prefix=page-&page_size=2&cursor={first['next_cursor']}").json
    assert [item["app"] for item in rest["apps"]] == ["page-c"]
    assert rest["next_cursor"] is None
    assert client.delete("/v0/txns/page-a").json["forgotten"] is True
    assert client.delete("/v0/txns/page-a").json["forgotten"] is False


@pytest.mark.parametrize(
    ("key", "method", "path", "status"),
    [
        ("reader", "POST", "/v0/txns/a/1/stage", 403),
        ("reader", "POST", "/v0/txns/a/1/commit", 403),
        ("reader", "POST", "/v0/txns/a/1/abort", 403),
        ("reader", "POST", "/v0/txns/a/fence", 403),
        ("reader", "GET", "/v0/txns/a", 403),
        ("reader", "GET", "/v0/txns", 403),
        ("writer", "DELETE", "/v0/txns/a", 403),
        ("writer", "GET", "/v0/txns/a", 200),
        ("nobody", "GET", "/v0/txns/a", 401),
        ("writer", "PUT", "/v0/txns/a", 405),
        ("writer", "GET", "/v0/txns/a/1/stage", 405),
        ("writer", "POST", "/v0/txns/a/1", 404),
        ("writer", "POST", "/v0/txns/a/1/other", 404),
    ],
)
def test_scopes_and_paths(server: ServerProcess, key: str, method: str, path: str, status: int) -> None:
    body = {"stage": "s", "records": [{"data": 1}]} if method == "POST" else None
    assert server.client(key).request(method, path, body).status == status


def test_a_key_writes_only_where_its_prefixes_allow(server: ServerProcess, client: Client) -> None:
    limited = server.client("limited")
    assert stage(limited, "orders-app", 1, 1, topic="orders-1").status == 200
    for payload, topic in ((1, "secrets"), ({"data": 1, "topic": "secrets"}, "orders-1")):
        refused = stage(limited, "orders-app", 1, payload, topic=topic)
        assert (refused.status, refused.code) == (403, "forbidden")
    assert stage(client, "orders-app", 1, 1, topic="secrets", stage="other").status == 200
    refused = limited.post("/v0/txns/orders-app/1/commit", {"stages": ["s", "other"]})
    assert refused.status == 403
    assert limited.post("/v0/txns/orders-app/1/commit", {"stages": ["s"]}).status == 200


@pytest.mark.parametrize("version", ["-1", "1.5", "one", str(VERSION_MAX + 1), "9" * 30, "%20", "٣"])
def test_a_version_is_a_whole_number(client: Client, version: str) -> None:
    path = quote(version) if not version.isascii() else version
    refused = client.post(f"/v0/txns/app/{path}/commit", {})
    assert (refused.status, refused.detail["field"]) == (400, "version")


def test_the_highest_version_is_taken(client: Client) -> None:
    assert stage(client, "highest", VERSION_MAX, 1, topic="t").status == 200
    body = {"stages": ["s"]}
    assert client.post(f"/v0/txns/highest/{VERSION_MAX}/commit", body).json["version"] == VERSION_MAX
    assert client.post(f"/v0/txns/highest/{VERSION_MAX}/commit", body).json["deduped"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"stage":"s"}',
        b'{"stage":1,"records":[{"data":1}],"topic":"t"}',
        b'{"stage":"s","records":[],"topic":"t"}',
        b'{"stage":"s","records":[{"data":1}]}',
        b'{"stage":"s","records":[{"data":1}],"topic":"!hidden"}',
        b'{"stage":"s","records":[{"data":1}],"topic":"t","part":-1}',
        b'{"stage":"s","records":[{"data":nope}],"topic":"t"}',
        b'{"stage":"s","records":[{"data":"\xff"}],"topic":"t"}',
        b'{"stage":"s","records":[{"data":1,"meta":5}],"topic":"t"}',
        b'{"stage":"s","records":[{"tag":"x"}],"topic":"t"}',
    ],
)
def test_garbage_is_refused_and_nothing_is_kept(client: Client, body: bytes) -> None:
    refused = client.post("/v0/txns/garbage/1/stage", body=body, headers={"Content-Type": "application/json"})
    assert refused.status == 400
    assert refused.code == "invalid_request"
    kept = client.get("/v0/txns/garbage").json
    assert (kept["version"], kept["fence"], kept["stages"]) == (None, 0, [])


@pytest.mark.parametrize("body", [{"stages": "s"}, {"stages": ["s", "s"]}, {"stages": [""]}, {"stages": [1]}])
def test_a_list_of_stages_names_each_once(client: Client, body: Any) -> None:
    assert client.post("/v0/txns/garbage/1/commit", body).status == 400


def test_names_of_apps_are_decoded(client: Client) -> None:
    assert client.post("/v0/txns/my%20query%3Asink/1/commit", {}).status == 200
    assert client.get("/v0/txns/my%20query%3Asink").json["app"] == "my query:sink"


def test_too_much_staged_is_429_with_the_limit(client: Client) -> None:
    refused = stage(client, "greedy", 1, "x" * 50_000, topic="t")
    assert (refused.status, refused.detail["limit"]) == (429, "max_staged_bytes_per_app")
    assert "max_staged_bytes_per_app" in refused.json["error"]["message"]


def test_a_watcher_is_told_once(server: ServerProcess) -> None:
    client, reader = server.client(), server.client()
    client.append("watched", "x")
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(reader.diff("watched", from_seq=1, wait_ms=20_000, limit=1_000))
    )
    waiting.start()
    for number in range(3):
        stage(client, "watcher", 1, *range(300), topic="watched", stage=f"s{number}")
    client.post("/v0/txns/watcher/1/commit", {"stages": ["s0", "s1", "s2"]})
    waiting.join()
    assert len(answers[0]["records"]) == 900
    assert answers[0]["head_seq"] == 901


def test_openapi_tells_of_both_parameters(client: Client) -> None:
    document = json.loads(client.get("/v0/openapi.json").body)
    operation = document["paths"]["/v0/txns/{app}/{version}/stage"]["post"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["app", "version"]


def test_a_drained_server_ends_its_commits(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        for part in range(3):
            records = [{"data": number} for number in range(10_000)]
            client.post("/v0/txns/app/1/stage", {"stage": "s", "part": part, "topic": "t", "records": records})
        replies: list[Reply] = []
        other = server.client()
        committing = threading.Thread(
            target=lambda: replies.append(other.post("/v0/txns/app/1/commit", {"stages": ["s"]}))
        )
        committing.start()
        while client.get("/v0/topics/t").status == 404:
            pass
        assert server.terminate() == 0
        committing.join()
    with serving(tmp_path / "data") as server:
        client = server.client()
        committed = bool(replies and replies[0].status == 200)
        assert client.get("/v0/txns/app").json["version"] == (1 if committed else None)
        client.post("/v0/txns/app/1/commit", {"stages": ["s"]})
        assert client.get("/v0/topics/t").json["count"] == 30_000

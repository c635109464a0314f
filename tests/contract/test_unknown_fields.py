"""Fields that do not exist: refused in every body of /v0 at any depth, with the name that was probably meant."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.serving import Client, ServerProcess, serving
from topics.api.groups.users import hash_password

STRANGER = "no_such_field_at_all"


def bodies(client: Client) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Every operation with a JSON body, as the server itself documents it: method, path, schema, all schemas."""
    document = client.get("/v0/openapi.json").json
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                yield method.upper(), path, content["application/json"]["schema"], document["components"]["schemas"]


def with_a_stranger(schema: Any, schemas: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Bodies that have an unknown field in one object each, and the place that the error must name."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for choice in schema.get("anyOf", ()):
        yield from with_a_stranger(choice, schemas)
    if "properties" in schema or schema.get("additionalProperties") is False:
        yield {STRANGER: 1}, STRANGER
    for name, inner in schema.get("properties", {}).items():
        for body, place in with_a_stranger(inner, schemas):
            yield {name: body}, f"{name}{'' if place.startswith('[') else '.'}{place}"
    if isinstance(schema.get("items"), dict):
        for body, place in with_a_stranger(schema["items"], schemas):
            yield [body], f"[0].{place}"
    if isinstance(schema.get("additionalProperties"), dict):
        for body, place in with_a_stranger(schema["additionalProperties"], schemas):
            yield {"name": body}, f"[...].{place}"


def filled(path: str) -> str:
    """The path with a value for each variable part; where a number belongs, 1 is a name, too."""
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


def test_every_body_refuses_an_unknown_field_at_any_depth(client: Client) -> None:
    seen: set[str] = set()
    for method, path, schema, schemas in bodies(client):
        if not path.startswith("/v0/"):
            continue
        for body, place in with_a_stranger(schema, schemas):
            reply = client.request(method, filled(path), body)
            assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", place), (path, reply)
            seen.add(f"{method} {path} {place}")
    assert {
        f"PUT /v0/topics/{{topic}} retry_backoff.{STRANGER}",
        f"POST /v0/topics/{{topic}} records[0].{STRANGER}",
        f"POST /v0/topics/{{topic}} config.retry_backoff.{STRANGER}",
        f"POST /v0/topics/{{topic}}/diff {STRANGER}",
        f"POST /v0/topics/{{topic}}/claim {STRANGER}",
        f"POST /v0/watch topics[...].{STRANGER}",
        f"PUT /v0/routers/{{router}} {STRANGER}",
        f"PUT /v0/pipelines/{{pipeline}} sources[...].watermark.{STRANGER}",
    } <= seen
    assert len({place.rpartition(" ")[0] for place in seen}) >= 18


@pytest.mark.parametrize(
    ("body", "field", "nearest"),
    [
        ({"durabilty": "fsync"}, "durabilty", "durability"),
        ({"ttl": 5}, "ttl", "ttl_ms"),
        ({"cap_record": 5}, "cap_record", "cap_records"),
        ({"retry_backoff": {"max": 5}}, "retry_backoff.max", "max_ms"),
    ],
)
def test_the_nearest_name_is_told_and_nothing_is_made(
    client: Client, topic: str, body: Any, field: str, nearest: str
) -> None:
    reply = client.put(f"/v0/topics/{topic}", body)
    assert (reply.status, reply.detail) == (400, {"field": field, "nearest": nearest})
    assert field in reply.json["error"]["message"]
    assert f'"{nearest}"' in reply.json["error"]["message"]
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_a_name_like_no_other_gets_the_list_of_known_ones(client: Client, topic: str) -> None:
    reply = client.post(f"/v0/topics/{topic}/delete", {"xyzzy": 1})
    assert "before_seq, match" in reply.json["error"]["message"]
    # However long the name, the error stays short.
    reply = client.post(f"/v0/topics/{topic}/delete", {"before_seq" * 100_000: 1})
    assert reply.status == 400
    assert len(reply.body) < 500


@pytest.mark.parametrize(
    ("path", "body", "field", "nearest"),
    [
        ("", {"order": 1}, "order", None),
        ("", {"records": [{"order": 1}]}, "records[0].order", None),
        ("/diff", {"from": 1}, "from", "from_seq"),
        ("/diff", {"since": 1}, "since", None),
        ("/claim", {"name": 1}, "name", None),
    ],
)
def test_a_name_that_is_hardly_similar_is_not_suggested(
    client: Client, topic: str, path: str, body: Any, field: str, nearest: str | None
) -> None:
    reply = client.post(f"/v0/topics/{topic}{path}", body)
    message = reply.json["error"]["message"]
    assert (reply.detail["field"], reply.detail.get("nearest")) == (field, nearest)
    assert ("did you mean" in message) == (nearest is not None)
    assert ("known here: " in message) == (nearest is None)
    if not path:
        assert '{"data": …}' in message


def test_a_long_list_of_known_names_is_cut(client: Client, topic: str) -> None:
    message = client.put(f"/v0/topics/{topic}", {"xyzzy": 1}).json["error"]["message"]
    listed = message.partition("known here: ")[2].split(", ")
    assert (len(listed), listed[0], listed[-1]) == (13, "type", "…")


def test_payloads_and_queue_fields_on_a_log_stay_free(client: Client, topic: str) -> None:
    assert client.put(f"/v0/topics/{topic}", {"type": "log", "lease_ms": 500, "dead_letter": "d"}).status == 201
    record = {"data": {"durabilty": {"x": 1}}, "meta": {"y": {"z": 2}}}
    assert client.post(f"/v0/topics/{topic}", {"records": [record]}).status == 200


JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
EVENTS = {"accept": "text/event-stream"}


@pytest.mark.parametrize(
    ("method", "query", "nearest", "headers", "body"),
    [
        ("PATCH", "dryrun=true", "dry_run", JSON, b'{"cap_records": 1}'),
        ("PUT", "replac=false", "replace", JSON, b'{"cap_records": 1}'),
        ("DELETE", "ifempty=true", "if_empty", {}, None),
        ("POST", "tga=x", "tag", LINES, b"3"),
        ("GET", "from_sq=1", "from_seq", EVENTS, None),
    ],
)
def test_a_query_that_would_do_harm_if_overlooked_is_refused(
    client: Client, topic: str, method: str, query: str, nearest: str, headers: dict[str, str], body: bytes | None
) -> None:
    client.append(topic, 1, 2)
    path = f"/v0/topics/{topic}/stream" if headers == EVENTS else f"/v0/topics/{topic}"
    reply = client.request(method, f"{path}?{query}", body=body, headers=headers)
    assert (reply.status, reply.json["error"]["detail"]["nearest"]) == (400, nearest)
    assert client.get(f"/v0/topics/{topic}").json["count"] == 2


@pytest.mark.parametrize(
    ("command", "field", "nearest"),
    [
        ({"op": "ping", "tpoic": "a"}, "tpoic", None),
        ({"op": "subscribe", "topic": "a", "from_sequence": 3}, "from_sequence", "from_seq"),
        ({"op": "subscribe", "topics": {"a": {"form_seq": 3}}}, "topics[...].form_seq", "from_seq"),
        ({"op": "unsubscribe", "tpoic": "a"}, "tpoic", "topic"),
        ({"op": "publish", "topic": "a", "records": [{"data": 1, "tga": "x"}]}, "records[0].tga", "tag"),
    ],
)
def test_commands_of_a_websocket_refuse_them_too(
    server: ServerProcess, command: dict[str, Any], field: str, nearest: str | None
) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/v0/ws") as socket:
        socket.send(json.dumps({**command, "request_id": 7}))
        answer = json.loads(socket.recv(20))
        assert (answer["op"], answer["code"], answer["request_id"]) == ("error", "invalid_request", 7)
        assert (answer["detail"]["field"], answer["detail"].get("nearest")) == (field, nearest)


def test_bodies_of_the_other_protocol_still_ignore_them(tmp_path: Path) -> None:
    users = f"ada:service:{hash_password('opensesame')}"
    with serving(tmp_path, jwt_secret="s" * 40, users=users) as server:
        client = server.client()
        client.append("app.t", 1)
        login = {"user": "ada", "password": "opensesame", STRANGER: 1}
        reply = client.post("/v1/api/auth/login", login)
        assert reply.status == 200, reply
        bearer = server.client(reply.json["access_token"])
        consumed = bearer.post(
            "/v1/api/topics/consume", {"topic_id": "app.t", "group_id": "g", "start": "Earliest", STRANGER: {"x": 1}}
        )
        assert (consumed.status, len(consumed.json["messages"])) == (200, 1)

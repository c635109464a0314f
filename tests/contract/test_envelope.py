"""What holds for every route: the error envelope, statuses, content types, the order of checks, performance."""

import gzip
import json
import socket
from typing import Any

import pytest

from tests.serving import START_S_MAX, Client, ServerProcess

JSON_TYPE = {"Content-Type": "application/json"}


def test_an_unknown_path_is_404_in_the_envelope(client: Client) -> None:
    reply = client.get("/v0/nothing")
    assert (reply.status, reply.code) == (404, "not_found")
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json["error"]) >= {"code", "message"}
    message = "there is no resource at /v0/nothing; /v0/openapi.json lists the paths"
    assert (reply.json["error"]["message"], reply.detail) == (message, {"path": "/v0/nothing"})


def test_the_path_of_a_404_is_shown_escaped_and_cut(client: Client) -> None:
    assert client.get("/v0/%22%0A%3Cb%3E?token=secret").detail == {"path": "/v0/%22%0A%3Cb%3E"}
    reply = client.get("/v0/" + "x" * 5_000)
    assert reply.detail["path"].startswith("/v0/xxx")
    assert len(reply.body) < 600


@pytest.mark.parametrize(
    "path", ["/", "/v0", "/v0/", "/v0//topics", "/v0/topics/", "/v1/topics", "/v0/topics/a/b/c", "/v0/topics/a/nope"]
)
def test_paths_that_do_not_exist_are_404(client: Client, path: str) -> None:
    assert client.get(path).status == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/v0/topics/a", {"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"}),
        ("POST", "/v0/topics", {"GET", "HEAD"}),
        ("GET", "/v0/topics/a/diff", {"POST"}),
        ("PUT", "/v0/topics/a/delete", {"POST"}),
        ("DELETE", "/v0/health", {"GET", "HEAD"}),
        ("OPTIONS", "/v0/metrics", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_ones(
    client: Client, method: str, path: str, allowed: set[str]
) -> None:
    reply = client.request(method, path)
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert set(reply.headers["allow"].split(", ")) == allowed


def test_a_success_is_bare_data_with_performance(client: Client, topic: str) -> None:
    for reply in (
        client.put(f"/v0/topics/{topic}", {}),
        client.append(topic, 1),
        client.post(f"/v0/topics/{topic}/diff"),
        client.get(f"/v0/topics/{topic}"),
        client.get("/v0/topics"),
        client.post(f"/v0/topics/{topic}/delete", {"before_seq": 1}),
        client.get("/v0/health"),
        client.get("/v0/ready"),
        client.delete(f"/v0/topics/{topic}"),
    ):
        assert reply.status in (200, 201)
        assert "error" not in reply.json
        assert reply.json["performance"]["server_total_ms"] >= 0


def test_errors_tell_their_time_too(client: Client, topic: str) -> None:
    reply = client.get(f"/v0/topics/{topic}")
    assert reply.code == "topic_not_found"
    assert reply.json["performance"]["server_total_ms"] >= 0
    assert reply.detail == {"topic": topic}


def test_head_is_get_without_the_body(client: Client, topic: str) -> None:
    client.append(topic, 1)
    reply = client.request("HEAD", f"/v0/topics/{topic}")
    assert reply.status == 200
    assert reply.body == b""
    assert int(reply.headers["content-length"]) > 0


# --- bodies ---


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"'],
)
def test_the_content_type_is_matched_as_a_media_type(client: Client, topic: str, content_type: str) -> None:
    reply = client.put(f"/v0/topics/{topic}", body=b"{}", headers={"Content-Type": content_type})
    assert reply.status == 201


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/jsonx", "application/json; charset=latin-1", "*/*"]
)
@pytest.mark.parametrize(("method", "suffix"), [("PUT", ""), ("POST", ""), ("POST", "/diff"), ("POST", "/delete")])
def test_a_body_of_another_type_is_415(
    client: Client, topic: str, content_type: str | None, method: str, suffix: str
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    reply = client.request(method, f"/v0/topics/{topic}{suffix}", body=b"{}", headers=headers)
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    error = reply.json["error"]
    assert error.get("detail", {}).get("received") == content_type
    assert (content_type or "needs the header") in error["message"]
    if content_type is None or "charset" not in content_type:
        others = ["x-ndjson", "cloudevents+json", "cloudevents-batch+json"] if (method, suffix) == ("POST", "") else []
        assert error["detail"]["accepted"] == ["application/json", *(f"application/{other}" for other in others)]
        assert all(each in error["message"] for each in error["detail"]["accepted"])


def test_an_absent_body_means_an_empty_object_on_put_and_diff(client: Client, topic: str) -> None:
    assert client.put(f"/v0/topics/{topic}").status == 201
    assert client.post(f"/v0/topics/{topic}/diff").json["records"] == []


def test_an_absent_body_on_append_lacks_its_records(client: Client, topic: str) -> None:
    reply = client.post(f"/v0/topics/{topic}")
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.detail["field"] == "records"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'{"records":[{"data":NaN}]}',
        b'{"records":[{"data":01}]}',
        b'{"records":[{"data":1},]}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":"\\ud800"}]}',
        b'{"records":[{"data":"\x01"}]}',
        b'\xef\xbb\xbf{"records":[{"data":1}]}',
        b'{"records":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"records":[{"data":1}]} x',
    ],
    ids=lambda body: repr(body[:32]),
)
def test_what_is_not_json_is_400(client: Client, topic: str, body: bytes) -> None:
    reply = client.post(f"/v0/topics/{topic}", body=body, headers=JSON_TYPE)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize("value", [5.0, "5", True, -1, None, [5], 2**64])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/diff", "from_seq"),
        ("/delete", "before_seq"),
        ("", "ttl_ms"),
        ("", "cap_records"),
        ("", "idempotency_window_ms"),
    ],
)
def test_numbers_are_strict_and_the_field_is_named(
    client: Client, topic: str, path: str, field: str, value: Any
) -> None:
    client.append(topic, 1)
    method = "POST" if path else "PUT"
    reply = client.request(method, f"/v0/topics/{topic}{path}", {field: value})
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.detail["field"] == field
    assert field in reply.json["error"]["message"]


def test_null_means_absent_for_what_is_not_a_number(client: Client, topic: str) -> None:
    body = {
        "records": [{"data": 1, "tag": None, "node": None, "meta": None}],
        **dict.fromkeys(("node", "idempotency_key", "create", "config", "disable_backpressure")),
    }
    assert client.post(f"/v0/topics/{topic}", body).status == 201
    config = {"type": None, "discard": None, "durability": None, "durable": None, "priority": None, "dead_letter": None}
    assert client.put(f"/v0/topics/{topic}", config).status == 200
    assert len(client.diff(topic, node=None, include_tags=None, include_meta=None)["records"]) == 1


def test_a_field_deep_inside_is_named(client: Client, topic: str) -> None:
    reply = client.post(f"/v0/topics/{topic}", {"records": [{"data": 1}, {"data": 2, "tag": 7}]})
    assert reply.status == 400
    assert "tag" in reply.detail["field"]


def test_gzip_works_both_ways(client: Client, topic: str) -> None:
    body = gzip.compress(json.dumps({"records": [{"data": "x" * 5000}]}).encode())
    sent = client.post(f"/v0/topics/{topic}", body=body, headers={**JSON_TYPE, "Content-Encoding": "gzip"})
    assert sent.status == 201
    got = client.post(f"/v0/topics/{topic}/diff", headers={"Accept-Encoding": "gzip"})
    assert got.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(got.body))["records"][0]["data"] == "x" * 5000
    assert "content-encoding" not in client.post(f"/v0/topics/{topic}/diff").headers


# --- what the protocol layer refuses comes in the same envelope ---


def raw(port: int, data: bytes) -> tuple[int, Any]:
    """Status and body of the first answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=START_S_MAX) as connection:
        connection.sendall(data)
        received = b""
        while b"\r\n\r\n" not in received:
            piece = connection.recv(65536)
            assert piece, received
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += connection.recv(65536)
        return int(head.split()[1]), json.loads(body[:length])


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "uri_too_long"),
        (b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (
            b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
            413,
            "payload_too_large",
        ),
        (b"GET /v0/topics/%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "invalid_request"),
        (b"GET /v0/health HTTP/1.1\r\n\r\n", 400, "invalid_request"),
    ],
    ids=["414", "431", "413", "bad escape", "no host"],
)
def test_refusals_of_the_protocol_have_the_envelope(server: ServerProcess, head: bytes, status: int, code: str) -> None:
    answered, body = raw(server.port, head)
    assert (answered, body["error"]["code"]) == (status, code)


def test_a_bad_escape_in_the_query_is_400(client: Client) -> None:
    assert client.get("/v0/topics?prefix=%zz").code == "invalid_request"


@pytest.mark.parametrize("name", ["..", ".", "-a", "_a", "a%2Fb", "a%20b", "%C3%A4", "a" * 256, "a%3Eb"])
def test_names_outside_the_charset_are_400(client: Client, name: str) -> None:
    for reply in (
        client.put(f"/v0/topics/{name}", {}),
        client.append(name, 1),
        client.get(f"/v0/topics/{name}"),
        client.post(f"/v0/topics/{name}/diff"),
        client.delete(f"/v0/topics/{name}"),
    ):
        assert (reply.status, reply.code) == (400, "invalid_request")


@pytest.mark.parametrize("name", ["a", "A.b_c:d-e", "0", "x" * 255, "render-queue:tenantA"])
def test_names_within_the_charset_work(client: Client, name: str) -> None:
    assert client.append(name, 1).status in (200, 201)
    assert client.state(name)["topic"] == name


def test_escaped_and_plain_names_are_the_same_topic(client: Client, topic: str) -> None:
    client.append(f"{topic}:a", 1)
    escaped = "".join(f"%{byte:02X}" for byte in f"{topic}:a".encode())
    assert client.state(escaped)["head_seq"] == 1


def test_names_are_case_sensitive(client: Client, topic: str) -> None:
    client.append(topic + "a", 1)
    assert client.get(f"/v0/topics/{topic}A").code == "topic_not_found"

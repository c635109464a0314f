"""The log: a line for each request, what is in it and what never is, slow requests, samples, ids that clients send."""

import json
import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.groups.consumers import SECRET, token
from tests.serving import Client, ServerProcess, serving
from topics.api.logs.lines import JsonLines, Lines, TextLines

KEY = "s3cret-key"
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
# More than a pipe holds.
PIPE_BYTES = 128 * 1024


def lines_of(server: ServerProcess) -> list[dict[str, Any]]:
    """The lines of requests up to here."""
    assert server.terminate() == 0
    return [line for line in map(json.loads, server.lines) if line["logger"] == "topics.access"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path, access_log=1, log_format="json", api_keys=f"{KEY},reader:read") as server:
        yield server


def test_a_request_is_one_line_of_json(server: ServerProcess) -> None:
    client = server.client(KEY)
    assert client.append("orders", {"n": 1}).status == 201
    reply = client.get("/v0/topics/orders", headers={"X-Request-Id": "order-17", "traceparent": TRACEPARENT})
    appended, read = lines_of(server)
    assert (appended["method"], appended["route"], appended["path"]) == (
        "POST",
        "/v0/topics/{topic}",
        "/v0/topics/orders",
    )
    assert (appended["status"], appended["key"], appended["level"]) == (201, "1", "info")
    assert appended["bytes_in"] == len(json.dumps({"records": [{"data": {"n": 1}}]}))
    assert appended["bytes_out"] > 100
    assert appended["ms"] > 0
    assert (read["request_id"], read["trace_id"], read["bytes_out"]) == ("order-17", TRACE, len(reply.body))


def test_refused_requests_and_strangers_are_logged_too(server: ServerProcess) -> None:
    server.stranger().get("/v0/topics")
    server.client("reader").append("orders", 1)
    server.client(KEY).get("/v0/nowhere")
    found = [(line["status"], line["route"], line["key"]) for line in lines_of(server)]
    assert found == [(401, None, None), (403, None, None), (404, None, None)]


def test_neither_keys_nor_payloads_are_in_the_log(server: ServerProcess) -> None:
    client = server.client(KEY)
    client.append("orders", {"card": "4111-1111"}, node="n")
    client.post("/v0/topics/orders/diff", {})
    client.get(f"/v0/topics/orders/stream?token={KEY}")
    client.post("/v0/topics/orders", {"records": [{"dada": "4111-1111"}]})
    server.stranger().get("/v0/topics", headers={"Authorization": "Bearer wrong-but-mine"})
    assert len(lines_of(server)) == 5
    assert not re.search(f"{KEY}|4111|wrong-but-mine|token=", server.log)


def test_every_reply_has_an_id_when_requests_are_logged(server: ServerProcess) -> None:
    client = server.client(KEY)
    ids = [client.get("/v0/topics").headers["x-request-id"] for _ in range(5)]
    assert len(set(ids)) == 5
    assert [line["request_id"] for line in lines_of(server)] == ids


def test_streams_are_logged_when_they_open(server: ServerProcess) -> None:
    client = server.client(KEY)
    client.append("orders", 1)
    opened = client._connection
    opened.request(
        "GET", "/v0/topics/orders/stream", headers={"Authorization": f"Bearer {KEY}", "Accept": "text/event-stream"}
    )
    assert opened.getresponse().status == 200
    stream = lines_of(server)[1]
    assert (stream["route"], stream["status"], stream["bytes_out"]) == ("/v0/topics/{topic}/stream", 200, None)


def test_a_client_that_leaves_before_its_reply_is_a_499(server: ServerProcess) -> None:
    server.client(KEY).append("orders", 1)
    waiting = server.waiting("POST", "/v0/topics/orders/diff", {"from_seq": 1, "wait_ms": 60_000}, KEY)
    waiting.close()
    server.settle()
    assert [line["status"] for line in lines_of(server) if line["path"].endswith("/diff")] == [499]


def test_text_lines_are_for_people(tmp_path: Path) -> None:
    with serving(tmp_path, access_log=1) as server:
        server.client().get("/v0/topics", headers={"X-Request-Id": "abc"})
        assert server.terminate() == 0
    assert re.search(
        r"INFO    topics\.access: GET /v0/topics 200 \d+ B \d+\.\d ms key=- id=abc$", server.log, re.MULTILINE
    )


def test_a_name_in_a_token_breaks_no_line(tmp_path: Path) -> None:
    with serving(tmp_path, access_log=1, jwt_secret=SECRET) as server:
        server.client(token(sub="ada\nfake \x1b[31m")).post("/v1/api/topics/consume", {"topic_id": "t"})
        server.client(token(sub="Zoë")).post("/v1/api/topics/consume", {"topic_id": "t"})
        assert server.terminate() == 0
    assert r"key=ada\nfake \x1b[31m id=" in server.log
    assert "key=Zoë id=" in server.log


def test_of_a_sample_one_in_many_is_logged_and_every_failure(tmp_path: Path) -> None:
    with serving(tmp_path, access_log=1, access_log_sample=10, log_format="json") as server:
        client = server.client()
        for _ in range(30):
            client.get("/v0/topics")
        assert len(lines_of(server)) == 3


def test_slow_requests_are_logged_without_an_access_log(tmp_path: Path) -> None:
    """A wait that the client asked for is not slow; everything takes longer than the least that can be set."""
    with serving(tmp_path, slow_request_ms=1, log_format="json") as server:
        client = server.client()
        client.append("t", *({"n": n} for n in range(5_000)))
        client.post("/v0/topics/t/diff", {"from_seq": 5_000, "wait_ms": 200})
        slow = lines_of(server)
    assert [(line["level"], line["route"]) for line in slow if line["method"] == "POST"][:1] == [
        ("warning", "/v0/topics/{topic}")
    ]
    assert all(line["message"].startswith("slow: ") for line in slow)
    assert not [line for line in slow if line["route"].endswith("/diff") and line["ms"] < 200]


def test_without_logs_ids_come_back_and_nothing_else_does(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        given = {"X-Request-Id": "mine", "traceparent": TRACEPARENT}
        for _ in range(6):  # more than it takes to know a head
            reply = client.get("/v0/topics", headers=given)
            assert (reply.headers["x-request-id"], reply.headers["traceparent"]) == ("mine", TRACEPARENT)
        assert "x-request-id" not in client.get("/v0/topics").headers
        assert server.terminate() == 0
    assert "topics.access" not in server.log


def test_a_reader_of_the_log_that_stops_reading_holds_nothing(tmp_path: Path) -> None:
    class Unread(ServerProcess):
        """Its log is read up to the line that says it is ready."""

        def _read_log(self) -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                with self._news:
                    self.lines.append(line.decode())
                    self._news.notify_all()
                if b"ready: " in line:
                    return

    server = Unread(tmp_path, access_log=1).ready()
    try:
        server._reader.join()
        client = server.client()
        for number in range(PIPE_BYTES // 100):
            client.get(f"/v0/topics/{'x' * 100}{number}")
        # The loop itself has something to say.
        server.process.send_signal(signal.SIGHUP)
        assert client.get("/v0/health").status == 200
        assert server.terminate() == 0
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Request-Id", "x" * 129),
        ("X-Request-Id", "two words"),
        ("traceparent", "00-" + "0" * 32 + "-b7ad6b7169203331-01"),
        ("traceparent", f"ff-{TRACE}-b7ad6b7169203331-01"),
        ("traceparent", f"00-{TRACE.upper()}-b7ad6b7169203331-01"),
        ("traceparent", f"{TRACEPARENT}-more"),
        ("traceparent", f"01{TRACEPARENT[2:]}-\xff"),
    ],
)
def test_ids_of_another_form_are_ignored(shared: Client, name: str, value: str) -> None:
    reply = shared.get("/v0/topics", headers={name: value})
    assert reply.status == 200
    assert name.lower() not in reply.headers


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("shared")) as server:
        yield server.client()


def test_errors_streams_and_compressed_replies_carry_the_id(shared: Client) -> None:
    for path in ("/v0/nowhere", "/v0/openapi.json"):
        reply = shared.get(path, headers={"X-Request-Id": "z", "Accept-Encoding": "gzip"})
        assert reply.headers["x-request-id"] == "z"


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()], ids=["text", "json"])
@pytest.mark.parametrize("message", ["an order", 'a "quoted" \u2028 line\n', "half a pair: \udc80"])
def test_a_line_of_a_request_looks_like_any_other(lines: Lines, message: str) -> None:
    record = logging.LogRecord("topics.access", logging.INFO, "", 0, message, None, None)
    line = lines.line(record.created, "INFO", "topics.access", message, {})
    assert line == lines.format(record)
    if isinstance(lines, JsonLines):
        assert "\n" not in line
        assert json.loads(line)["message"] == message

"""Append by lines: each line of the body is a payload, and all of them are appended or none."""

import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Client, Reply, ServerProcess, serving
from topics.model.errors import TopicsError
from topics.model.requests.lines import PIECE_BYTES, PIECE_LINES, decode_lines
from topics.model.settings import Settings

NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), max_batch_records=100, max_record_bytes=1000) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


def put(client: Client, topic: str, body: bytes, query: str = "", **headers: str) -> Reply:
    sent = {**NDJSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.post(f"/v0/topics/{topic}{query}", body=body, headers=sent)


def test_curl_appends_a_file(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"n": 1}\n\n{"n": 2}\r\n"three"\n  \nnull')
    command = ["curl", "-sS", "-H", "content-type: application/x-ndjson", "--data-binary", f"@{tmp_path / 'file'}"]
    done = subprocess.run([*command, f"http://127.0.0.1:{server.port}/v0/topics/curl"], capture_output=True, check=True)
    assert json.loads(done.stdout)["seqs"] == [1, 2, 3, 4]
    assert server.client().payloads("curl") == [{"n": 1}, {"n": 2}, "three", None]


def test_payloads_are_kept_as_they_were_sent(client: Client, topic: str) -> None:
    lines = [b'{"b" : 1.0,  "a":[ ]}', b"1e3", '"\u00fc \\u00fc"'.encode(), b'{"records":[1],"tag":"x"}']
    assert put(client, topic, b"\n".join(lines) + b"\n").status == 201
    raw = client.post(f"/v0/topics/{topic}/diff", {}).body
    assert all(b'"data":%b}' % line in raw for line in lines)


def test_the_query_says_what_holds_for_the_batch(client: Client, topic: str) -> None:
    reply = put(client, topic, b"1\n2\n", "?tag=a%20b&node=eu-1&return_seqs=false")
    assert (reply.status, "seqs" in reply.json, reply.json["last_seq"]) == (201, False, 2)
    shown = client.diff(topic, include_tags=True)["records"]
    assert [(record["$tag"], record["$node"]) for record in shown] == [("a b", "eu-1")] * 2
    assert client.payloads(topic, node="eu-1") == []


def test_the_idempotency_header_and_create_count(client: Client, topic: str) -> None:
    absent = put(client, topic, b"1", "?create=false")
    assert (absent.status, absent.code) == (404, "topic_not_found")
    first, second = (put(client, topic, b"1\n2", Idempotency_Key="k").json for _ in range(2))
    assert (first["deduped"], second["deduped"], second["seqs"]) == (False, True, first["seqs"])
    assert put(client, topic, b"3", "?create=false").json["seqs"] == [3]


def test_jobs_may_be_delayed(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    assert put(client, topic, b"1\n2", "?delay_ms=60000").status == 200
    assert client.state(topic)["queue"]["delayed"] == 2


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"1\n2\n{", 3),
        (b"\n\n\nx\n", 4),
        (b"1 2", 1),
        (b'1\r\n"a\nb"', 2),
        (b'"\xff"', 1),
        (b'\n"\\ud800"', 2),
        (b"\xef\xbb\xbf1", 1),
        (b"1\n,2", 2),
    ],
)
def test_a_bad_line_is_400_with_its_number_and_nothing_is_appended(
    client: Client, topic: str, body: bytes, line: int
) -> None:
    reply = put(client, topic, body)
    assert (reply.status, reply.code, reply.detail["line"]) == (400, "invalid_request", line)
    assert f"line {line} " in reply.json["error"]["message"]
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\t\n"])
def test_no_line_is_400(client: Client, topic: str, body: bytes) -> None:
    reply = put(client, topic, body)
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", "body")


def test_too_many_lines_and_too_long_ones(client: Client, topic: str) -> None:
    assert put(client, topic, b"1\n\n" * 100).status == 201
    reply = put(client, topic, b"1\n" * 101)
    assert (reply.status, reply.code, reply.detail["max"]) == (400, "batch_too_large", 100)
    assert put(client, topic, b'"%b"   \n' % (b"x" * 998)).status == 200
    reply = put(client, topic, b'1\n"%b"\n' % (b"x" * 999))
    assert (reply.status, reply.code, reply.detail) == (400, "record_too_large", {"line": 2, "max": 1000})
    assert client.state(topic)["head_seq"] == 101


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?tag=" + "x" * 257, "tag"),
        ("?node=" + "x" * 129, "node"),
        ("?create=maybe", "create"),
        ("?delay_ms=-1", "delay_ms"),
        ("?return_seqs=2", "return_seqs"),
    ],
)
def test_a_bad_query_is_400(client: Client, topic: str, query: str, field: str) -> None:
    reply = put(client, topic, b"1", query)
    assert (reply.status, reply.detail["field"]) == (400, field)


def test_types_and_codings(client: Client, topic: str) -> None:
    assert put(client, topic, b"1", Content_Type="Application/X-NDJSON; charset=UTF-8").status == 201
    assert put(client, topic, b"1", Content_Type="application/x-ndjson; charset=latin-1").status == 415
    assert put(client, topic, gzip.compress(b"1\n2"), Content_Encoding="gzip").json["count"] == 2
    assert client.post(f"/v0/topics/{topic}/diff", body=b"{}", headers=NDJSON).status == 415
    assert client.state(topic)["head_seq"] == 3


def test_a_key_needs_the_scope_and_the_name(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="writer:write:mine,reader:read") as server:
        assert put(server.client("writer"), "mine", b"1").status == 201
        assert put(server.client("writer"), "yours", b"1").status == 403
        assert put(server.client("reader"), "mine", b"1").status == 403


def test_a_large_body_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        line = b'"%b"\n' % (b"x" * 400)
        assert put(client, "t", line * 10_000).json["count"] == 10_000
        reply = put(client, "t", line * 9_999 + b"x\n")
        assert (reply.status, reply.detail["line"]) == (400, 10_000)
        assert put(client, "t", line * 10_001).code == "batch_too_large"
        assert client.state("t")["head_seq"] == 10_000


def steps_of(body: bytes, settings: Settings) -> tuple[int, Any]:
    """How often decoding pauses, and what it comes to."""
    steps, decoding = 0, decode_lines(body, settings)
    while True:
        try:
            next(decoding)
        except StopIteration as end:
            return steps, end.value
        except TopicsError as error:
            return steps, error
        steps += 1


@pytest.mark.parametrize(
    "body", [b'"%b"\n' % (b"x" * 60_000) * 100, b"1\n" * 10_000, b"\n" * 4_000_000 + b"1", b"1\n" + b" " * 4_000_000]
)
def test_no_step_takes_more_than_a_piece(body: bytes) -> None:
    steps, records = steps_of(body, Settings())
    assert steps >= max(len(body) // (2 * PIECE_BYTES), len(records) // PIECE_LINES)

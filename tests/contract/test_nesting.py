"""Payloads nested too deeply: refused when they come in; older ones are served, and take no other record with them."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from websockets.sync.client import connect

import topics
from tests.cli.terminal import run
from tests.engine.rig import Rig
from tests.groups.consumers import SECRET, Consumer, token
from tests.serving import Client, ServerProcess, serving
from topics.client import Client as PythonClient
from topics.client import Record
from topics.model.errors import InvalidRequest
from topics.model.requests.nesting import NESTING_MAX, is_too_deep
from topics.model.requests.records import AppendRequest, RecordRequest

# About as deep as version 0.1 took it: deeper than the decoder goes anywhere else in the server.
DEEP = 985
PLAIN = [1, 2, 4, 5]


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + "1" + closing * levels


def body_with(record: str, *more: str) -> bytes:
    return f'{{"records":[{",".join([*more, record])}]}}'.encode()


RECORDS: list[tuple[str, Callable[[int], str]]] = [
    ("data", lambda levels: f'{{"data":{nested(levels)}}}'),
    ("data", lambda levels: f'{{"data":{nested(levels, "[ ", " ]")}}}'),
    ("data", lambda levels: f'{{"data":{nested(levels, """{"a":""", "}")}}}'),
    ("meta", lambda levels: f'{{"data":1,"meta":{nested(levels, """{"a]":""", "}")}}}'),
    ("meta", lambda levels: f'{{"data":1,"meta":{{"\\"[":{nested(levels - 1)}}}}}'),
]


def send(client: Client, path: str, body: bytes) -> Any:
    return client.post(path, body=body, headers={"Content-Type": "application/json"})


# --- what comes in ---


@pytest.mark.parametrize(("field", "record"), RECORDS)
def test_the_limit_is_exact_and_named(client: Client, topic: str, field: str, record: Callable[[int], str]) -> None:
    path = f"/v0/topics/{topic}"
    assert send(client, path, body_with(record(NESTING_MAX), '{"data":1}')).status == 201
    for levels in (NESTING_MAX + 1, 700, DEEP, 5_000, 100_000):
        reply = send(client, path, body_with(record(levels), '{"data":1}'))
        assert (reply.status, reply.code, reply.detail["max"]) == (400, "invalid_request", NESTING_MAX)
        assert "at most 256 levels" in reply.json["error"]["message"]
        # Nested too deeply to be decoded, so its position is not known.
        assert reply.detail["field"] in (f"records[1].{field}", "body")
        assert levels > 1_000 or reply.detail["field"] != "body"
    assert client.state(topic)["head_seq"] == 2


def test_many_brackets_beside_each_other_are_not_deep(client: Client, topic: str) -> None:
    wide = json.dumps([[{"a": ["[[[[", {"b": '\\"]}'}]}] for _ in range(20_000)])
    assert send(client, f"/v0/topics/{topic}", body_with(f'{{"data":{wide}}}')).status == 201
    assert client.diff(topic)["records"][0]["data"] == json.loads(wide)


def test_a_record_amid_a_body_that_is_decoded_in_pieces_is_named(client: Client, topic: str) -> None:
    fine = json.dumps({"data": "x" * 1_000})
    body = body_with(RECORDS[0][1](NESTING_MAX + 1), *[fine] * 1_500)
    body = body[:-2] + b"," + ",".join([fine] * 1_500).encode() + b"]}"
    reply = send(client, f"/v0/topics/{topic}", body)
    assert (reply.status, reply.detail) == (400, {"field": "records[1500].data", "max": NESTING_MAX})


def test_transactions_several_topics_and_sockets_have_the_same_limit(
    server: ServerProcess, client: Client, topic: str
) -> None:
    deep, fine = (RECORDS[0][1](levels) for levels in (NESTING_MAX + 1, NESTING_MAX))
    stage = '{"stage":"s","topic":"%s","records":[%s]}'
    assert send(client, f"/v0/txns/{topic}/1/stage", (stage % (topic, deep)).encode()).detail["max"] == NESTING_MAX
    assert send(client, f"/v0/txns/{topic}/1/stage", (stage % (topic, fine)).encode()).status == 200
    several = '{"topics":{"%s":{"records":[%s]}}}'
    assert send(client, "/v0/append", (several % (topic, deep)).encode()).detail["max"] == NESTING_MAX
    assert send(client, "/v0/append", (several % (topic, fine)).encode()).status in (200, 201)
    with connect(f"ws://127.0.0.1:{server.port}/v0/ws") as socket:
        publish = '{"op":"publish","topic":"%s","records":[%s]}'
        socket.send(publish % (topic, deep))
        assert json.loads(socket.recv(20))["detail"] == {"field": "records[0].data", "max": NESTING_MAX}
        socket.send(publish % (topic, fine))
        assert json.loads(socket.recv(20))["op"] == "ack"


def test_nothing_else_in_a_body_may_be_deeper(client: Client, topic: str) -> None:
    definition = {"sources": {"v": {"topic": topic}}, "sql": "SELECT 1", "sink": {"topic": f"{topic}-out"}}
    assert client.put(f"/v0/pipelines/{topic}", definition).status == 201
    status = '{"state":"running","runner":"r","progress":{"a":%s}}'
    path = f"/v0/pipelines/{topic}/status"
    assert send(client, path, (status % nested(700)).encode()).status == 400
    assert send(client, path, (status % nested(200)).encode()).status == 200
    assert client.get(f"/v0/pipelines/{topic}").status == 200


def test_embedded_has_the_same_limit(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as database:
        database.append("a", topics.Json(nested(NESTING_MAX)))
        with pytest.raises(InvalidRequest, match="at most 256 levels"):
            database.append("a", topics.Json(nested(NESTING_MAX + 1)))
        assert database.state("a").count == 1


# --- what version 0.1 has taken ---


@contextmanager
def recursion(limit: int) -> Iterator[None]:
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


def store_deep_records(path: Path) -> None:
    """Five records in a log and in a queue, by the engine, which does not look; the third is as deep as 0.1 took it."""
    deep = RecordRequest(
        data=Raw(nested(DEEP)), tag="t", meta=Raw(b'{"an\\u0020escape":%b}' % nested(DEEP - 1).encode())
    )
    with recursion(5_000), Rig(path) as rig:
        rig.configure("q", type="queue", max_deliveries=1, dead_letter="q.dead", lease_ms=60_000)
        for name in ("log", "q"):
            records = [RecordRequest(data=Raw(b"%d" % number), tag="t") for number in PLAIN]
            records.insert(2, deep)
            rig.finish(rig.engine.append(name, AppendRequest(records)))
        rig.checkpoint()
        rig.close()


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("poisoned") / "data"
    store_deep_records(path)
    with serving(path, jwt_secret=SECRET) as server:
        yield server


def seqs(body: bytes) -> list[int]:
    """Of records in an answer, which is too deep for a decoder."""
    return [int(found) for found in re.findall(rb'"\$seq":(\d+)', body)]


def depth_of(body: bytes) -> bool:
    return is_too_deep(body, DEEP - 1)


@pytest.mark.parametrize(
    "asked", [{}, {"include_tags": True}, {"include_meta": False}, {"node": "n"}, {"node": "n", "include_tags": True}]
)
def test_diff_serves_it_in_every_view(poisoned: ServerProcess, asked: dict[str, Any]) -> None:
    reply = poisoned.client().post("/v0/topics/log/diff", asked)
    assert (reply.status, seqs(reply.body), depth_of(reply.body)) == (200, [1, 2, 3, 4, 5], True)


def test_exports_serve_it(poisoned: ServerProcess) -> None:
    reply = poisoned.client().get("/v0/topics/log/export")
    assert (reply.status, seqs(reply.body), depth_of(reply.body)) == (200, [1, 2, 3, 4, 5], True)


def test_groups_are_handed_it(poisoned: ServerProcess) -> None:
    consumer = Consumer(poisoned.client(token()), "log")
    assert consumer.offsets() == [0, 1, 2, 3, 4]
    consumer.ack(4)
    assert consumer.offsets() == []


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_routers_copy_it_and_what_follows(poisoned: ServerProcess, guarantee: str) -> None:
    client = poisoned.client()
    router = {"source": "log", "dest": f"copy-{guarantee}", "guarantee": guarantee, "backfill": True}
    assert client.put(f"/v0/routers/{guarantee}", router).status == 201
    client.append("log", "later")
    at = 0
    found: list[int] = []
    while len(found) < 6:
        reply = client.post(f"/v0/topics/copy-{guarantee}/diff", {"from_seq": at, "wait_ms": 10_000})
        assert reply.status == 200
        assert seqs(reply.body), client.get(f"/v0/routers/{guarantee}").json
        found += seqs(reply.body)
        at = found[-1]
    client.delete(f"/v0/routers/{guarantee}")
    client.post("/v0/topics/log/delete", {"match": ["tag", "Glob", "nothing*"]})
    client.post(f"/v0/topics/copy-{guarantee}/delete", {"before_seq": 1})
    assert client.state("log")["count"] >= 6


def test_a_queue_delivers_buries_and_redrives_it(tmp_path: Path) -> None:
    store_deep_records(tmp_path / "data")
    with serving(tmp_path / "data") as server:
        client = server.client()
        claimed = client.post("/v0/topics/q/claim", {"node": "w", "max": 10})
        assert (claimed.status, seqs(claimed.body), depth_of(claimed.body)) == (200, [1, 2, 3, 4, 5], True)
        given_back = {"node": "w", "seqs": [1, 2, 3, 4, 5], "error": "no", "dead_letter": True}
        assert client.post("/v0/topics/q/nack", given_back).json["nacked"] == 5
        letters = client.post("/v0/topics/q.dead/diff", {"wait_ms": 10_000})
        assert (seqs(letters.body), depth_of(letters.body)) == ([1, 2, 3, 4, 5], True)
        assert letters.body.count(b'"$dead_letter_error":"no"') == 5
        state = client.state("q")["queue"]
        assert (state["ready"], state["in_flight"], state["dead_lettered"]) == (0, 0, 5)
        driven = client.post("/v0/topics/q.dead/redrive", {}).json
        assert (driven["moved"], driven["to"], driven["skipped"]) == (5, {"q": 5}, 0)
        again = client.post("/v0/topics/q/claim", {"node": "w", "max": 10})
        assert (len(seqs(again.body)), b"$dead_letter" in again.body) == (5, False)
    with serving(tmp_path / "data") as server:
        assert server.client().state("q")["count"] == 5


def test_our_own_client_reads_it_however_deep_the_caller_stands(poisoned: ServerProcess) -> None:
    def deep_down(frames: int) -> list[Any]:
        if frames:
            return deep_down(frames - 1)
        return list(client.read("log"))

    with PythonClient(f"http://127.0.0.1:{poisoned.port}") as client:
        for frames in (0, 600):
            found = deep_down(frames)
            assert [item.seq for item in found if isinstance(item, Record)][:5] == [1, 2, 3, 4, 5]
            assert found[2].raw == nested(DEEP).encode()
        with recursion(5_000):
            assert found[2].data[0][0]
        with client.watch({"log": 0}) as watch:
            assert next(record.seq for event in watch for record in getattr(event, "records", ()) if record.seq == 4)


def test_the_command_line_prints_it(poisoned: ServerProcess) -> None:
    done = run(poisoned, "tail", "log", "--from", "0", "-o", "raw")
    assert done.code == 0, done
    assert nested(DEEP) in done.out


def test_embedded_reads_it(tmp_path: Path) -> None:
    store_deep_records(tmp_path / "data")
    with topics.open(str(tmp_path / "data")) as database:
        assert [record.seq for record in database.diff("log").records] == [1, 2, 3, 4, 5]


def test_lines_have_the_same_limit(client: Client, topic: str) -> None:
    lines = {"Content-Type": "application/x-ndjson"}
    body = f"1\n{nested(NESTING_MAX)}\n".encode()
    assert client.post(f"/v0/topics/{topic}", body=body, headers=lines).status == 201
    reply = client.post(f"/v0/topics/{topic}", body=body + nested(NESTING_MAX + 1).encode(), headers=lines)
    assert (reply.status, reply.detail["max"], reply.detail["line"]) == (400, NESTING_MAX, 3)

"""Bulk read as an Arrow stream over a real socket: the same records as the lines, for every reader of Arrow."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import gzip
import http.client
import io
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.launching import PROGRAM, Launched
from tests.serving import Client, ServerProcess, serving
from topics.client import AsyncClient, NotAcceptable, TopicNotFound
from topics.client import Client as TopicsClient

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


@pytest.fixture
def topic() -> str:
    return f"a{next(_numbers)}"


class Found:
    """A whole stream: its rows, and the metadata of its batches in their order."""

    def __init__(self, body: bytes) -> None:
        reader = pa.ipc.open_stream(body)
        self.about = {name.decode(): value.decode() for name, value in (reader.schema.metadata or {}).items()}
        self.schema = reader.schema
        self.rows: list[dict[str, Any]] = []
        self.notes: list[tuple[int, str, Any]] = []
        while True:
            try:
                batch, notes = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            self.rows += batch.to_pylist()
            for name, value in (notes or {}).items():
                self.notes.append((len(self.rows), name.decode(), json.loads(value)))


def arrow(client: Client, topic: str, query: str = "") -> Found:
    reply = client.get(f"/v0/topics/{topic}/export{query}", headers={"Accept": ARROW})
    assert (reply.status, reply.headers["content-type"]) == (200, ARROW), reply
    return Found(reply.body)


def lines(client: Client, topic: str, query: str = "") -> list[Any]:
    reply = client.get(f"/v0/topics/{topic}/export{query}")
    assert (reply.status, reply.headers["content-type"]) == (200, NDJSON), reply
    return [json.loads(line) for line in reply.body.splitlines()]


def as_line(row: dict[str, Any]) -> dict[str, Any]:
    """A row as its line would have it."""
    line: dict[str, Any] = {"$seq": row["seq"], "$ts": round(row["ts"].timestamp() * 1000)}
    line |= {f"${name}": row[name] for name in ("node", "tag") if row.get(name) is not None}
    if "data" in row:
        line["data"] = json.loads(row["data"])
    if row.get("meta") is not None:
        line["meta"] = json.loads(row["meta"])
    return line


def assert_same(client: Client, topic: str, query: str = "") -> Found:
    found = arrow(client, topic, query)
    *records, end = lines(client, topic, query)
    gaps = [line["tombstone"] for line in records if "tombstone" in line]
    assert [as_line(row) for row in found.rows] == [line for line in records if "tombstone" not in line]
    assert [note for _, name, note in found.notes if name == "tombstone"] == gaps
    assert found.notes[-1] == (len(found.rows), "end", end["end"])
    return found


def test_rows_are_the_records_of_the_lines_whatever_they_have(client: Client, topic: str) -> None:
    """Several blocks, the last of which grows; seqs of one to four digits; nodes, tags, meta; deleted records."""
    for first in range(0, 3000, 500):
        records: list[dict[str, Any]] = []
        for n in range(first, first + 500):
            record: dict[str, Any] = {"data": {"n": n, "text": "ü\n" * (n % 200)}}
            record |= {"node": f"n{n % 3}"} if n % 4 else {}
            record |= {"tag": f"t{n % 5}\n" if n % 2 else f"t{n % 5}"} if n % 3 else {}
            record |= {"meta": {"m": n}} if n % 7 == 0 else {}
            records.append(record)
        client.post(f"/v0/topics/{topic}", {"records": records})
    client.post(f"/v0/topics/{topic}/delete", {"match": "t1", "before_seq": 2000})
    for query in ("", "?include_tags=1", "?include_tags=1&include_meta=0", "?include_data=0&include_meta=1"):
        assert_same(client, topic, query)
    for query in (
        "?from_seq=8&to_seq=1005&include_tags=1",
        "?node=n1&node=n2&from_seq=700",
        "?to_seq=1",
        "?from_seq=2999",
    ):
        assert_same(client, topic, query)


def test_the_schema_has_what_was_asked_for_and_names_the_topic(client: Client, topic: str) -> None:
    client.append(topic, 1)
    found = arrow(client, topic, "?include_tags=1")
    assert found.schema.equals(
        pa.schema(
            [
                ("seq", pa.int64()),
                ("ts", pa.timestamp("us", "UTC")),
                ("node", pa.string()),
                ("tag", pa.string()),
                ("data", pa.string()),
                ("meta", pa.string()),
            ]
        )
    )
    assert found.about == {"topic": topic, "epoch": str(client.diff(topic)["epoch"])}
    assert arrow(client, topic, "?include_data=0").schema.names == ["seq", "ts", "node"]


def test_a_payload_is_the_bytes_that_were_sent(client: Client, topic: str) -> None:
    body = b'{"records":[{"data":{\r\n "a" :\n [1.50]}}]}'
    client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    assert arrow(client, topic).rows[0]["data"] == '{\r\n "a" :\n [1.50]}'


@pytest.mark.parametrize("query", ["?from_seq=2", "?to_seq=0", "?from_seq=9"])
def test_without_records_there_is_a_schema_and_an_end(client: Client, topic: str, query: str) -> None:
    client.append(topic, 1, 2)
    assert_same(client, topic, query)


def test_a_range_whose_records_were_all_deleted_is_empty(client: Client, topic: str) -> None:
    for _ in range(3):
        client.append(topic, *["x" * 1000] * 1000)
    client.append(topic, "last")
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 3001})
    assert_same(client, topic, "?to_seq=2000")
    assert_same(client, topic)


def test_a_gap_is_a_batch_without_rows_in_its_place(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    client.append(topic, *range(20))
    found = assert_same(client, topic, "?from_seq=3")
    assert [(rows, name) for rows, name, _ in found.notes] == [(0, "tombstone"), (5, "end")]


def test_history_that_is_on_disk_only_is_part_of_it(tmp_path: Path) -> None:
    limits: dict[str, object] = {"segment_max_events": 100, "hot_retain_segments": 0, "hot_retain_bytes": 0}
    with serving(tmp_path / "data", **limits) as server:
        for first in range(0, 2000, 100):
            server.client().append("cold", *range(first, first + 100))
        assert server.terminate() == 0
    with serving(tmp_path / "data", **limits) as server:
        assert len(assert_same(server.client(), "cold").rows) == 2000


def test_polars_duckdb_and_pyarrow_read_it(client: Client, server: ServerProcess, topic: str) -> None:
    import duckdb

    client.append(topic, *({"n": n} for n in range(1000)))
    reply = client.get(f"/v0/topics/{topic}/export", headers={"Accept": ARROW})
    frame = pl.read_ipc_stream(io.BytesIO(reply.body))
    assert (frame.shape, frame["seq"].sum()) == ((1000, 5), 500_500)
    with TopicsClient(f"http://127.0.0.1:{server.port}") as typed:
        records = pa.ipc.open_stream(typed.export_arrow(topic, include_tags=False)).read_all()
    assert records.equals(pa.ipc.open_stream(reply.body).read_all())
    with duckdb.connect() as database:
        database.register("records", records)
        found = database.execute("SELECT sum(CAST(json_extract(data, '$.n') AS INT)) FROM records").fetchall()
    assert found == [(499_500,)]


async def read_asynchronously(url: str, topic: str) -> bytes:
    async with AsyncClient(url) as typed, typed.export_arrow(topic) as export:
        return await export.read()


def test_the_client_reads_it_like_a_file(server: ServerProcess, client: Client, topic: str) -> None:
    client.append(topic, *["x" * 5000] * 1000)
    whole = client.get(f"/v0/topics/{topic}/export?include_tags=1", headers={"Accept": ARROW}).body
    with TopicsClient(f"http://127.0.0.1:{server.port}") as typed:
        with typed.export_arrow(topic) as export:
            assert (export.read(7), export.read(100_000), export.read()) == (
                whole[:7],
                whole[7:100_007],
                whole[100_007:],
            )
            assert export.read(10) == b""
        assert len(Found(typed.export_arrow(topic, 10, 20).read()).rows) == 10
        assert Found(asyncio.run(read_asynchronously(typed.url, topic))).rows == Found(whole).rows
        with pytest.raises(TopicNotFound):
            typed.export_arrow(f"{topic}.absent").read(1)


def test_gzip_and_head_requests_work_as_for_lines(client: Client, topic: str) -> None:
    for _ in range(3):
        client.append(topic, *["z" * 1000] * 1000)
    packed = client.get(f"/v0/topics/{topic}/export", headers={"Accept": ARROW, "Accept-Encoding": "gzip"})
    assert (packed.headers["content-encoding"], len(packed.body) < 1_000_000) == ("gzip", True)
    assert len(Found(gzip.decompress(packed.body)).rows) == 3000
    head = client.request("HEAD", f"/v0/topics/{topic}/export", headers={"Accept": ARROW})
    assert (head.status, head.headers["content-type"], head.body) == (200, ARROW, b"")


@pytest.mark.parametrize("accept", ["*/*", NDJSON, "application/json", f"{NDJSON}, */*"])
def test_lines_are_sent_to_who_does_not_name_arrow(client: Client, topic: str, accept: str) -> None:
    client.append(topic, 1)
    assert client.get(f"/v0/topics/{topic}/export", headers={"Accept": accept}).headers["content-type"] == NDJSON


class WithoutArrow(ServerProcess):
    """A server beside which pyarrow is not installed."""

    def _started(self, arguments: list[str], env: dict[str, str]) -> Launched:
        code = f"import sys\nsys.modules['pyarrow'] = None\n{PROGRAM}"
        return Launched(arguments, env, code=code, stderr=subprocess.PIPE)


def test_without_pyarrow_there_are_lines_or_a_406_that_says_what_to_install(tmp_path: Path) -> None:
    server = WithoutArrow(tmp_path).ready()
    try:
        client = server.client()
        client.append("t", 1)
        refused = client.get("/v0/topics/t/export", headers={"Accept": ARROW})
        assert (refused.status, refused.code) == (406, "not_acceptable")
        assert "[arrow]" in refused.json["error"]["message"]
        both = client.get("/v0/topics/t/export", headers={"Accept": f"{ARROW}, {NDJSON};q=0.5"})
        assert both.headers["content-type"] == NDJSON
        with TopicsClient(f"http://127.0.0.1:{server.port}") as typed, pytest.raises(NotAcceptable):
            typed.export_arrow("t").read(1)
    finally:
        server.kill()


def test_a_client_that_leaves_gives_its_place_back_and_a_deleted_topic_cuts_it(tmp_path: Path) -> None:
    with serving(tmp_path, max_sse_connections=1) as server:
        client = server.client()
        for _ in range(20):
            client.append("t", *["x" * 50_000] * 50)
        half = http.client.HTTPConnection("127.0.0.1", server.port)
        half.request("GET", "/v0/topics/t/export", headers={"Accept": ARROW})
        half.getresponse().read(1000)
        assert client.get("/v0/topics/t/export", headers={"Accept": ARROW}).status == 429
        half.close()
        while client.get("/v0/topics/t/export?to_seq=1", headers={"Accept": ARROW}).status == 429:
            pass
        cut = http.client.HTTPConnection("127.0.0.1", server.port)
        cut.request("GET", "/v0/topics/t/export", headers={"Accept": ARROW})
        reply = cut.getresponse()
        reply.read(1000)
        client.delete("/v0/topics/t")
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            reply.read()
        cut.close()
        server.wait_for_log("an export of t is cut after seq")

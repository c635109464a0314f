"""Bulk read: a range of a topic as lines over a real socket, complete or visibly cut."""

import gzip
import http.client
import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.wire import Client as Wire
from tests.http.wire2 import Client2
from tests.serving import START_S_MAX, Client, ServerProcess, serving

_numbers = itertools.count(1)
# More than the buffers of two sockets and the server take.
BULKY = "x" * 50_000
BULKY_RECORDS = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


@pytest.fixture
def topic() -> str:
    return f"e{next(_numbers)}"


def lines(client: Client, topic: str, query: str = "") -> list[Any]:
    reply = client.get(f"/v0/topics/{topic}/export{query}")
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.body.endswith(b"}\n")
    return [json.loads(line) for line in reply.body.split(b"\n")[:-1]]


def records_and_end(client: Client, topic: str, query: str = "") -> tuple[list[Any], Any]:
    *records, end = lines(client, topic, query)
    return records, end["end"]


def fill(client: Client, topic: str) -> None:
    """As much as no buffer between server and client holds."""
    for _ in range(0, BULKY_RECORDS, 100):
        assert client.append(topic, *[BULKY] * 100).status in (200, 201)


# --- what is in it ---


def test_every_record_is_a_line_as_diff_renders_it_and_the_last_line_is_the_end(client: Client, topic: str) -> None:
    records = [{"data": {"n": n}, "tag": f"t{n}", "node": "a" if n % 2 else None, "meta": {"m": n}} for n in range(50)]
    client.post(f"/v0/topics/{topic}", {"records": records})
    diff = client.diff(topic, limit=1000)
    found, end = records_and_end(client, topic)
    assert found == diff["records"]
    assert end == {
        "next_from_seq": 50,
        "head_seq": 50,
        "earliest_seq": 1,
        "epoch": diff["epoch"],
        "records": 50,
    }


def test_a_range_is_after_from_seq_up_to_and_including_to_seq(client: Client, topic: str) -> None:
    client.append(topic, *range(1, 101))
    found, end = records_and_end(client, topic, "?from_seq=10&to_seq=20")
    assert [record["$seq"] for record in found] == list(range(11, 21))
    assert (end["next_from_seq"], end["head_seq"], end["records"]) == (20, 100, 10)


def test_a_to_seq_beyond_the_head_ends_at_the_head(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    found, end = records_and_end(client, topic, f"?to_seq={2**63}")
    assert len(found) == 2
    assert end["next_from_seq"] == 2


@pytest.mark.parametrize("query", ["?from_seq=2", "?from_seq=2&to_seq=1", "?to_seq=0"])
def test_an_empty_stretch_is_only_an_end(client: Client, topic: str, query: str) -> None:
    client.append(topic, 1, 2)
    found, end = records_and_end(client, topic, query)
    assert found == []
    assert end["records"] == 0
    assert end["next_from_seq"] == (0 if "from" not in query else 2)


def test_tags_and_meta_are_shown_as_asked_and_nodes_left_out(client: Client, topic: str) -> None:
    records = [{"data": n, "tag": f"t\n{n}", "node": f"n{n}", "meta": {"m": n}} for n in range(3)]
    client.post(f"/v0/topics/{topic}", {"records": records})
    found, _ = records_and_end(client, topic, "?include_tags=1&include_meta=0&node=n0&node=n2")
    assert [(record["data"], record["$tag"], "meta" in record) for record in found] == [(1, "t\n1", False)]


def test_payloads_are_left_out_if_asked(client: Client, topic: str) -> None:
    client.post(f"/v0/topics/{topic}", {"records": [{"data": "large", "node": "n", "meta": {"m": 1}}]})
    (found,), _ = records_and_end(client, topic, "?include_data=0")
    assert found == {"$seq": 1, "$ts": found["$ts"], "$node": "n"}
    (with_meta,), _ = records_and_end(client, topic, "?include_data=0&include_meta=1")
    assert with_meta == found | {"meta": {"m": 1}}


def test_reading_starts_at_the_first_record_of_a_time(client: Client, topic: str) -> None:
    client.append(topic, 1)
    later = client.diff(topic)["records"][0]["$ts"] + 1
    assert [record["data"] for record in records_and_end(client, topic, f"?from_ts={later - 1}")[0]] == [1]
    assert records_and_end(client, topic, f"?from_ts={later}")[0] == []


def test_line_breaks_within_a_payload_become_spaces(client: Client, topic: str) -> None:
    body = b'{"records":[{"data":{\r\n "a" :\n [1]}},{"data":"},{\\n"},{"data":2,"tag":"x"}]}'
    client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    for query in ("", "?include_tags=true"):
        raw = client.get(f"/v0/topics/{topic}/export{query}").body
        assert raw.count(b"\n") == 4
        assert b"\r" not in raw
        assert [json.loads(line)["data"] for line in raw.split(b"\n")[:3]] == [{"a": [1]}, "},{\n", 2]


def test_deleted_records_are_passed_over_and_more_than_one_block_is_given(client: Client, topic: str) -> None:
    for first in range(0, 3000, 1000):
        records = [{"data": ["y" * 300, n], "tag": "odd" if n % 2 else "even"} for n in range(first, first + 1000)]
        client.post(f"/v0/topics/{topic}", {"records": records})
    client.post(f"/v0/topics/{topic}/delete", {"match": "odd", "before_seq": 2000})
    found, end = records_and_end(client, topic)
    wanted = [n for n in range(3000) if not n % 2 or n >= 1999]
    assert [record["data"][1] for record in found] == wanted
    assert end["records"] == len(wanted)


def test_a_gap_is_a_tombstone_in_its_place_no_longer_than_the_stretch(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    client.append(topic, *range(20))
    gap, *found, end = lines(client, topic, "?from_seq=3")
    assert gap == {"tombstone": client.diff(topic, from_seq=3)["tombstone"]}
    assert [record["$seq"] for record in found] == list(range(16, 21))
    assert end["end"]["next_from_seq"] == 20
    gap, end = lines(client, topic, "?from_seq=3&to_seq=8")
    assert (gap["tombstone"]["gap_from"], gap["tombstone"]["gap_to"], gap["tombstone"]["missed_estimate"]) == (4, 8, 5)
    assert end["end"]["next_from_seq"] >= 8


def test_a_cursor_of_an_older_topic_of_that_name_is_told_so(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    gap, *found, _ = lines(client, topic, "?from_seq=9")
    assert gap["tombstone"]["reason"] == "recreated"
    assert [record["data"] for record in found] == [1, 2]


def test_a_queue_is_exported_as_it_is_read(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    client.append(topic, 1, 2)
    assert records_and_end(client, topic)[0] == client.diff(topic)["records"]


def test_history_that_is_on_disk_only_is_part_of_it(tmp_path: Path) -> None:
    limits: dict[str, object] = {"segment_max_events": 100, "hot_retain_segments": 0, "hot_retain_bytes": 0}
    with serving(tmp_path / "data", **limits) as server:
        for first in range(0, 2000, 100):
            server.client().append("cold", *range(first, first + 100))
        assert server.terminate() == 0
    with serving(tmp_path / "data", **limits) as server:
        found, end = records_and_end(server.client(), "cold")
        assert [record["data"] for record in found] == list(range(2000))
        assert end["records"] == 2000


# --- how it is asked for ---


@pytest.mark.parametrize("field", ["from_seq", "to_seq", "from_ts"])
@pytest.mark.parametrize("value", ["-1", "x", "1.5"])
def test_a_number_that_is_none_is_refused_by_name(client: Client, topic: str, field: str, value: str) -> None:
    client.append(topic, 1)
    reply = client.get(f"/v0/topics/{topic}/export?{field}={value}")
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", field)


def test_a_topic_that_is_not_there_is_404(client: Client, topic: str) -> None:
    assert client.get(f"/v0/topics/{topic}/export").code == "topic_not_found"


def test_a_head_request_has_no_body(client: Client, topic: str) -> None:
    client.append(topic, 1)
    reply = client.request("HEAD", f"/v0/topics/{topic}/export")
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/x-ndjson", b"")
    assert len(lines(client, topic)) == 2


def test_gzip_is_given_to_who_asks_for_it(client: Client, topic: str) -> None:
    for _ in range(3):
        client.append(topic, *["z" * 1000] * 1000)
    plain = client.get(f"/v0/topics/{topic}/export")
    packed = client.get(f"/v0/topics/{topic}/export", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) // 10
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"


def test_http2_and_http10_give_the_same_bytes(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="k:rw") as server:
        client = server.client("k")
        for _ in range(3):
            client.append("t", *["z" * 1000] * 1000)
        plain = client.get("/v0/topics/t/export").body
        with Client2(Wire(server.port)) as second:
            reply = second.request(path="/v0/topics/t/export", fields=(("authorization", "Bearer k"),))
        assert (reply.status, reply.body) == (200, plain)
        with socket.create_connection(("127.0.0.1", server.port), timeout=START_S_MAX) as old:
            old.sendall(b"GET /v0/topics/t/export HTTP/1.0\r\nAuthorization: Bearer k\r\n\r\n")
            answer = b"".join(iter(lambda: old.recv(1 << 16), b""))
        assert answer.partition(b"\r\n\r\n")[2] == plain


def test_a_key_needs_the_scope_read_and_the_name(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="writer:write,reader:read:mine:") as server:
        server.client("writer").append("t", 1)
        server.client("writer").append("mine:t", 1)
        assert server.client("writer").get("/v0/topics/t/export").code == "forbidden"
        assert server.client("reader").get("/v0/topics/t/export").code == "forbidden"
        assert server.client("reader").get("/v0/topics/mine:t/export").status == 200


# --- while it runs ---


class Half:
    """An export of which only the first bytes were read."""

    def __init__(self, port: int, topic: str, version: bytes = b"1.1") -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        self.socket.settimeout(START_S_MAX)
        self.socket.connect(("127.0.0.1", port))
        path = f"/v0/topics/{topic}/export".encode()
        self.socket.sendall(b"GET %b HTTP/%b\r\nHost: 127.0.0.1\r\n\r\n" % (path, version))
        self.answer = http.client.HTTPResponse(self.socket)
        self.answer.begin()
        assert self.answer.readline().startswith(b'{"$seq":1,')

    def rest(self) -> bytes:
        """What is left; raises if the answer is cut."""
        return self.answer.read()

    def close(self) -> None:
        self.answer.close()
        self.socket.close()


def test_what_comes_later_is_not_part_of_it(client: Client, server: ServerProcess, topic: str) -> None:
    fill(client, topic)
    half = Half(server.port, topic)
    client.append(topic, "late")
    last, end = half.rest().splitlines()[-2:]
    half.close()
    assert json.loads(last)["$seq"] == BULKY_RECORDS
    assert json.loads(end)["end"] == {
        "next_from_seq": BULKY_RECORDS,
        "head_seq": BULKY_RECORDS + 1,
        "earliest_seq": 1,
        "epoch": client.diff(topic, limit=1)["epoch"],
        "records": BULKY_RECORDS,
    }


def test_what_is_lost_meanwhile_is_a_gap_in_the_middle(client: Client, server: ServerProcess, topic: str) -> None:
    fill(client, topic)
    half = Half(server.port, topic)
    client.put(f"/v0/topics/{topic}", {"cap_records": 3})
    client.append(topic, "late")
    found = [json.loads(line) for line in half.rest().splitlines()]
    half.close()
    (gap,) = [number for number, line in enumerate(found) if "tombstone" in line]
    tombstone = found[gap]["tombstone"]
    assert tombstone["gap_from"] == found[gap - 1]["$seq"] + 1
    assert tombstone["gap_to"] == found[gap + 1]["$seq"] - 1
    assert tombstone["reason"] == "cap"
    assert "end" in found[-1]


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_meanwhile_cuts_it(
    client: Client, server: ServerProcess, topic: str, again: bool
) -> None:
    fill(client, topic)
    half = Half(server.port, topic)
    client.delete(f"/v0/topics/{topic}")
    if again:
        fill(client, topic)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        half.rest()
    half.close()
    server.wait_for_log(f"an export of {topic} is cut after seq")


def test_a_client_that_does_not_read_holds_up_nobody_and_gives_its_place_back(tmp_path: Path) -> None:
    with serving(tmp_path, max_sse_connections=1) as server:
        client = server.client()
        fill(client, "t")
        half = Half(server.port, "t")
        assert client.append("t", 1).status == 200
        refused = client.get("/v0/topics/t/export")
        assert (refused.status, refused.detail["limit"]) == (429, "max_sse_connections")
        half.close()
        while client.get("/v0/topics/t/export").status == 429:
            pass
        assert client.get("/v0/topics/t/export").status == 200

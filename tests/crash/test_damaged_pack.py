"""Damage in a pack of a running server: everything before it is read, then it is named, by every way of reading."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.rig import Rig
from tests.serving import START_S_MAX, ServerProcess, serving
from topics.engine.opening.scan import Chunk, Scan, read_part
from topics.model.errors import DamagedData

RECORDS = 5000
COLD: dict[str, Any] = {"hot_retain_segments": 0, "hot_retain_bytes": 0}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A data directory with one flipped byte in a record of its third block, and the seq of that record."""
    path = tmp_path_factory.mktemp("damaged") / "data"
    rig = Rig(path, **COLD)
    for first in range(0, RECORDS, 100):
        rig.append("a", *[{"data": {"n": number, "text": "x" * 200}} for number in range(first, first + 100)])
    rig.close()
    blocks = rig.store.state.by_name["a"].blocks
    assert len(blocks) > 3
    seq = (blocks[2].first_seq + blocks[2].last_seq) // 2
    (pack,) = (path / "shard-00" / "packs").glob("*.pack")
    content = bytearray(pack.read_bytes())
    content[content.index(b'{"n":%d,' % (seq - 1)) + 20] ^= 1
    pack.write_bytes(content)
    return path, seq


@pytest.fixture(scope="module")
def server(damaged: tuple[Path, int]) -> Iterator[ServerProcess]:
    with serving(damaged[0], **COLD) as server:
        yield server


def check(seqs: list[int], seq: int, error: dict[str, Any]) -> None:
    """Everything up to the damage was read, and the damage is small and named."""
    assert seqs == list(range(1, len(seqs) + 1))
    assert seq - 10 < len(seqs) < seq
    assert error["from_seq"] == len(seqs) + 1
    assert error["from_seq"] <= seq <= error["to_seq"] < seq + 10


def test_a_diff_returns_what_is_before_the_damage_and_the_next_one_names_it(
    server: ServerProcess, damaged: tuple[Path, int]
) -> None:
    client = server.client()
    seqs: list[int] = []
    while True:
        reply = client.post("/v0/topics/a/diff", {"from_seq": len(seqs), "limit": 1000})
        if reply.status != 200:
            break
        seqs += [record["$seq"] for record in reply.json["records"]]
        assert reply.json["next_from_seq"] == len(seqs)
    assert (reply.status, reply.code) == (500, "internal")
    assert f"seqs {len(seqs) + 1} to" in reply.json["error"]["message"]
    assert "topics repair" in reply.json["error"]["message"]
    check(seqs, damaged[1], reply.detail)


def test_what_is_after_the_damage_can_be_read(server: ServerProcess, damaged: tuple[Path, int]) -> None:
    found = server.client().diff("a", from_seq=damaged[1] + 1000, limit=1000)
    assert [record["data"]["n"] for record in found["records"]][:3] == list(range(damaged[1] + 1000, damaged[1] + 1003))


def test_an_export_has_what_is_before_the_damage_and_is_visibly_cut(
    server: ServerProcess, damaged: tuple[Path, int]
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=START_S_MAX)
    connection.request("GET", "/v0/topics/a/export")
    response = connection.getresponse()
    content = b""
    with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
        while piece := response.read1():
            content += piece
    connection.close()
    assert b'"end"' not in content
    seqs = [json.loads(line)["$seq"] for line in content.splitlines()]
    assert seqs == list(range(1, len(seqs) + 1))
    assert damaged[1] - 10 < len(seqs) < damaged[1]
    server.wait_for_log("an export of a is cut")


def test_a_stream_has_what_is_before_the_damage_and_then_an_error(
    server: ServerProcess, damaged: tuple[Path, int]
) -> None:
    session = server.client().post("/v0/watch", {"topics": {"a": {"from_seq": 0}}})
    assert session.status < 300, session
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=START_S_MAX)
    connection.request("GET", f"/v0/watch/{session.json['wid']}", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    seqs: list[int] = []
    event, data = "", {}
    for line in iter(response.readline, b""):
        if line.startswith(b"event: "):
            event = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            data = json.loads(line[6:])
            if event == "error":
                break
            seqs += [record["$seq"] for record in data.get("records", [])]
    connection.close()
    assert event == "error"
    assert seqs == list(range(1, len(seqs) + 1))
    assert damaged[1] - 10 < len(seqs) < damaged[1]
    assert f"seqs {len(seqs) + 1} to" in json.dumps(data)


def test_a_scan_of_the_files_has_what_is_before_the_damage_and_names_it(damaged: tuple[Path, int]) -> None:
    scan = Scan.open(str(damaged[0]))
    (part,) = scan.plan("a")
    seqs: list[int] = []

    def read() -> None:
        for piece in read_part(part):
            assert isinstance(piece, Chunk)
            seqs.extend(json.loads(line)["$seq"] for line in piece.lines().splitlines())

    with pytest.raises(DamagedData) as found:
        read()
    scan.close()
    check(seqs, damaged[1], found.value.detail)

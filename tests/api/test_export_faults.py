"""Bulk reads when the disk is slow or damaged, and clients that never read on: the server here, on its own disk."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_faults import ServerThread, SlowDisk
from tests.serving import START_S_MAX
from topics.api.live import delivery
from topics.model.settings import Settings

RECORDS, SEGMENT = 300, 10


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """Topic `c` has 300 records in segments of 10, all of them on disk only."""
    monkeypatch.setattr(delivery, "STALL_S_MAX", 0.2)
    settings = Settings(
        port=0,
        data_dir=str(tmp_path / "data"),
        segment_max_events=SEGMENT,
        hot_retain_segments=0,
        hot_retain_bytes=0,
        max_sse_connections=1,
    )
    server = ServerThread(settings, SlowDisk())
    for first in range(0, RECORDS, SEGMENT):
        server.client.append("c", *range(first, first + SEGMENT))
    assert server.on_loop(server.server.store.checkpoint)
    yield server
    server.stop()


def damage(path: Path, seq: int) -> None:
    """A checkpoint of the server's own may have come before the fixture's: there may be several packs."""
    wanted = b'{"$seq":%d,' % seq
    packs = (path / "data" / "shard-00" / "packs").iterdir()
    ((pack, content),) = [(pack, bytearray(data)) for pack in packs if wanted in (data := pack.read_bytes())]
    content[content.index(wanted) + 20] ^= 1
    pack.write_bytes(content)


def read_to_the_cut(server: ServerThread, path: str) -> list[Any]:
    """The lines that came before the answer was cut."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=START_S_MAX)
    connection.request("GET", path)
    answer = connection.getresponse()
    received = b""
    try:
        while piece := answer.read1():
            received += piece
        raise AssertionError("the answer was not cut")
    except (http.client.IncompleteRead, ConnectionResetError):
        pass
    finally:
        connection.close()
    return [json.loads(line) for line in received.splitlines()]


def test_every_block_is_waited_for_away_from_the_loop(server: ServerThread) -> None:
    *records, end = server.client.get("/v0/topics/c/export").body.splitlines()
    assert [json.loads(line)["data"] for line in records] == list(range(RECORDS))
    assert json.loads(end)["end"]["records"] == RECORDS


def test_damage_is_a_500_where_it_begins_and_a_cut_after_good_records(server: ServerThread, tmp_path: Path) -> None:
    damage(tmp_path, 205)
    found = read_to_the_cut(server, "/v0/topics/c/export")
    assert [line["$seq"] for line in found] == list(range(1, 201))
    reply = server.client.get("/v0/topics/c/export?from_seq=200")
    assert (reply.status, reply.detail["from_seq"], reply.detail["to_seq"]) == (500, 201, 210)
    assert server.client.get("/v0/topics/c/export?from_seq=210").status == 200


def test_a_client_that_never_reads_on_is_cut_off(server: ServerThread) -> None:
    for _ in range(10):
        server.client.append("bulky", *["x" * 50_000] * 100)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        client.connect(("127.0.0.1", server.server.port))
        client.sendall(b"GET /v0/topics/bulky/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        client.settimeout(START_S_MAX)
        received = client.recv(12)
        assert received == b"HTTP/1.1 200"
        # Its place is taken now, and free again when it is given up.
        while server.client.get("/v0/topics/c/export").status == 429:
            pass
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                received = (received + piece)[-100:]
        assert not received.endswith(b"0\r\n\r\n")

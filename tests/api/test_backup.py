"""`GET /v0/backup` over a real socket: whole or visibly cut, one at a time, for keys that may see everything."""

import http.client
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.rig import Rig
from tests.engine.test_backup import restored
from tests.http.wire import Client as Wire
from tests.http.wire2 import Client2
from tests.serving import Client, ServerProcess, serving
from topics.storage.archive import ArchiveReader

KEYS = "boss-secret,reader-secret:read+write+delete,part-secret:admin+read:part-"
# More than the buffers of two sockets and the server take.
BULKY = "x" * 50_000
BULKY_RECORDS = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys=KEYS) as server:
        server.key = "boss-secret"
        yield server


def fill(client: Client, topic: str) -> None:
    """As much as no buffer between server and client holds."""
    for _ in range(0, BULKY_RECORDS, 100):
        assert client.append(topic, *[BULKY] * 100).status in (200, 201)


class PatientServer(ServerProcess):
    """A server that would give its clients much longer to end than a test waits for it."""

    command = (
        sys.executable,
        "-c",
        "from topics import server; server.DRAIN_GRACE_S = 3600.0; from topics.cli import main; main()",
    )


def unread(server: ServerProcess) -> socket.socket:
    """A client that asks for a backup and has read no more than the beginning of it."""
    stalled = socket.create_connection(("127.0.0.1", server.port))
    stalled.sendall(b"GET /v0/backup HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer boss-secret\r\n\r\n")
    assert stalled.recv(12) == b"HTTP/1.1 200"
    return stalled


def test_a_backup_is_a_tar_of_known_length_with_everything_in_it(server: ServerProcess, tmp_path: Path) -> None:
    client = server.client()
    client.append("whole", 1, 2, 3)
    reply = client.get("/v0/backup")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/x-tar"
    assert int(reply.headers["topics-backup-bytes"]) == len(reply.body)
    with Rig(tmp_path / "any") as rig, restored(reply.body, tmp_path / "copy", rig) as copy:
        assert [record["data"] for record in copy.records("whole")] == [1, 2, 3]


def test_http2_gets_the_same(server: ServerProcess) -> None:
    server.client().append("whole", 1)
    with Client2(Wire(server.port)) as client:
        reply = client.request(path="/v0/backup", fields=(("authorization", "Bearer boss-secret"),))
    reader = ArchiveReader()
    reader.feed(reply.body)
    assert reader.finish().made_by.startswith("topics ")


def test_head_tells_the_type_and_makes_none(server: ServerProcess) -> None:
    reply = server.client().request("HEAD", "/v0/backup")
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/x-tar", b"")


@pytest.mark.parametrize(("key", "hint"), [("reader-secret", "admin"), ("part-secret", "every topic")])
def test_a_key_that_may_not_see_everything_gets_no_backup(server: ServerProcess, key: str, hint: str) -> None:
    reply = server.client(key).get("/v0/backup")
    assert (reply.status, reply.code) == (403, "forbidden")
    assert hint in reply.json["error"]["message"]


def test_a_second_one_is_refused_until_the_first_is_done_or_gone(server: ServerProcess) -> None:
    client = server.client()
    fill(client, "busy")
    first = unread(server)
    refused = client.get("/v0/backup")
    assert (refused.status, refused.code, refused.detail["limit"]) == (429, "throttled", "backups")
    assert int(refused.headers["retry-after"]) >= 1
    first.close()
    while (reply := client.get("/v0/backup")).status == 429:
        pass
    assert reply.status == 200


def test_writes_checkpoints_and_deletes_go_on_while_nobody_reads_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data", checkpoint_ms=50, wal_file_bytes=1 << 20, checkpoint_bytes=1 << 20) as server:
        client = server.client()
        fill(client, "a")
        for number in range(100):
            client.append("b", number)
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/v0/backup")
        response = connection.getresponse()
        beginning = response.read(1000)
        checkpoints = _checkpoints(tmp_path)
        client.post("/v0/topics/a/delete", {"before_seq": BULKY_RECORDS})
        client.delete("/v0/topics/b")
        while _checkpoints(tmp_path) < checkpoints + 3:
            assert client.append("c", "y" * 100_000).status in (200, 201)
        archive = beginning + response.read()
        connection.close()
        with Rig(tmp_path / "any") as rig, restored(archive, tmp_path / "copy", rig) as copy:
            assert copy.seqs("a") == list(range(1, BULKY_RECORDS + 1))
            assert [record["data"] for record in copy.records("b")] == list(range(100))


def _checkpoints(path: Path) -> int:
    return max((int(file.stem) for file in path.rglob("*.snap")), default=0)


def test_a_client_that_stalls_is_cut_off_and_what_it_held_is_let_go(tmp_path: Path) -> None:
    with serving(tmp_path, slow_consumer_timeout_ms=200) as server:
        client = server.client()
        fill(client, "a")
        stalled = unread(server)
        server.wait_for_log("a backup was cut after")
        unread(server).close()
        received = b""
        try:
            while piece := stalled.recv(1 << 20):
                received += piece
        except ConnectionResetError:
            pass
        assert not received.endswith(b"0\r\n\r\n"), "no client may take it for whole"
        stalled.close()


def test_a_server_that_stops_cuts_the_backup_at_once(tmp_path: Path) -> None:
    server = PatientServer(tmp_path)
    try:
        fill(server.ready().client(), "a")
        stalled = unread(server)
        assert server.terminate() == 0
        assert "a backup was cut after" in server.log
        stalled.close()
    finally:
        server.kill()


def test_it_is_described(server: ServerProcess) -> None:
    operation = server.client().get("/v0/openapi.json").json["paths"]["/v0/backup"]["get"]
    assert operation["security"] == [{"key": ["admin"]}]
    assert "application/x-tar" in operation["responses"]["200"]["content"]

"""The API over connections of every kind: half-closed, expecting, HTTP/2, abandoned."""

import gzip
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import START_S_MAX, ServerProcess, serving

APPEND = json.dumps({"records": [{"data": 1}]}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys="k,reader:read") as server:
        server.key = "k"
        yield server


def post(path: str, body: bytes, *headers: str, key: str = "k") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def connect(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=START_S_MAX)


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_client_that_has_sent_all_it_will_still_gets_the_answer_of_its_write(
    server: ServerProcess, topic: str, durability: str
) -> None:
    server.client().put(f"/v0/topics/{topic}", {"durability": durability})
    with connect(server) as connection:
        connection.sendall(post(f"/v0/topics/{topic}", APPEND))
        connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")
    assert server.client().state(topic)["head_seq"] == 1


def test_a_write_whose_client_vanished_is_whole_or_absent(server: ServerProcess, topic: str) -> None:
    client = server.client()
    client.put(f"/v0/topics/{topic}", {"durability": "fsync"})
    for _ in range(20):
        with connect(server) as connection:
            connection.sendall(post(f"/v0/topics/{topic}", json.dumps({"records": [{"data": 1}] * 10}).encode()))
    client.append(topic, "after")
    assert client.state(topic)["head_seq"] % 10 == 1


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [("", "/v0/topics/a", b"401"), ("reader", "/v0/topics/a", b"403"), ("k", "/v0/nothing", b"404")],
)
def test_who_expects_to_continue_is_refused_before_the_body(
    server: ServerProcess, key: str, path: str, status: bytes
) -> None:
    head, _, _ = post(path, APPEND, "Expect: 100-continue", key=key).partition(b"\r\n\r\n")
    with connect(server) as connection:
        connection.sendall(head + b"\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 " + status)


def test_who_expects_to_continue_and_may_is_told_to(server: ServerProcess, topic: str) -> None:
    head, _, _ = post(f"/v0/topics/{topic}", APPEND, "Expect: 100-continue").partition(b"\r\n\r\n")
    with connect(server) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(APPEND)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201 ")


def test_http_2_by_prior_knowledge_on_the_same_port(server: ServerProcess, topic: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.port}/v0/topics/{topic}"
    command = ["curl", "-s", "--http2-prior-knowledge", "-w", "\n%{http_version} %{http_code}", url]
    headers = ["-H", "Authorization: Bearer k", "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, *headers, "-d", APPEND.decode()], capture_output=True, text=True, check=True)
    body, _, status = done.stdout.rpartition("\n")
    assert status == "2 201"
    assert json.loads(body)["seqs"] == [1]
    refused = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert refused.endswith("2 401")


def test_a_gzip_bomb_is_413_by_its_unpacked_size(tmp_path: Path) -> None:
    with serving(tmp_path, max_body_bytes="1 MiB") as server:
        bomb = gzip.compress(b'{"records":[{"data":"' + b"x" * (8 << 20) + b'"}]}')
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        reply = server.client().post("/v0/topics/a", body=bomb, headers=headers)
        assert (reply.status, reply.code) == (413, "payload_too_large")


def test_replies_leave_a_connection_in_the_order_of_its_requests(server: ServerProcess, topic: str) -> None:
    """A slow (fsync) write before quick reads: the reads wait for it."""
    server.client().put(f"/v0/topics/{topic}", {"durability": "fsync"})
    with connect(server) as connection:
        poll = post(f"/v0/topics/{topic}/diff", b'{"wait_ms":100}')
        connection.sendall(poll + post(f"/v0/topics/{topic}", APPEND) + post(f"/v0/topics/{topic}/diff", b"{}"))
        received = b""
        while received.count(b'"performance"') < 3:
            received += connection.recv(65536)
    kinds = [b"first_seq" if b'"first_seq"' in part else b"records" for part in received.split(b"HTTP/1.1 200")[1:]]
    assert kinds == [b"records", b"first_seq", b"records"]

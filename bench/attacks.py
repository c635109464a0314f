"""Scenarios of the stalls bench: floods, and legal large requests. A single client can send each of them."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h2.connection

from bench.stalls import batch, scenario
from tests.serving import Client, ServerProcess

JSON = {"Content-Type": "application/json"}
FLOOD_BYTES = 4 * 1024 * 1024
FLOOD_S_MAX = 10.0


def send_until_closed(port: int, data: bytes, start: bytes = b"") -> None:
    """Send as fast as the server reads; it may end the connection at any point."""
    with socket.create_connection(("127.0.0.1", port), timeout=FLOOD_S_MAX) as connection:
        try:
            connection.sendall(start + data)
            while connection.recv(1 << 20):
                pass
        except OSError:
            pass


def flooded(root: Path, flood: bytes, start: bytes) -> Iterator[ServerProcess]:
    server = ServerProcess(root)
    server.ready()
    yield server
    for _ in range(4):
        send_until_closed(server.port, flood * (FLOOD_BYTES // len(flood)), start)


# --- HTTP/2, without a key ---

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, payload: bytes, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, 0)) + stream.to_bytes(4, "big") + payload


@scenario("HTTP/2: 4 MB of empty SETTINGS, four times", 20)
def settings_flood(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, frame(4, b""), PREFACE)


@scenario("HTTP/2: 4 MB of unknown frames, four times", 20)
def unknown_flood(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, frame(0xEE, b""), PREFACE)


@scenario("HTTP/2: 4 MB of WINDOW_UPDATE, four times", 20)
def window_flood(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, frame(8, b"\0\0\0\1"), PREFACE)


@scenario("HTTP/2: 4 MB of PING, four times", 20)
def ping_flood(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, frame(6, b"12345678"), PREFACE)


@scenario("HTTP/2: 4 MB of PRIORITY, four times", 20)
def priority_flood(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, frame(2, b"\0\0\0\0\x10", stream=3), PREFACE)


@scenario("HTTP/2: 100,000 requests, each reset at once", 20)
def reset_flood(root: Path) -> Iterator[ServerProcess]:
    client = h2.connection.H2Connection()
    client.initiate_connection()
    start = client.data_to_send()
    head = [(":method", "GET"), (":path", "/v0/health"), (":scheme", "http"), (":authority", "localhost")]
    for number in range(1, 200_001, 2):
        client.send_headers(number, head, end_stream=True)
        client.reset_stream(number)
    resets = client.data_to_send()
    server = ServerProcess(root)
    server.ready()
    yield server
    send_until_closed(server.port, resets, start)


# --- WebSocket and HTTP/1 ---

UPGRADE = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@scenario("WebSocket: 4 MB of pings, four times")
def socket_pings(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, b"\x89\x80\0\0\0\0", UPGRADE)


@scenario("WebSocket: 4 MB of empty fragments, four times")
def socket_fragments(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, b"\0\x80\0\0\0\0", UPGRADE + b"\1\x80\0\0\0\0")


@scenario("WebSocket: 4 MB of messages that are no commands, four times")
def socket_messages(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, b"\x81\x82\0\0\0\0{}", UPGRADE)


@scenario("HTTP/1: 4 MB of chunks of one byte, four times", 20)
def chunks(root: Path) -> Iterator[ServerProcess]:
    start = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return flooded(root, b"1\r\n \r\n", start + b"Transfer-Encoding: chunked\r\n\r\n")


@scenario("HTTP/1: 4 MB of pipelined requests, four times", 20)
def pipelined(root: Path) -> Iterator[ServerProcess]:
    return flooded(root, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n", b"")


CROWD = """
import socket, sys
crowd = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(9_000)]
print("up", flush=True)
sys.stdin.read()
"""


@scenario("HTTP/1: 9,000 connections whose client is killed", 20)
def killed_crowd(root: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(root)
    server.ready()
    command = [sys.executable, "-c", CROWD, str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == b"up\n"
        yield server
        crowd.kill()
    client = Client(server.port, timeout_s=60)
    while client.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_connections"] > 10:
        time.sleep(0.01)


# --- large requests: refused ones, then legal ones ---


def asked(root: Path, path: str, body: bytes, status: int, times: int = 3) -> Iterator[ServerProcess]:
    server = ServerProcess(root)
    server.ready()
    yield server
    for number in range(times):
        reply = Client(server.port, timeout_s=60).request("POST", path.format(number), body=body, headers=JSON)
        assert reply.status == status, (reply.status, reply.body[:200])


@scenario("refused: a watch of 26 MiB")
def large_watch(root: Path) -> Iterator[ServerProcess]:
    body = b'{"topics":{' + b",".join(b'"t%d":{}' % n for n in range(2_400_000)) + b"}}"
    head = b"POST /v0/watch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    server = ServerProcess(root)
    server.ready()
    yield server
    for _ in range(3):
        send_until_closed(server.port, body, head + b"Content-Length: %d\r\n\r\n" % len(body))


@scenario("refused: a watch of 2 MiB")
def watch(root: Path) -> Iterator[ServerProcess]:
    body = b'{"topics":{' + b",".join(b'"t%d":{}' % n for n in range(150_000)) + b"}}"
    return asked(root, "/v0/watch", body, 400)


@scenario("refused: a batch of 5,000,000 records, 55 MB")
def many_records(root: Path) -> Iterator[ServerProcess]:
    return asked(root, "/v0/topics/t", b'{"records":[' + b'{"data":1},' * 4_999_999 + b'{"data":1}]}', 400)


@scenario("an append of 10,000 records with as many nodes")
def many_nodes(root: Path) -> Iterator[ServerProcess]:
    body = batch([{"data": n, "node": f"node-{n}"} for n in range(10_000)])
    return asked(root, "/v0/topics/t{}?return_seqs=false", body, 201)


@scenario("an append of 57 MB in 10,000 records")
def large_append(root: Path) -> Iterator[ServerProcess]:
    body = batch([{"data": "z" * 5_700}] * 10_000)
    return asked(root, "/v0/topics/t{}?return_seqs=false", body, 201)


def filled(root: Path, path: str, records: list[dict[str, object]], times: int, **config: object) -> ServerProcess:
    server = ServerProcess(root)
    server.ready()
    client = Client(server.port, timeout_s=60)
    assert client.put(path, config).status == 201
    body = batch(records)
    for _ in range(times):
        assert client.request("POST", f"{path}?return_seqs=false", body=body, headers=JSON).status == 200
    return server


@scenario("1,000,000 delayed jobs that become due together")
def delayed_jobs(root: Path) -> Iterator[ServerProcess]:
    delay_ms = 60_000
    began_s = time.monotonic()
    server = ServerProcess(root)
    server.ready()
    client = Client(server.port, timeout_s=60)
    assert client.put("/v0/topics/q", {"type": "queue"}).status == 201
    for _ in range(100):
        left_ms = max(1, delay_ms - int((time.monotonic() - began_s) * 1000))
        body = batch([{"data": 1, "delay_ms": left_ms}] * 10_000)
        assert client.request("POST", "/v0/topics/q?return_seqs=false", body=body, headers=JSON).status == 200
    yield server
    while client.get("/v0/topics/q").json["queue"]["ready"] < 1_000_000:
        time.sleep(0.05)


@scenario("a delete by tag pattern over 1,000,000 records")
def delete_by_pattern(root: Path) -> Iterator[ServerProcess]:
    records: list[dict[str, object]] = [{"data": n, "tag": f"{'ab'[n % 2]}:{n}"} for n in range(10_000)]
    server = filled(root, "/v0/topics/t", records, 100)
    yield server
    client = Client(server.port, timeout_s=60)
    assert client.post("/v0/topics/t/delete", {"match": ["tag", "Glob", "a:*"]}).json["deleted"] == 500_000


LONG_POLLS = 9_000
LONG_POLL_BODY = b'{"from_seq":%d,"wait_ms":30000}'


def long_poll(after_seq: int) -> bytes:
    body = LONG_POLL_BODY % after_seq
    head = b"POST /v0/topics/t/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def long_polling(port: int) -> list[socket.socket]:
    waiting: list[socket.socket] = []
    for _ in range(LONG_POLLS):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(long_poll(1))
        waiting.append(connection)
    return waiting


def until_accepted(port: int) -> None:
    """A new connection is accepted after all others, and answered after their first requests."""
    assert Client(port, timeout_s=60).get("/v0/health").status == 200


@scenario("9,000 clients that connect and long-poll at once")
def crowd_arrives(root: Path) -> Iterator[ServerProcess]:
    server = filled(root, "/v0/topics/t", [{"data": 1}], 1)
    yield server
    waiting = long_polling(server.port)
    until_accepted(server.port)
    for connection in waiting:
        connection.close()


@scenario("9,000 long-polls woken by one record")
def long_polls(root: Path) -> Iterator[ServerProcess]:
    server = filled(root, "/v0/topics/t", [{"data": 1}], 1)
    waiting = long_polling(server.port)
    until_accepted(server.port)
    yield server
    assert Client(server.port, timeout_s=60).post("/v0/topics/t", {"records": [{"data": 2}]}).status == 200
    for connection in waiting:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.close()


@scenario("9,000 long-polls woken by one record, three times, each of which polls again at once")
def repeated_long_polls(root: Path) -> Iterator[ServerProcess]:
    server = filled(root, "/v0/topics/t", [{"data": 1}], 1)
    waiting = long_polling(server.port)
    until_accepted(server.port)
    yield server
    with selectors.DefaultSelector() as selector:
        for connection in waiting:
            selector.register(connection, selectors.EVENT_READ)
        for head_seq in (2, 3, 4):
            appended = Client(server.port, timeout_s=60).post("/v0/topics/t", {"records": [{"data": head_seq}]})
            assert appended.status == 200
            again, answered = long_poll(head_seq), 0
            while answered < LONG_POLLS:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    assert key.fileobj.recv(1 << 16).startswith(b"HTTP/1.1 200")
                    key.fileobj.sendall(again)
                    answered += 1


@scenario("a redrive of 10,000 dead letters")
def redrive(root: Path) -> Iterator[ServerProcess]:
    records: list[dict[str, object]] = [{"data": {"n": n, "text": "x" * 200}} for n in range(10_000)]
    server = filled(root, "/v0/topics/q", records, 1, type="queue", max_deliveries=1, dead_letter="q.dead")
    client = Client(server.port, timeout_s=60)
    for _ in range(10):
        claimed = client.post("/v0/topics/q/claim", {"node": "w", "max": 1_000}).json["claimed"]
        seqs = [job["$seq"] for job in claimed]
        assert client.post("/v0/topics/q/nack", {"node": "w", "seqs": seqs, "dead_letter": True}).status == 200
    yield server
    moved = client.post("/v0/topics/q.dead/redrive", {"limit": 10_000})
    assert (moved.status, moved.json["moved"]) == (200, 10_000), moved


@scenario("the commit of a transaction of 1,000,000 records")
def commit(root: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(root)
    server.ready()
    client = Client(server.port, timeout_s=120)
    records = [{"data": {"n": n, "x": "y" * 50}} for n in range(10_000)]
    for part in range(100):
        body = json.dumps({"stage": "s", "part": part, "topic": "t", "records": records}).encode()
        reply = client.request("POST", "/v0/txns/app/1/stage", body=body, headers=JSON)
        assert reply.status < 300, reply
    yield server
    reply = client.post("/v0/txns/app/1/commit", {"stages": ["s"]})
    assert reply.status == 200, reply


def append_to_each(port: int, topics: int) -> None:
    """One record to each of `count` topics, over one connection."""
    head = b"HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for first in range(0, topics, 500):
            for number in range(first, first + 500):
                connection.sendall(b"POST /v0/topics/t%d " % number + head + b'{"records":[{"data":1}]}')
            answered = 0
            while answered < 500:
                answered += connection.recv(1 << 20).count(b"HTTP/1.1 20")


@scenario("checkpoints of 100,000 topics")
def checkpoints(root: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(root, checkpoint_ms=1_000)
    server.ready()
    append_to_each(server.port, 100_000)
    yield server
    append_to_each(server.port, 100_000)


@scenario("metrics of 100,000 topics")
def metrics(root: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(root)
    server.ready()
    append_to_each(server.port, 100_000)
    yield server
    for _ in range(3):
        assert Client(server.port, timeout_s=60).get("/v0/metrics").status == 200

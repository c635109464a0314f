"""The bytes that this server sends for one append, recorded once: others are measured with as many."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import NamedTuple

from bench.contestants.contestant import PAYLOAD
from bench.load.trees import Tree
from tests.serving import Client

# Of an event, and of the chunk that holds it.
ENDS = (b"\n\n", b"\n\n\r\n")
BODY = {"records": [{"data": json.loads(PAYLOAD)}]}


def request_to(topic: str) -> bytes:
    """An append of one record, as sent over the wire."""
    body = json.dumps(BODY).encode()
    head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def stream_request_of(client: Client, topic: str) -> bytes:
    """A request for the stream of a new watch of a topic."""
    url = client.post("/v0/watch", {"topics": {topic: {"tail": True}}, "heartbeat_ms": 60_000}).json["stream_url"]
    return f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()


class Replies(NamedTuple):
    """The reply to an append, the head of a stream, and the frame that delivers one record."""

    request: bytes
    reply: bytes
    stream_head: bytes
    frame: bytes

    @property
    def body(self) -> object:
        return BODY


def replies_of(tree: Tree, root: Path) -> Replies:
    with tree.serving(root / "data") as server:
        client = server.client()
        client.post("/v0/topics/one", BODY)
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream,
            socket.create_connection(("127.0.0.1", server.port), timeout=30) as writer,
        ):
            stream.sendall(stream_request_of(client, "one"))
            joined = b""
            while b"event: caught-up" not in joined or not joined.endswith(ENDS):
                joined += stream.recv(1 << 16)
            writer.sendall(request_to("one"))
            reply = writer.recv(1 << 16)
            frame = b""
            while b'"$seq":' not in frame or not frame.endswith(ENDS):
                frame += stream.recv(1 << 16)
    head, _, _ = joined.partition(b"\r\n\r\n")
    return Replies(request_to("one"), reply, head + b"\r\n\r\n", frame)

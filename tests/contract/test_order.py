"""In which order things happen: pipelined requests one after the other, and who may ask before what is asked."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.rig import Rig
from tests.serving import START_S_MAX, ServerProcess, serving
from topics.api.admission import Pressure
from topics.engine.core.engine import Engine
from topics.engine.log.topic import Topic
from topics.model.errors import Throttled, TopicNotFound, TopicsError
from topics.model.requests.records import append_decoder


def request(method: str, path: str, body: Any = None, *lines: str) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data


def replies(server: ServerProcess, *requests: bytes) -> list[tuple[int, Any]]:
    """What the server answers to requests sent in one packet, the last of which closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=START_S_MAX) as connection:
        connection.sendall(b"".join(requests))
        received = b""
        while data := connection.recv(1 << 16):
            received += data
    found: list[tuple[int, Any]] = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        found.append((int(head.split(b" ")[1]), json.loads(rest[:length])))
        received = rest[length:]
    return found


CLOSE = "Connection: close"


def test_a_pipelined_read_sees_the_append_before_it(server: ServerProcess, topic: str) -> None:
    append = request("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
    look = request("POST", f"/v0/topics/{topic}/diff", {}, CLOSE)
    written, read = replies(server, append, look)
    assert (written[0], read[0]) == (201, 200)
    assert [record["data"] for record in read[1]["records"]] == [1]


def test_a_pipelined_delete_takes_the_append_before_it(server: ServerProcess, topic: str) -> None:
    append = request("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}, {"data": 2}]})
    delete = request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 100})
    look = request("POST", f"/v0/topics/{topic}/diff", {}, CLOSE)
    _, deleted, read = replies(server, append, delete, look)
    assert deleted[1]["deleted"] == 2
    assert read[1]["records"] == []


def test_a_pipelined_look_at_a_dropped_topic_finds_none(server: ServerProcess, topic: str) -> None:
    put = request("PUT", f"/v0/topics/{topic}", {})
    drop = request("DELETE", f"/v0/topics/{topic}")
    look = request("GET", f"/v0/topics/{topic}", None, CLOSE)
    assert [status for status, _ in replies(server, put, drop, look)] == [201, 200, 404]


# --- a packed body of a stranger is never unpacked ---


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys="secret") as server:
        yield server


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(bytes(100 << 20), 9)),
        ("gzip", b"this is no gzip"),
        ("br", b"whatever"),
    ],
    ids=["a bomb", "garbage", "an unknown coding"],
)
def test_a_packed_body_without_a_key_is_401_whatever_is_in_it(
    locked: ServerProcess, encoding: str, body: bytes
) -> None:
    head = [
        "POST /v0/topics/a HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Encoding: {encoding}",
        f"Content-Length: {len(body)}",
    ]
    data = "\r\n".join([*head, "", ""]).encode() + body
    ((status, answer),) = replies(locked, data)
    assert (status, answer["error"]["code"]) == (401, "unauthorized")


# --- pressure refuses only what would have been a write ---


class Refusing:
    """An admission that refuses every request."""

    def __init__(self) -> None:
        self._pressure = Pressure(lambda: 0, lambda: 0.0)

    def __call__(self, topic: Topic | None) -> None:
        raise self._pressure.refusal()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"records":[]}', "invalid_request"),
        (b'{"records":[{"data":1}],"create":false}', "topic_not_found"),
        (b'{"records":[{"data":1}]}', "throttled"),
    ],
)
def test_pressure_is_asked_after_400_and_404(tmp_path: Path, body: bytes, expected: str) -> None:
    engine = _engine(tmp_path)
    with pytest.raises(TopicsError) as caught:
        engine.append("absent", append_decoder.decode(body), Refusing())
    assert caught.value.code == expected


def test_pressure_never_refuses_the_retry_of_a_write(tmp_path: Path) -> None:
    engine = _engine(tmp_path)
    params = append_decoder.decode(b'{"records":[{"data":1}],"idempotency_key":"k"}')
    engine.append("a", params)
    engine.commit_log.flush()
    assert engine.append("a", params, Refusing()).deduped
    with pytest.raises(Throttled):
        engine.append("a", append_decoder.decode(b'{"records":[{"data":1}]}'), Refusing())
    with pytest.raises(TopicNotFound):
        engine.append("b", append_decoder.decode(b'{"records":[{"data":1}],"create":false}'), Refusing())


def _engine(path: Path) -> Engine:
    return Rig(path / "data").engine

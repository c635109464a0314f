"""Floods over a WebSocket: parsed in slices, ended when they carry nothing, and large messages wait for memory."""

import json
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.patience import PATIENCE_S
from tests.serving import ServerProcess
from topics.api.live.ws_frames import BURST_MAX, FRAME_WEIGHT, SLICE_WEIGHT_MAX, WsFrameScanner

TEXT, CONTINUED, CLOSE, PING = 0x1, 0x0, 0x8, 0x9


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, announced: int | None = None) -> bytes:
    """As a client sends it, with a mask of zeros."""
    length = len(payload) if announced is None else announced
    head = bytes((opcode | (0x80 if final else 0),))
    if length < 126:
        head += bytes((0x80 | length,))
    elif length < 2**16:
        head += struct.pack(">BH", 0x80 | 126, length)
    else:
        head += struct.pack(">BQ", 0x80 | 127, length)
    return head + bytes(4) + payload


@contextmanager
def opened(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(
            b"GET /v0/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(1)
        assert head.startswith(b"HTTP/1.1 101")
        yield sock


def received_to_end(sock: socket.socket) -> bytes:
    found = b""
    try:
        while data := sock.recv(65_536):
            found += data
    except ConnectionError:
        pass
    return found


@pytest.mark.parametrize(
    "flood",
    [frame(PING), frame(CONTINUED, final=False), frame(TEXT, final=False) + frame(CONTINUED)],
    ids=["pings", "fragments", "messages in fragments"],
)
def test_frames_that_carry_nothing_end_the_connection(server: ServerProcess, flood: bytes) -> None:
    with opened(server) as sock:
        start = frame(TEXT, final=False) if flood == frame(CONTINUED, final=False) else b""
        try:
            sock.sendall(start + flood * (4 * BURST_MAX))
        except ConnectionError:
            pass
        assert b"too many control frames or small fragments" in received_to_end(sock)


@pytest.mark.parametrize("cuts", [1, 3, 7, 1000])
def test_a_slice_ends_after_some_frames_wherever_the_bytes_were_cut(cuts: int) -> None:
    scanner = WsFrameScanner(0.0)
    flood = (frame(TEXT, b"x" * 130) + frame(PING, b"hello") + frame(TEXT, b"{}")) * 20
    frames, position, slices = 60, 0, 0
    pieces = [flood[at : at + cuts] for at in range(0, len(flood), cuts)]
    for piece in pieces:
        position = 0
        while position < len(piece):
            position = scanner.scan(piece, position)
            slices += 1
    assert scanner.message_bytes == 0
    assert scanner.limit.allowance == BURST_MAX - 20
    assert slices >= max(len(pieces), frames * FRAME_WEIGHT // SLICE_WEIGHT_MAX)


def test_an_unfinished_message_is_counted_from_its_first_frame_to_its_last() -> None:
    scanner = WsFrameScanner(0.0)
    start = frame(TEXT, b"x" * 2000, final=False)
    assert scanner.scan(start, 0) == len(start)
    assert (scanner.message_bytes, scanner.is_last) == (2000, False)
    scanner.scan(frame(PING), 0)
    assert scanner.message_bytes == 2000
    scanner.scan(frame(CONTINUED, b"", announced=70_000), 0)
    assert (scanner.message_bytes, scanner.is_last) == (72_000, True)
    scanner.scan(bytes(70_000), 0)
    assert (scanner.message_bytes, scanner.is_last) == (0, False)


def test_unfinished_messages_share_the_memory_of_large_bodies(server: ServerProcess) -> None:
    """512 MiB in all: the 33rd message of 16 MiB is not read on until another one goes."""
    size = 16 * 1024 * 1024
    head = frame(TEXT, announced=size)
    sockets: list[socket.socket] = []
    contexts = [opened(server) for _ in range(33)]
    try:
        for context in contexts:
            sock = context.__enter__()
            sockets.append(sock)
            sock.sendall(head)
        topic = f"t{secrets.token_hex(4)}"
        publish = json.dumps({"op": "publish", "topic": topic, "records": [{"data": 1}], "request_id": 7}).encode()
        sending = threading.Thread(target=sockets[-1].sendall, args=(publish + b" " * (size - len(publish)),))
        sending.start()
        # The kernel's buffers take less than the message.
        sending.join(1.0)
        assert sending.is_alive()
        sockets[0].close()
        sending.join(PATIENCE_S)
        assert not sending.is_alive()
        found = b""
        while b'"request_id":7' not in found:
            found += sockets[-1].recv(65_536)
    finally:
        for sock in sockets:
            sock.close()


def test_a_large_message_gives_its_memory_back(server: ServerProcess) -> None:
    size = 15 * 1024 * 1024
    topic = f"t{secrets.token_hex(4)}"
    publish = json.dumps({"op": "publish", "topic": topic, "records": [{"data": 1}], "request_id": 7}).encode()
    body = frame(TEXT, publish + b" " * (size - len(publish)))
    with opened(server) as sock:
        for _ in range(40):
            sock.sendall(body)
            found = b""
            while b'"request_id":7' not in found:
                found += sock.recv(65_536)

"""Bytes from the network: HTTP/1.1 and HTTP/2 by a whole connection, frames of a WebSocket by its parser.

Where the bytes are cut must make no difference: every input is fed twice, in one piece and in several.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from functools import cache

import h2.config
import h2.connection
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from tests.http.pipe import Pipe, service_of
from topics.api.live.ws_frames import WsFrameScanner
from topics.http.http1.connection import Http1Connection
from topics.http.http2.frames import PREFACE
from topics.http.limits import HttpLimits
from topics.http.request import Request
from topics.http.target import query_pairs

LIMITS = HttpLimits(body_bytes_max=20_000, large_body_bytes=1_000, large_bodies_bytes_max=50_000, pipelined_max=4)
TURNS_MAX = 200


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def feed(data: bytes) -> None:
    """Into a new connection, whose handler echoes what it got."""
    whole = _loop().run_until_complete(_fed([data]))
    at = len(data) // 3
    pieces = _loop().run_until_complete(_fed([data[:at], data[at : at + 1], data[at + 1 :]]))
    if not data.startswith(PREFACE) and b"gzip" not in data.lower():
        assert whole == pieces, f"in one piece {whole!r}, in three {pieces!r}"


async def _fed(pieces: list[bytes]) -> bytes:
    bugs: list[Exception] = []
    service = service_of(LIMITS, handle=_echo)
    service.on_bug = lambda _, error: bugs.append(error) or ""
    connection, pipe = Http1Connection(service), Pipe()
    pipe.protocol = connection
    connection.connection_made(pipe)
    for piece in pieces:
        if piece and not pipe.closed:
            _protocol(pipe).data_received(piece)
            await _turn(pipe)
    if not pipe.closed:
        _protocol(pipe).eof_received()
        await _turn(pipe)
    _protocol(pipe).connection_lost(None)
    service.stop()
    assert not bugs, bugs
    return re.sub(rb"\r\nDate: [^\r]*", b"", bytes(pipe.written))


def _protocol(pipe: Pipe) -> asyncio.Protocol:
    assert isinstance(pipe.protocol, asyncio.Protocol)
    return pipe.protocol


async def _turn(pipe: Pipe) -> None:
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if not pipe.paused:
            break


def _echo(request: Request) -> None:
    shown = [request.method, request.path_segments, query_pairs(request.query), len(request.body)]
    request.reply(200, json.dumps(shown).encode())


def http1_seeds() -> list[bytes]:
    packed = gzip.compress(b"packed" * 20, mtime=0)
    return [
        b"GET /v0/topics?prefix=a%20b&n=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /y HTTP/1.1\r\nHost: a\r\n\r\n" * 2,
        b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;a=b\r\nyou\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
        % (len(packed), packed),
        b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n\r\nGET / HTTP/1.0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1500\r\n\r\n" + b"w" * 1500,
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nAccess-Control-Request-Method: PUT\r\n\r\n",
    ]


def http2_seeds() -> list[bytes]:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    head = [(":method", "POST"), (":path", "/x?a=b"), (":scheme", "http"), (":authority", "a"), ("accept", "*/*")]
    for stream in (1, 3):
        client.send_headers(stream, head, end_stream=stream == 3)
    client.send_data(1, b"hello" * 30, end_stream=True, pad_length=7)
    client.ping(b"12345678")
    client.increment_flow_control_window(1000)
    client.send_headers(5, [*head, ("content-length", "3")])
    client.reset_stream(5)
    whole = client.data_to_send()
    return [whole, whole[: len(whole) // 2], PREFACE + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\4\3\0\0\0\0\1\0\0\0\0"]


# --- WebSocket ---


def feed_websocket(data: bytes) -> None:
    """As a connection does: the scanner says where a slice ends, the library parses it; however it was cut."""
    at = len(data) // 2
    assert _parsed([data]) == _parsed([data[:at], data[at:]])


def _parsed(pieces: list[bytes]) -> list[object]:
    protocol, scanner = ServerProtocol(state=OPEN, max_size=1 << 20), WsFrameScanner(0.0)
    found: list[object] = []
    unfed = b""
    for piece in pieces:
        unfed += piece
        at = 0
        while at < len(unfed):
            end = scanner.scan(unfed, at)
            assert at < end <= len(unfed), "a slice is never empty"
            if scanner.limit.allowance < 0:
                return [*found, "too many"]
            protocol.receive_data(unfed[at:end])
            at = end
            assert scanner.message_bytes >= 0
        unfed = b""
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            found.append((event.opcode, bytes(event.data), event.fin))
        if protocol.close_expected():
            break
    return [*found, protocol.close_sent and protocol.close_sent.code]


def websocket_seeds() -> list[bytes]:
    def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
        return _masked(int(fin) << 7 | int(opcode), data)

    text = json.dumps({"op": "publish", "topic": "a", "records": [{"data": "x" * 300}]}).encode()
    return [
        frame(Opcode.TEXT, b'{"op":"subscribe","topic":"a"}') + frame(Opcode.PING, b"12"),
        frame(Opcode.TEXT, text[:100], fin=False) + frame(Opcode.PONG, b"") + frame(Opcode.CONT, text[100:]),
        frame(Opcode.BINARY, b"\0\1\2") + frame(Opcode.CLOSE, b"\x03\xe8bye"),
    ]


def _masked(first: int, data: bytes) -> bytes:
    length = bytes((0x80 | len(data),)) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    mask = b"mask"
    return bytes((first,)) + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))

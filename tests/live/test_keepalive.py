"""A WebSocket whose client is silent, by hand: asked once when idle, closed if it does not answer, then cut off."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from topics.api.auth import ANY_NAME, Principal, Scope
from topics.api.live.ws_connection import WsConnection
from topics.model.variant import VARIANT

pytestmark = pytest.mark.skipif(VARIANT == "compiled", reason="a compiled class takes no stand-in for another")


class Pipe:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        pass


def connected() -> tuple[WsConnection, Pipe, ClientProtocol]:
    client, server = ClientProtocol(parse_uri("ws://localhost/v0/ws")), ServerProtocol()
    client.send_request(client.connect())
    server.receive_data(b"".join(client.data_to_send()))
    server.send_response(server.accept(cast("Any", server.events_received()[0])))
    client.receive_data(b"".join(server.data_to_send()))
    client.events_received()
    heartbeats = SimpleNamespace(now_s=0.0, paused=lambda _: None)
    live = SimpleNamespace(unqueue=lambda _: None)
    sockets: Any = SimpleNamespace(live=live, reader=None, heartbeats=heartbeats, grace_s=5.0, opened=lambda _: None)
    sockets.reserve = lambda *_, **__: True
    connection = WsConnection(sockets, Principal(Scope.ALL, ANY_NAME), server)
    pipe = Pipe()
    connection.connection_made(cast("asyncio.Transport", pipe))
    return connection, pipe, client


def heard(pipe: Pipe, client: ClientProtocol) -> list[Frame]:
    client.receive_data(b"".join(pipe.written))
    pipe.written.clear()
    return [event for event in client.events_received() if isinstance(event, Frame)]


def close_code(frame: Frame) -> int:
    assert frame.opcode is Opcode.CLOSE
    return Close.parse(bytes(frame.data)).code


def test_an_idle_client_is_pinged_and_lives_if_it_answers() -> None:
    connection, pipe, client = connected()
    for _ in range(3):
        connection.beat()
        assert [frame.opcode for frame in heard(pipe, client)] == [Opcode.PING]
        connection.data_received(b"".join(client.data_to_send()))


def test_a_client_that_does_not_answer_is_closed_with_1011_and_then_cut_off() -> None:
    connection, pipe, client = connected()
    connection.beat()
    heard(pipe, client)
    connection.beat()
    assert [close_code(frame) for frame in heard(pipe, client)] == [1011]
    assert not pipe.aborted
    connection.beat()
    assert pipe.aborted


def test_a_client_that_does_not_read_is_told_closed_with_1013_and_then_cut_off() -> None:
    connection, pipe, client = connected()
    connection.give_up()
    error, close = heard(pipe, client)
    assert b'"code":"throttled"' in error.data
    assert close_code(close) == 1013
    connection.give_up()
    assert pipe.aborted

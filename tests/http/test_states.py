"""The states of an HTTP/1 connection: which follow which, and that no order of events makes another transition."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.http.pipe import Pipe, service_of
from tests.http.wire import Clock, Server, chunked, expire_all, get, park, post, serving
from topics.http.http1.connection import Http1Connection
from topics.http.http1.states import RECEIVING_NEXT, SENDING_NEXT, Receiving, Sending
from topics.http.limits import HttpLimits
from topics.http.request import ReplyStream, Request

WEBSOCKET = (b"Connection: Upgrade", b"Upgrade: websocket")
HTTP_1_0 = b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"


def states_of(connection: Any) -> tuple[Receiving, Sending]:
    return connection._receiving, connection._writer.sending


def only_connection(server: Server) -> Http1Connection:
    (connection,) = server.run(lambda: list(server.listener._service.connections))
    return cast("Http1Connection", connection)


@pytest.mark.parametrize(
    ("states", "table", "closed"),
    [
        (list(Receiving), RECEIVING_NEXT, Receiving.CLOSED),
        (list(Sending), SENDING_NEXT, Sending.CLOSED),
    ],
)
def test_every_state_has_its_row_and_every_way_ends_closed(
    states: list[Any], table: dict[Any, tuple[Any, ...]], closed: Any
) -> None:
    assert list(table) == states
    reachable = {states[0]}
    for _ in states:
        reachable |= {after for before in reachable for after in table[before]}
    assert reachable == set(states)
    assert [state for state in states if closed not in table[state]] == [closed]


def test_a_transition_that_is_not_in_the_table_is_a_bug() -> None:
    async def run() -> None:
        connection = Http1Connection(service_of(HttpLimits()))
        connection.connection_made(Pipe())
        connection.data_received(get(b"/x", b"Connection: close"))
        assert states_of(connection)[0] is Receiving.DONE
        with pytest.raises(AssertionError, match=r"DONE cannot become .*READING"):
            connection._enter(Receiving.READING)
        with pytest.raises(AssertionError, match=r"FINISHING cannot become .*OPEN"):
            connection._writer._enter(Sending.OPEN)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "after"),
    [
        (b"PR", (Receiving.DETECTING, Sending.OPEN)),
        (get() + b"GET /half", (Receiving.READING, Sending.OPEN)),
        (get(b"/x", b"Connection: close"), (Receiving.DONE, Sending.CLOSING)),
        (b"rubbish\r\n\r\n", (Receiving.REFUSED, Sending.LINGERING)),
        (get(b"/x", *WEBSOCKET), (Receiving.REFUSED, Sending.LINGERING)),
        (get(b"/park", *WEBSOCKET), (Receiving.UPGRADING, Sending.OPEN)),
        (get(b"/park", b"Connection: close"), (Receiving.DONE, Sending.OPEN)),
    ],
)
def test_what_a_client_sends_leads_to_the_state(data: bytes, after: tuple[Receiving, Sending]) -> None:
    def handle(request: Request) -> None:
        if request.raw_path != b"/park":
            request.reply(200)

    async def run() -> tuple[Receiving, Sending]:
        connection = Http1Connection(service_of(HttpLimits(), handle=handle))
        connection.connection_made(Pipe())
        connection.data_received(data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return states_of(connection)

    assert asyncio.run(run()) == after


def test_a_client_that_only_stops_sending_still_gets_its_reply() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        request = server.next_request()
        connection = only_connection(server)
        client.socket.shutdown(socket.SHUT_WR)
        server.until(lambda: states_of(connection)[0] is Receiving.DONE)
        server.run(lambda: request.reply(200, b"late"))
        assert client.read_reply().body == b"late"
        assert client.is_closed_by_server()


def test_an_upgrade_after_the_last_request_of_a_draining_server_is_ignored() -> None:
    asked: list[bytes] = []

    def handle(request: Request) -> None:
        asked.append(request.raw_path)
        request.reply(200)

    async def run() -> tuple[Receiving, Sending]:
        service = service_of(HttpLimits(), handle=handle)
        connection = Http1Connection(service)
        connection.connection_made(Pipe())
        service.draining = True
        connection.data_received(get() + get(b"/ws", *WEBSOCKET))
        return states_of(connection)

    assert asyncio.run(run()) == (Receiving.DONE, Sending.FINISHING)
    assert asked == [b"/x"]


def test_nothing_follows_a_stream_that_ends_with_its_connection() -> None:
    """HTTP/1.0 knows the end of such a reply by the end of the connection: a later reply would be part of its body."""
    with serving(park) as server, server.connect() as client:
        client.send(HTTP_1_0 + HTTP_1_0)
        first, second = server.next_request(), server.next_request()

        def act() -> None:
            stream = first.stream()
            stream.write(b"data")
            stream.close()
            second.reply(200, b"second")

        server.run(act)
        assert client.read_to_end().endswith(b"\r\n\r\ndata")


class Drive:
    """One connection and everything that can happen to it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.parked: list[Request] = []
        self.streams: list[ReplyStream] = []
        limits = HttpLimits(large_body_bytes=50, body_bytes_max=2_000, large_bodies_bytes_max=2_000, pipelined_max=3)
        self.service = service_of(limits, self.clock, self.handle)
        self.pipe = Pipe()
        self.connection = Http1Connection(self.service)
        self.pipe.set_protocol(self.connection)
        self.connection.connection_made(self.pipe)
        self.lost = False

    def handle(self, request: Request) -> None:
        if request.raw_path == b"/park":
            self.parked.append(request)
        elif request.raw_path == b"/stream":
            self.streams.append(request.stream())
        elif request.raw_path == b"/ws" and request.upgrade_to:
            request.upgrade(asyncio.Protocol())
        else:
            request.reply(200, b"{}")

    @property
    def reading(self) -> bool:
        """Whether the transport would deliver anything."""
        gone = self.lost or self.pipe.closed or self.pipe.protocol is not self.connection
        return not gone and not self.pipe.paused

    def receive(self, data: bytes) -> None:
        if self.reading:
            self.connection.data_received(data)

    def end(self) -> None:
        if self.reading and not self.connection.eof_received():
            self.lose()

    def lose(self) -> None:
        if not self.lost and self.pipe.protocol is self.connection:
            self.lost = True
            self.connection.connection_lost(None)

    def act(self, verb: Callable[[], object]) -> None:
        if not self.lost and self.pipe.protocol is self.connection:
            verb()

    def reply(self) -> None:
        if self.parked:
            self.parked.pop().reply(200, b"late")

    def close_stream(self) -> None:
        if self.streams:
            self.streams.pop().close()

    def expire(self, after_s: float) -> None:
        self.clock.now_s += after_s
        expire_all(self.service)

    def drain(self) -> None:
        self.service.draining = True
        self.act(self.connection.drain)

    async def tick(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        if self.pipe.closed:
            self.lose()


STREAM_1_0 = HTTP_1_0.replace(b"/x", b"/stream")
SERVED = [get(), get(b"/park"), get(b"/stream"), HTTP_1_0, STREAM_1_0, STREAM_1_0, post(b"x" * 40), post(b"x" * 60)]
LAST = [
    *(get(b"/x", b"Connection: close"), get(b"/park", b"Connection: close"), b"rubbish\r\n\r\n", b"PRI * HT"),
    *(get(b"/ws", *WEBSOCKET), get(b"/park", *WEBSOCKET), get(b"/x", *WEBSOCKET), post(b"x" * 60)[:-5]),
    *(
        chunked(b"x" * 30, b"y" * 30),
        chunked(b"x" * 3_000),
        post(b"x" * 3_000),
        post(b"bad", b"Content-Encoding: gzip"),
    ),
    *(post(b"abc", b"Expect: 100-continue")[:-3], b"abc", b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n"),
]
BYTES = st.tuples(st.lists(st.sampled_from(SERVED), max_size=4), st.sampled_from([b"", b"", *LAST])).map(
    lambda parts: ("receive", b"".join(parts[0]) + parts[1])
)
VERBS = ["tick", "tick", "reply", "reply", "close_stream", "close_stream", "close_stream"]
ENDS = ["end", "pause", "resume", "drain", "lose", "expire 1", "expire 20", "expire 100"]
EVENTS = st.one_of(BYTES, st.sampled_from(VERBS + VERBS + ENDS).map(lambda name: (name, b"")))


@settings(max_examples=examples(300), deadline=None)
@given(events=st.lists(EVENTS, max_size=25))
def test_no_order_of_events_makes_a_transition_that_is_not_in_the_table(events: list[tuple[str, bytes]]) -> None:
    failures: list[str] = []
    # A tick logs what a flush raises, so that it cannot hurt other connections.
    listening = logging.Handler(logging.ERROR)
    listening.emit = lambda record: failures.append(str(record.exc_info))

    async def run() -> None:
        drive = Drive()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context)))
        verbs: dict[str, Callable[[], object]] = {
            "reply": drive.reply,
            "close_stream": drive.close_stream,
            "end": drive.end,
            "drain": drive.drain,
            "lose": drive.lose,
            "pause": partial(drive.act, drive.connection.pause_writing),
            "resume": partial(drive.act, drive.connection.resume_writing),
        }
        for name, argument in events:
            if name == "receive":
                drive.receive(argument)
            elif name.startswith("expire"):
                drive.expire(float(name.split()[1]))
            elif name == "tick":
                await drive.tick()
            else:
                verbs[name]()
        await drive.tick()
        drive.lose()
        if drive.pipe.protocol is drive.connection:
            assert states_of(drive.connection) == (Receiving.CLOSED, Sending.CLOSED)

    logging.getLogger("topics.http").addHandler(listening)
    try:
        asyncio.run(run())
    finally:
        logging.getLogger("topics.http").removeHandler(listening)
    assert failures == []

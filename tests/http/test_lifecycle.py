"""Ticks, drain, upgrades, and that a connection leaves nothing when it ends."""

import asyncio
import gc
import socket
from itertools import pairwise
from typing import Any

import pytest

from tests.http.wire import PATIENCE_S, Server, chunked, echo, get, park, post, serving
from topics.http.closing import CLOSED_PER_TURN
from topics.http.http1.connection import Http1Connection
from topics.http.http1.reader import RequestReader
from topics.http.http1.writer import Http1Writer
from topics.http.limits import HttpLimits
from topics.http.loop import tick as tick_module
from topics.http.request import Request

# ticks


def test_all_requests_of_an_iteration_are_handled_before_one_flush_and_replies_leave_after_it() -> None:
    staged: list[Request] = []
    flushes: list[int] = []

    def flush() -> None:
        flushes.append(len(staged))
        for request in staged:
            request.reply(200, b"%d" % len(flushes))
        staged.clear()

    with serving(staged.append) as server:
        server.run(lambda: server.listener.on_tick_end(flush))
        clients = [server.connect() for _ in range(10)]
        server.settle()
        blocked = asyncio.Event()

        async def send_all() -> None:
            # the loop does not poll while this runs, so that all requests arrive in one iteration
            for client in clients:
                client.send(get() * 3)
            blocked.set()

        server.wait(send_all)
        bodies = [client.read_reply().body for client in clients for _ in range(3)]
        for client in clients:
            client.close()
    assert flushes[0] == 30
    assert bodies == [b"1"] * 30


def test_a_tick_end_runs_when_it_is_asked_for_and_not_otherwise() -> None:
    runs: list[None] = []
    with serving(echo) as server:
        server.run(lambda: server.listener.on_tick_end(lambda: runs.append(None)))
        server.settle()
        assert runs == []
        server.run(server.listener.wake)
        server.settle()
        assert len(runs) == 1


def test_a_failing_flush_does_not_keep_other_replies_from_leaving(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("disk on fire")

    with serving(echo) as server, server.connect() as client:
        server.run(lambda: server.listener.on_tick_end(fail))
        assert client.request(get()).status == 200
        assert client.request(get()).status == 200
    assert "a callback at the end of a tick failed" in caplog.text


def test_large_bodies_that_take_long_are_handled_one_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_module, "LARGE_S", 0.0)
    ticks: list[int] = []
    handled = 0

    def handle(request: Request) -> None:
        nonlocal handled
        handled += 1
        request.reply(200)

    def tick() -> None:
        nonlocal handled
        ticks.append(handled)
        handled = 0

    limits = HttpLimits(turn_body_bytes=5_000)
    with serving(handle, limits) as server:
        server.run(lambda: server.listener.on_tick_end(tick))
        clients = [server.connect() for _ in range(5)]
        for client in clients:
            client.send(post(bytes(6_000)))
        for client in clients:
            assert client.read_reply().status == 200
            client.close()
    assert max(ticks) == 1


# drain


def drain(server: Server, grace_s: float = 5.0) -> "asyncio.Task[None]":
    async def begin() -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(server.listener.drain(grace_s))

    task = server.wait(begin)
    server.settle()
    return task


def test_drain_refuses_new_connections_and_closes_idle_ones() -> None:
    with serving(echo) as server, server.connect() as idle, server.connect() as fresh:
        port = server.listener.port
        assert idle.request(get()).status == 200
        server.settle()
        task = drain(server)
        assert idle.is_closed_by_server()
        assert fresh.is_closed_by_server()
        server.until(task.done)
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def test_drain_lets_what_is_under_way_finish_and_says_close() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get(b"/1") + get(b"/2"))
        first, second = server.next_request(), server.next_request()
        task = drain(server)
        server.settle()
        assert not task.done()
        server.run(lambda: first.reply(200, b"1"))
        reply = client.read_reply()
        assert (reply.body, "connection" in reply.headers) == (b"1", False)
        server.run(lambda: second.reply(200, b"2"))
        reply = client.read_reply()
        assert (reply.body, reply.headers["connection"]) == (b"2", "close")
        assert client.is_closed_by_server()
        server.until(task.done)


def test_drain_lets_a_half_sent_request_arrive() -> None:
    with serving(echo) as server, server.connect() as client:
        client.send(post(b"hello")[:-2])
        server.settle()
        task = drain(server)
        reply = client.request(b"lo")
        assert (reply.body, reply.headers["connection"]) == (b"POST|x|hello", "close")
        assert client.is_closed_by_server()
        server.until(task.done)


def test_drain_waits_for_streams_to_be_ended() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        request = server.next_request()
        stream = server.run(request.stream)
        task = drain(server)
        server.settle()
        assert not task.done()
        server.run(stream.close)
        assert client.read_reply().body == b""
        assert client.is_closed_by_server()
        server.until(task.done)


def test_drain_cuts_off_what_outlasts_its_grace() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get())
        server.next_request()
        server.wait(lambda: server.listener.drain(0.05))
        assert client.is_closed_by_server()
        assert server.connections_open == 0


# upgrades


WEBSOCKET = (b"Connection: Upgrade", b"Upgrade: websocket")


class Shout(asyncio.Protocol):
    """Another protocol: says everything back louder."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


def test_an_upgrade_hands_the_transport_over_with_the_bytes_that_came_early() -> None:
    def handle(request: Request) -> None:
        assert request.upgrade_to == "websocket"
        request.upgrade(Shout(), [(b"Sec-WebSocket-Accept", b"x")])

    with serving(handle) as server, server.connect() as client:
        client.send(get(b"/ws", *WEBSOCKET) + b"early ")
        reply = client.read_reply()
        assert reply.status == 101
        assert reply.headers["upgrade"] == "websocket"
        assert reply.headers["connection"] == "Upgrade"
        assert reply.headers["sec-websocket-accept"] == "x"
        client.send(b"late!")
        assert client.read_until(b"!") == b"EARLY LATE!"
        assert server.connections_open == 0


def test_an_upgrade_may_be_decided_later_and_comes_after_earlier_replies() -> None:
    with serving(park) as server, server.connect() as client:
        client.send(get(b"/1") + get(b"/ws", *WEBSOCKET) + b"early ")
        first = server.next_request()
        server.settle()
        assert server.requests.empty()
        server.run(lambda: first.reply(200, b"1"))
        assert client.read_reply().body == b"1"
        second = server.next_request()
        client.send(b"more ")
        server.settle()
        server.run(lambda: second.upgrade(Shout()))
        assert client.read_reply().status == 101
        client.send(b"late!")
        assert client.read_until(b"!") == b"EARLY MORE LATE!"


def test_an_upgrade_refused_by_its_handler_ends_the_connection() -> None:
    def handle(request: Request) -> None:
        request.reply_error(401, "unauthorized", "no key")

    with serving(handle) as server, server.connect() as client:
        reply = client.request(get(b"/ws", *WEBSOCKET) + b"early")
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        assert client.is_closed_by_server()


@pytest.mark.parametrize("data", [post(b"abc", b"Connection: Upgrade", b"Upgrade: h2c")])
def test_an_upgrade_nobody_offers_is_ignored_and_its_body_read(data: bytes) -> None:
    lines = (b"Connection: Upgrade", b"Upgrade: h2c")
    with serving(echo) as server, server.connect() as client:
        client.send(data + get(b"/2", *lines) + chunked(b"de", b"f", lines=lines) + post(b"g", *WEBSOCKET) + get())
        bodies = [client.read_reply().body for _ in range(5)]
        assert bodies == [b"POST|x|abc", b"GET|2|", b"POST|x|def", b"POST|x|g", b"GET|x|"]


# leftovers


def leftovers() -> list[object]:
    kinds = (Request, Http1Connection, Http1Writer, RequestReader)
    return [thing for thing in gc.get_objects() if isinstance(thing, kinds)]


def test_nothing_needs_the_cycle_collector_to_go_away() -> None:
    """The server runs with automatic collection off: what a hostile client makes must be freed by itself."""
    gone: list[bytes] = []

    def handle(request: Request) -> None:
        if request.raw_path == b"/stream":
            request.stream().write(b"x")
        elif request.raw_path == b"/bug":
            raise ZeroDivisionError
        elif request.raw_path == b"/park":
            request.on_disconnect = lambda: gone.append(request.raw_path)
        else:
            request.reply(200, bytes(2000))

    limits = HttpLimits(body_bytes_max=10_000, large_body_bytes=5_000, large_bodies_bytes_max=10_000)
    visits = [
        get(),
        post(b"x" * 6000),
        post(b"x" * 50_000),
        chunked(b"x" * 50_000),
        post(b"bad", b"Content-Encoding: gzip"),
        get(b"/x", b"Accept-Encoding: gzip"),
        get(b"/%zz"),
        b"rubbish\r\n\r\n",
        b"GET / HTTP/1.1\r\n",
        get(b"/park") * 3,
        get(b"/stream"),
        get(b"/bug"),
        get(b"/ws", *WEBSOCKET),
    ]
    with serving(handle, limits, on_bug=lambda request, exc: "t") as server:
        gc.collect()
        gc.disable()
        try:
            for data in visits * 2:
                with server.connect() as client:
                    client.send(data)
                    server.settle()
                server.settle()
            while not server.requests.empty():
                server.requests.get()
            server.until(lambda: server.listener.connections_open == 0)
            # A thread that has just decompressed a body may still hold its request for a moment.
            server.until(lambda: leftovers() == [])
        finally:
            gc.enable()


def test_connections_that_end_together_are_closed_over_many_turns_of_the_loop() -> None:
    """A program with ten thousand connections may stop at any time; the other clients do not notice."""
    open_in_turns: list[int] = []

    with serving(lambda request: request.reply(200, b"{}")) as server:
        clients = [server.connect() for _ in range(5 * CLOSED_PER_TURN)]
        for client in clients:
            assert client.request(get()).status == 200

        async def count_until_none_is_left() -> None:
            # The loop does not poll between these, so that all of them end in one turn.
            for client in clients:
                client.close()
            while not open_in_turns or open_in_turns[-1]:
                open_in_turns.append(server.listener.connections_open)
                await asyncio.sleep(0)

        server.wait(count_until_none_is_left)
    closed = [before - after for before, after in pairwise(open_in_turns)]
    assert sum(closed) == len(clients)
    assert max(closed) <= CLOSED_PER_TURN

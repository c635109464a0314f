"""Floods of cheap input: what one loop iteration takes on is bounded, and who sends nothing else is sent away."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.http.pipe import Pipe, service_of
from tests.http.wire import Clock, expire_all
from topics.http.closing import ABANDONED_PER_TURN
from topics.http.http1.connection import Http1Connection
from topics.http.http2.connection import Http2Connection
from topics.http.http2.frames import PREFACE
from topics.http.limits import HttpLimits
from topics.http.loop.slices import TURN_S, Slices
from topics.http.loop.tick import HANDLED_S, LATE_S
from topics.http.loop.watchdog import Watchdog
from topics.http.request import Request

READ_BYTES = 256 * 1024  # what uvloop reads at once
UNLIMITED = HttpLimits(h2_control_frames_max=10**9, h2_resets_max=10**9, body_bytes_max=2**26)
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, payload: bytes, stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


FLOODS = {
    "settings": EMPTY_SETTINGS,
    "unknown": frame(0xEE, b""),
    "window updates": frame(8, b"\0\0\0\1"),
    "pings": frame(6, b"12345678"),
    "priorities": frame(2, b"\0\0\0\0\x10", stream=3),
}


async def turns_of(connection: Http2Connection, pipe: Pipe, flood: bytes) -> list[int]:
    """Feed what one read gives, then run the loop until all is parsed; the bytes parsed in each iteration."""
    receive = cast("Any", connection)._h2.receive_data
    parsed_bytes: Counter[int] = Counter()
    turn = 0

    def counted(data: bytes) -> Any:
        parsed_bytes[turn] += len(data)
        return receive(data)

    cast("Any", connection)._h2.receive_data = counted
    connection.data_received(flood * (READ_BYTES // len(flood)))
    while pipe.paused:
        turn += 1
        await asyncio.sleep(0)
    return [parsed_bytes[number] for number in range(turn + 1)]


@pytest.mark.parametrize("kind", FLOODS)
def test_control_frames_are_parsed_in_slices(kind: str) -> None:
    async def run() -> list[int]:
        # Every look at the clock is a whole turn later: one slice each iteration.
        ticks = iter(range(10**9))
        service = service_of(UNLIMITED, lambda: next(ticks) * 2 * TURN_S)
        connection, pipe = Http2Connection(service), Pipe()
        connection.connection_made(pipe)
        connection.data_received(PREFACE + EMPTY_SETTINGS)
        return await turns_of(connection, pipe, FLOODS[kind])

    turns = asyncio.run(run())
    frame_bytes = len(FLOODS[kind])
    assert sum(turns) == READ_BYTES // frame_bytes * frame_bytes
    assert max(turns) <= 65 * frame_bytes


@pytest.mark.parametrize("kind", FLOODS)
def test_a_client_that_sends_nothing_but_control_frames_is_sent_away(kind: str) -> None:
    async def run() -> tuple[Pipe, bytes]:
        service = service_of(HttpLimits(h2_control_frames_max=100))
        connection, pipe = Http2Connection(service), Pipe()
        connection.connection_made(pipe)
        connection.data_received(PREFACE + EMPTY_SETTINGS)
        connection.data_received(FLOODS[kind] * 90)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not pipe.closed
        connection.data_received(FLOODS[kind] * 20)
        for _ in range(5):
            await asyncio.sleep(0)
        return pipe, bytes(pipe.written)

    pipe, written = asyncio.run(run())
    assert pipe.closed
    assert written.endswith((11).to_bytes(4, "big")), "the goodbye says ENHANCE_YOUR_CALM"


def test_credit_for_control_frames_comes_back_with_time() -> None:
    async def run() -> bool:
        clock = Clock()
        service = service_of(HttpLimits(h2_control_frames_max=100, h2_control_frames_per_s=10), clock)
        connection, pipe = Http2Connection(service), Pipe()
        connection.connection_made(pipe)
        connection.data_received(PREFACE + EMPTY_SETTINGS)
        for _ in range(20):
            connection.data_received(FLOODS["pings"] * 50)
            clock.now_s += 5
            expire_all(service)
            await asyncio.sleep(0)
        return pipe.closed

    assert not asyncio.run(run())


def test_requests_that_are_reset_at_once_are_parsed_in_slices() -> None:
    """Each pair weighs as much as a request, which is eight control frames."""
    import h2.connection

    async def run() -> tuple[int, int]:
        ticks = iter(range(10**9))
        service = service_of(UNLIMITED, lambda: next(ticks) * 2 * TURN_S)
        connection, pipe = Http2Connection(service), Pipe()
        connection.connection_made(pipe)
        client = h2.connection.H2Connection()
        client.initiate_connection()
        connection.data_received(client.data_to_send())
        head = [(":method", "GET"), (":path", "/x"), (":scheme", "http"), (":authority", "a")]
        for number in range(1, 2001, 2):
            client.send_headers(number, head, end_stream=True)
            client.reset_stream(number)
        before = cast("Any", connection)._resets
        connection.data_received(client.data_to_send())
        return cast("Any", connection)._resets - before, int(pipe.paused)

    resets, paused = asyncio.run(run())
    assert 0 < resets <= 8
    assert paused


def test_a_body_in_tiny_chunks_is_parsed_in_slices() -> None:
    async def run() -> tuple[int, list[int], bytes]:
        ticks = iter(range(10**9))
        service = service_of(UNLIMITED, lambda: next(ticks) * 2 * TURN_S)
        connection, pipe = Http1Connection(service), Pipe()
        connection.connection_made(pipe)
        connection.data_received(b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        reader = cast("Any", connection)._reader
        chunks = READ_BYTES // 6
        connection.data_received(b"1\r\nx\r\n" * chunks)
        seen = [reader._body_bytes]
        while pipe.paused:
            await asyncio.sleep(0)
            seen.append(reader._body_bytes)
        connection.data_received(b"0\r\n\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return chunks, [after - before for before, after in zip([0, *seen], seen, strict=False)], bytes(pipe.written)

    chunks, turns, written = asyncio.run(run())
    assert sum(turns) == chunks
    assert max(turns) <= 4_000
    assert written.startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_parsed_in_slices_and_all_answered() -> None:
    async def run() -> tuple[int, int]:
        ticks = iter(range(10**9))
        service = service_of(UNLIMITED, lambda: next(ticks) * 2 * TURN_S)
        connection, pipe = Http1Connection(service), Pipe()
        connection.connection_made(pipe)
        count = READ_BYTES // 28
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * count)
        held = len(cast("Any", connection)._waiting or ())
        for _ in range(20 * count):
            if pipe.written.count(b"HTTP/1.1 200") == count:
                break
            await asyncio.sleep(0)
        return held, count - pipe.written.count(b"HTTP/1.1 200")

    held, unanswered = asyncio.run(run())
    assert held < 600
    assert unanswered == 0


def test_slices_take_turns_and_a_failing_one_stops_nobody() -> None:
    done: list[str] = []

    def step(name: str, times: int) -> Callable[[], bool]:
        def run() -> bool:
            done.append(name)
            return done.count(name) < times

        return run

    def bad() -> bool:
        raise RuntimeError("a bug")

    async def run() -> None:
        slices = Slices(asyncio.get_running_loop(), Clock(), Watchdog())
        slices.add(step("a", 3))
        slices.add(bad)
        slices.add(step("b", 2))
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert done == ["a", "b", "a", "b", "a"]


# --- thousands of clients that send at once ---


# How many of them are handled as they are read, and in a slice: the last of each begins in time and ends too late.
DIRECT = 8
EACH_S = HANDLED_S / (DIRECT - 0.5)
IN_TURN = math.ceil(LATE_S / EACH_S)


class Crowd:
    """Connections whose requests take about a millisecond each, by a clock that only they move."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.clock = Clock()
        self.service = service_of(HttpLimits(), self.clock, self._handle, self.clock)
        self.pipes: list[Pipe] = []
        self.connections: list[Http1Connection] = []

    def _handle(self, request: Request) -> None:
        self.clock.now_s += EACH_S
        self.handled.append(int(request.path_segments[0]))
        request.reply(200, b"{}")

    def connect(self) -> int:
        number = len(self.pipes)
        self.pipes.append(Pipe())
        self.connections.append(Http1Connection(self.service))
        self.connections[-1].connection_made(self.pipes[-1])
        return number

    def send(self, number: int, data: bytes | None = None) -> None:
        self.connections[number].data_received(data or b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number)

    def answered(self) -> int:
        return sum(bool(pipe.written) for pipe in self.pipes)


def crowded(run: Callable[[Crowd], Any]) -> None:
    async def in_loop() -> None:
        await run(Crowd())

    asyncio.run(in_loop())


def test_of_thousands_of_requests_read_at_once_a_few_milliseconds_worth_are_handled_in_each_iteration() -> None:
    async def run(crowd: Crowd) -> None:
        for _ in range(100):
            crowd.send(crowd.connect())
        assert crowd.handled == list(range(DIRECT)), "the rest waits for its turn"
        await asyncio.sleep(0)
        assert crowd.answered() >= DIRECT, "and does not keep the replies of the first"
        while len(crowd.handled) < 100:
            before = len(crowd.handled)
            await asyncio.sleep(0)
            assert len(crowd.handled) - before <= IN_TURN
        await asyncio.sleep(0)
        assert crowd.handled == list(range(100)), "in the order in which they came"
        assert crowd.answered() == 100

    crowded(run)


def test_a_new_request_is_answered_between_the_turns_of_a_crowd() -> None:
    async def run(crowd: Crowd) -> None:
        for _ in range(100):
            crowd.send(crowd.connect())
        for _ in range(3):
            await asyncio.sleep(0)
            latest = crowd.connect()
            crowd.send(latest)
            assert crowd.handled[-1] == latest
        assert len(crowd.handled) < 100
        for _ in range(20):
            # As many as there is room for, and then they wait like the others.
            crowd.send(crowd.connect())
        assert len(crowd.handled) < 100

    crowded(run)


def test_a_request_that_waits_for_its_turn_loses_nothing_and_keeps_its_order() -> None:
    async def run(crowd: Crowd) -> None:
        split, ended, gone, large = (crowd.connect() for _ in range(4))
        for _ in range(DIRECT):
            crowd.send(crowd.connect())
        crowd.send(split, b"GET /0 HTTP/1.1\r\n")
        assert crowd.connections[split].mid_request, "a server that stops waits for it"
        crowd.send(gone)
        crowd.connections[gone].connection_lost(None)
        crowd.send(ended)
        assert len(crowd.handled) == DIRECT
        crowd.send(split, b"Host: a\r\n\r\n")
        assert crowd.connections[ended].eof_received()
        crowd.send(large, b"POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n" + b" " * 9_000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(crowd.handled[DIRECT:]) == [split, ended, large]
        assert crowd.answered() == DIRECT + 3

    crowded(run)


@pytest.mark.parametrize("leave", [Http1Connection.eof_received, lambda connection: connection.connection_lost(None)])
def test_of_thousands_of_clients_that_stop_waiting_at_once_a_few_are_abandoned_in_each_iteration(
    leave: Callable[[Http1Connection], object],
) -> None:
    async def run() -> None:
        gone: list[Request] = []

        def park(request: Request) -> None:
            request.on_disconnect = lambda: gone.append(request)

        service = service_of(HttpLimits(), handle=park)
        connections = [Http1Connection(service) for _ in range(4 * ABANDONED_PER_TURN)]
        for connection in connections:
            connection.connection_made(Pipe())
            connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            service.tick.make_room()
        await asyncio.sleep(0)
        leave(connections[0])
        assert len(gone) == 1, "if only few have left, none of them gets another reply"
        for connection in connections[1:]:
            leave(connection)
        assert len(gone) <= ABANDONED_PER_TURN
        while len(gone) < len(connections):
            before = len(gone)
            await asyncio.sleep(0)
            assert 0 < len(gone) - before <= ABANDONED_PER_TURN
        assert [id(request) for request in gone] == [*dict.fromkeys(map(id, gone))], "each of them once"

    asyncio.run(run())

"""The simulated network: connections as two directions of bytes with latency, cut, slow, or silent as the seed says.

    client fiber: send ─▶ pieces, each on its way for a while ─▶ loop.deliver: data_received
                  receive ◀── window of unread bytes ◀── pieces ◀── ServerSide.write, its buffer

Bytes of one direction arrive in order; those of two connections do not. A connection may take seconds: its request then
arrives after the one that a client has sent anew on another connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

from tests.simulation.scheduler import Fiber, Scheduler

if TYPE_CHECKING:
    import random

    from tests.simulation.history import Call

LATENCY_S_MIN, LATENCY_S_MAX = 0.00005, 0.002
SPIKE_S_MAX = 20.0


class ConnectionLost(Exception):
    """The other side is gone, or the network in between."""


class Loop(Protocol):
    """What the network needs of a server's loop."""

    def deliver(self, callback: Callable[..., object], *args: Any) -> None: ...
    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle: ...


class Quality:
    """How a connection is: drawn once for each."""

    def __init__(self, rng: random.Random, trouble: float) -> None:
        self.latency_s = rng.uniform(LATENCY_S_MIN, LATENCY_S_MAX)
        self.spiky = rng.random() < 0.3 * trouble
        self.splits = rng.random() < 0.3
        self.window_bytes = rng.choice((2_000, 16_000, 65_536, 1 << 20))

    def delay_s(self, rng: random.Random) -> float:
        if self.spiky and rng.random() < 0.1:
            return rng.random() ** 3 * SPIKE_S_MAX
        return self.latency_s * (0.5 + rng.random())


class Direction:
    """Bytes on their way, one way: they arrive in order, or not at all once it is cut."""

    def __init__(self, network: Network, quality: Quality, arrive: Callable[[bytes | None], None]) -> None:
        self._network = network
        self._quality = quality
        self._arrive = arrive
        self._next_s = 0.0
        self.cut = False

    def send(self, data: bytes | None) -> None:
        """None is the end of the stream."""
        rng = self._network.rng
        if data and self._quality.splits and len(data) > 1:
            at = rng.randrange(1, len(data))
            self._send(data[:at])
            self._send(data[at:])
        else:
            self._send(data)

    def _send(self, data: bytes | None) -> None:
        scheduler = self._network.scheduler
        self._next_s = max(self._next_s, scheduler.now_s + self._quality.delay_s(self._network.rng))
        scheduler.at(self._next_s, self._come, data)

    def _come(self, data: bytes | None) -> None:
        if not self.cut:
            self._arrive(data)


class Connection:
    """Both directions and both ends."""

    def __init__(self, network: Network, listening: Listening, number: int) -> None:
        self.network = network
        self.number = number
        self.quality = Quality(network.rng, network.trouble)
        self.client = ClientSide(self)
        self.server = ServerSide(self, listening)
        self.to_server = Direction(network, self.quality, self.server.came)
        self.to_client = Direction(network, self.quality, self.client.came)
        self.is_cut = False

    def cut(self, *, drop: bool, tell_client: bool = True, tell_server: bool = True) -> None:
        """The connection breaks: what is on its way may still arrive, and each side hears of it or does not."""
        if self.is_cut:
            return
        self.is_cut = True
        if drop:
            self.to_server.cut = self.to_client.cut = True
        scheduler, rng = self.network.scheduler, self.network.rng
        if tell_client:
            scheduler.after(self.quality.delay_s(rng), self.client.lost)
        if tell_server:
            scheduler.after(self.quality.delay_s(rng), self.server.lost)
        self.network.connections.pop(self.number, None)


class ClientSide:
    """What a client's fiber uses."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._scheduler = connection.network.scheduler
        self._received: deque[bytes] = deque()
        self._ended = self._lost = False
        self._waiting: Fiber | None = None
        self.unread_bytes = 0

    def send(self, data: bytes) -> None:
        if self._lost:
            raise ConnectionLost("reset")
        if not self._connection.is_cut:
            self._connection.to_server.send(data)

    def receive(self, timeout_s: float) -> bytes:
        """Some bytes, b"" at the end of the stream; ConnectionLost, or TimeoutError."""
        until_s = self._scheduler.now_s + timeout_s
        while not self._received:
            if self._lost:
                raise ConnectionLost("reset")
            if self._ended:
                return b""
            left_s = until_s - self._scheduler.now_s
            if left_s <= 0:
                raise TimeoutError
            self._waiting = self._scheduler.current
            self._scheduler.park(left_s)
            self._waiting = None
        data = self._received.popleft()
        self.unread_bytes -= len(data)
        self._connection.server.window_opened()
        return data

    def close(self) -> None:
        """Leave: the server hears of it."""
        if not self._connection.is_cut and not self._lost:
            self._connection.to_server.send(None)
        self._connection.cut(drop=False, tell_client=False)
        self._lost = True

    def came(self, data: bytes | None) -> None:
        if data is None:
            self._ended = True
        else:
            self._received.append(data)
        self._wake()

    def lost(self) -> None:
        self._lost = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._scheduler.unpark(self._waiting)


class ServerSide(asyncio.Transport):
    """The transport that the server's protocol gets."""

    def __init__(self, connection: Connection, listening: Listening) -> None:
        super().__init__()
        self._connection = connection
        self._loop = listening.loop
        self._protocol = cast("asyncio.Protocol", None)
        self._factory = listening.protocol_factory
        self._held: deque[bytes | None] = deque()
        self._buffer: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._high, self._low = 65_536, 16_384
        self._reading = True
        self._write_paused = self._closing = self._gone = self._eof_sent = False

    def opened(self) -> None:
        self._protocol = self._factory()
        self._protocol.connection_made(self)

    # --- the network's side ---

    def came(self, data: bytes | None) -> None:
        self._loop.deliver(self._input, data)

    def lost(self) -> None:
        self._loop.deliver(self._lose, ConnectionResetError("reset by the network"))

    def window_opened(self) -> None:
        if self._buffer and not self._gone:
            network = self._connection.network
            network.scheduler.after(self._connection.quality.delay_s(network.rng), self._loop.deliver, self._pump)

    def _input(self, data: bytes | None) -> None:
        if self._gone:
            return
        if not self._reading or self._held:
            self._held.append(data)
        elif data is None:
            if not self._protocol.eof_received():
                self.close()
        elif not self._closing:
            self._protocol.data_received(data)

    def _pump(self) -> None:
        """Put on the way what the client's window takes."""
        client, window = self._connection.client, self._connection.quality.window_bytes
        while self._buffer and client.unread_bytes < window:
            data = self._buffer.popleft()
            self._buffered_bytes -= len(data)
            client.unread_bytes += len(data)
            self._connection.to_client.send(data)
        if self._write_paused and self._buffered_bytes <= self._low and not self._gone:
            self._write_paused = False
            self._protocol.resume_writing()
        if not self._buffer:
            if self._eof_sent:
                self._connection.to_client.send(None)
                self._eof_sent = False
            if self._closing:
                self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._gone:
            return
        self._gone = self._closing = True
        if error is None:
            self._connection.to_client.send(None)
            self._connection.cut(drop=False, tell_server=False, tell_client=False)
        self._loop.call_soon(self._protocol.connection_lost, error)

    # --- the protocol's side ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000 + self._connection.number % 20_000) if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read_held)

    def _read_held(self) -> None:
        while self._held and self._reading and not self._gone:
            data = self._held.popleft()
            held, self._held = self._held, deque()
            self._input(data)
            self._held = held

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._buffered_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._buffer.append(bytes(data))
        self._buffered_bytes += len(data)
        self._pump()
        if self._buffered_bytes > self._high and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_sent = True
        self._pump()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            self._loop.call_soon(self._pump)

    def abort(self) -> None:
        if not self._gone:
            self._buffer.clear()
            self._buffered_bytes = 0
            self._connection.cut(drop=True, tell_server=False)
            self._lose(ConnectionAbortedError("aborted by the server"))


class Listening:
    """A listening socket, as `asyncio.Server` shows it."""

    def __init__(self, network: Network, loop: Loop, protocol_factory: Callable[[], asyncio.Protocol]) -> None:
        self._network = network
        self.loop = loop
        self.protocol_factory = protocol_factory
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 4000

    def close(self) -> None:
        if self._network.listening is self:
            self._network.listening = None


class Network:
    """Who listens, and every open connection. `trouble` from 0 to 1 says how bad new ones are."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, place: str = "") -> None:
        self.scheduler = scheduler
        self.rng = rng
        # The machine that it leads to, if there are several.
        self.place = place
        self.trouble = 1.0
        self.listening: Listening | None = None
        self.connections: dict[int, Connection] = {}
        self._number = 0

    def moves_on(self, call: Call) -> bool:
        """There is nowhere else to go."""
        del call
        return False

    def listen(self, loop: Loop, protocol_factory: Callable[[], asyncio.Protocol]) -> Listening:
        assert self.listening is None, "the port is in use"
        self.listening = Listening(self, loop, protocol_factory)
        return self.listening

    def connect(self) -> ClientSide:
        """Called by a fiber; ConnectionLost if nobody listens."""
        self.scheduler.sleep(self.rng.uniform(LATENCY_S_MIN, LATENCY_S_MAX))
        listening = self.listening
        if listening is None:
            raise ConnectionLost("refused")
        self._number += 1
        connection = Connection(self, listening, self._number)
        self.connections[connection.number] = connection
        listening.loop.deliver(connection.server.opened)
        return connection.client

    def process_died(self, *, silent: bool) -> None:
        """The server is gone: its kernel resets the connections, unless it is gone as well."""
        self.listening = None
        for connection in list(self.connections.values()):
            connection.cut(drop=self.rng.random() < 0.5, tell_client=not silent, tell_server=False)

    def cut_some(self, share: float) -> None:
        for connection in list(self.connections.values()):
            if self.rng.random() < share:
                connection.cut(drop=self.rng.random() < 0.5)

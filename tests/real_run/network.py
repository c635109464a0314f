"""Real time and real connections, with the calls of the simulated ones: the clients of the simulation use them."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

from tests.simulation.history import Call
from tests.simulation.network import ConnectionLost

READ_BYTES = 1 << 16
CONNECT_S_MAX = 5.0
# Closing with this sends a reset instead of an end.
RESET = struct.pack("ii", 1, 0)


class RealTime:
    @property
    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class RealLine:
    """One end of a connection, used by one thread; `cut` by another."""

    def __init__(self, network: RealNetwork, port: int) -> None:
        self._network = network
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), CONNECT_S_MAX)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self, timeout_s: float) -> bytes:
        try:
            self._socket.settimeout(max(0.001, timeout_s))
            return self._socket.recv(READ_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def close(self) -> None:
        self._network.closed(self)
        self._socket.close()

    def cut(self) -> None:
        """Reset by the network: both sides lose what is on its way."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._socket.shutdown(socket.SHUT_RDWR)


class RealNetwork:
    """Connections to the one server, which keeps its port over restarts."""

    def __init__(self, port: int) -> None:
        self.scheduler = RealTime()
        self._port = port
        self._lock = threading.Lock()
        self._lines: set[RealLine] = set()

    @property
    def place(self) -> str:
        return ""

    def moves_on(self, call: Call) -> bool:
        """There is nowhere else to go."""
        del call
        return False

    def connect(self) -> RealLine:
        line = RealLine(self, self._port)
        with self._lock:
            self._lines.add(line)
        return line

    def closed(self, line: RealLine) -> None:
        with self._lock:
            self._lines.discard(line)

    def cut_some(self, share: float, rng: random.Random) -> int:
        with self._lock:
            lines = [line for line in self._lines if rng.random() < share]
        for line in lines:
            line.cut()
        return len(lines)

"""A WebSocket over the simulated network: JSON messages one by one, pings answered, nothing retried."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.simulation.http_client import Connecting
from tests.simulation.network import ConnectionLost


class SocketClient:
    """Connects at once; ConnectionLost or TimeoutError if that fails, or later when the connection does."""

    def __init__(self, network: Connecting, path: str, timeout_s: float) -> None:
        self._scheduler = network.scheduler
        self._connection = network.connect()
        self._protocol = ClientProtocol(parse_uri(f"ws://localhost{path}"), max_size=None)
        self._protocol.send_request(self._protocol.connect())
        self._parts: list[bytes] = []
        self._messages: deque[dict[str, Any]] = deque()
        until_s = self._scheduler.now_s + timeout_s
        try:
            self._flush()
            while self._protocol.state is State.CONNECTING:
                self._receive(until_s)
        except (ConnectionLost, TimeoutError):
            self.close()
            raise

    def send(self, message: dict[str, Any]) -> None:
        self._protocol.send_text(json.dumps(message).encode())
        self._flush()

    def receive(self, timeout_s: float) -> dict[str, Any]:
        until_s = self._scheduler.now_s + timeout_s
        while not self._messages:
            self._receive(until_s)
        return self._messages.popleft()

    def close(self) -> None:
        self._connection.close()

    def _receive(self, until_s: float) -> None:
        data = self._connection.receive(max(0.0, until_s - self._scheduler.now_s))
        if not data:
            raise ConnectionLost("end of stream")
        self._protocol.receive_data(data)
        self._flush()
        if self._protocol.handshake_exc is not None or self._protocol.state in (State.CLOSING, State.CLOSED):
            raise ConnectionLost("refused, or closed by the server")
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    self._messages.append(json.loads(b"".join(self._parts)))
                    self._parts.clear()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._connection.send(data)

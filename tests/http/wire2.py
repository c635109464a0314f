"""An HTTP/2 client for the tests: the `h2` library over a plain socket, one event at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

from tests.http.wire import Client

Field = tuple[str, str]


@dataclass
class Reply2:
    """What came on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    interim: list[str] = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers.get(":status", "0"))


class Client2:
    """One connection by prior knowledge; `auto_ack=False` leaves the windows closed."""

    def __init__(self, client: Client, auto_ack: bool = True, window: int | None = None) -> None:
        self.client = client
        self.auto_ack = auto_ack
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        if window is not None:
            self.h2.local_settings = h2.settings.Settings(
                client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
            )
        self.h2.initiate_connection()
        self.replies: dict[int, Reply2] = {}
        self.goodbye: h2.events.ConnectionTerminated | None = None
        self.flush()

    def __enter__(self) -> Client2:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()

    def flush(self) -> None:
        self.client.send(self.h2.data_to_send())

    def start(self, method: str = "GET", path: str = "/x", fields: tuple[Field, ...] = (), end: bool = True) -> int:
        number = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "a"), *fields]
        self.h2.send_headers(number, head, end_stream=end)
        self.replies[number] = Reply2()
        self.flush()
        return number

    def send_body(self, number: int, body: bytes, end: bool = True) -> None:
        """Send as the server's windows allow."""
        while body:
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if room == 0:
                self.receive()
                continue
            self.h2.send_data(number, body[:room])
            body = body[room:]
            self.flush()
        if end:
            self.h2.end_stream(number)
            self.flush()

    def request(
        self, method: str = "GET", path: str = "/x", fields: tuple[Field, ...] = (), body: bytes = b""
    ) -> Reply2:
        number = self.start(method, path, fields, end=not body)
        if body:
            self.send_body(number, body)
        return self.finish(number)

    def finish(self, number: int) -> Reply2:
        reply = self.replies[number]
        while not reply.ended and reply.reset is None:
            self.receive()
        return reply

    def receive(self) -> None:
        """One read off the socket."""
        self.client._receive()
        data, self.client.received = self.client.received, b""
        for event in self.h2.receive_data(data):
            self._heed(event)
        self.flush()

    def receive_to_end(self) -> None:
        try:
            while True:
                self.receive()
        except (EOFError, ConnectionError):
            pass

    def _heed(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.InformationalResponseReceived():
                self.replies[event.stream_id].interim.append(dict(event.headers)[":status"])  # type: ignore[index]
            case h2.events.ResponseReceived():
                self.replies[event.stream_id].headers = dict(event.headers)  # type: ignore[arg-type]
            case h2.events.DataReceived():
                self.replies[event.stream_id].body += event.data
                if self.auto_ack:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.replies[event.stream_id].ended = True
            case h2.events.StreamReset():
                self.replies[event.stream_id].reset = int(event.error_code)
            case h2.events.ConnectionTerminated():
                self.goodbye = event
            case _:
                pass

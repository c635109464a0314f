"""A client by HTTP/2 with prior knowledge, over the same network and with the same calls as the one by HTTP/1.1."""

from __future__ import annotations

import json

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from tests.simulation.http_client import AGE, Connecting, HttpClient
from tests.simulation.network import ConnectionLost


class Http2Client(HttpClient):
    """One connection, one stream at a time. What breaks the protocol raises, and ends the world."""

    def __init__(self, network: Connecting) -> None:
        super().__init__(network)
        self._h2 = _fresh()

    def _opened(self) -> None:
        self._h2 = _fresh()
        self._h2.initiate_connection()

    def _exchange(self, method: str, path: str, body: object, until_s: float) -> tuple[int, bytes, bool]:
        content = b"" if body is None else json.dumps(body).encode()
        stream = self._h2.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost")]
        if content:
            head += [("content-type", "application/json"), ("content-length", str(len(content)))]
        self._h2.send_headers(stream, head, end_stream=not content)
        while content:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(content))
            if room:
                self._h2.send_data(stream, content[:room], end_stream=room == len(content))
                content = content[room:]
            else:
                self._receive(until_s)
        reply = self._reply(stream, until_s)
        if self._h2.state_machine.state is h2.connection.ConnectionState.CLOSED:
            # The server said goodbye with its answer.
            self.close()
        return reply

    def _reply(self, stream: int, until_s: float) -> tuple[int, bytes, bool]:
        status, content, aged = 0, b"", False
        while True:
            for event in self._receive(until_s):
                match event:
                    case h2.events.ResponseReceived(stream_id=number) if number == stream:
                        headers = dict(event.headers or ())
                        status, aged = int(headers[b":status"]), AGE in headers
                    case h2.events.DataReceived(stream_id=number) if number == stream:
                        content += event.data or b""
                    case h2.events.StreamEnded(stream_id=number) if number == stream:
                        return status, content, aged
                    case h2.events.StreamReset(stream_id=number) if number == stream:
                        raise ConnectionLost("the stream was reset")
                    case h2.events.ConnectionTerminated():
                        raise ConnectionLost("the server says goodbye")
                    case _:
                        pass

    def _receive(self, until_s: float) -> list[h2.events.Event]:
        self._send(self._h2.data_to_send())
        try:
            events = self._h2.receive_data(self._more(until_s))
        except h2.exceptions.ProtocolError as error:
            # The server may answer after its goodbye, and both may come at once: h2 takes none of it then (issue 1181).
            if "in state ConnectionState.CLOSED" not in str(error):
                raise
            raise ConnectionLost("the server has said goodbye") from error
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
        self._send(self._h2.data_to_send())
        return events


def _fresh() -> h2.connection.H2Connection:
    return h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))

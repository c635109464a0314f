"""A client of event streams that sees every byte: frames, comments, headers, and when the server ends a stream."""

import base64
import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess

FRAME_S_MAX = PATIENCE_S


class Event(NamedTuple):
    """One frame. A comment has the event `:`, the line that sets the retry time `retry`, an id by itself `id`."""

    event: str
    data: Any
    id: str | None = None

    @property
    def cursor(self) -> dict[str, int]:
        assert self.id is not None
        return decode_id(self.id)

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]


def decode_id(text: str) -> dict[str, int]:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def encode_id(seqs: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(seqs).encode()).decode().rstrip("=")


class EventSource:
    """GET of a stream. Frames are read one by one; `ended` after the server's proper end."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str] | None = None, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(FRAME_S_MAX)
        self.socket.connect(("127.0.0.1", port))
        sent = {"Host": "localhost", "Accept": "text/event-stream", **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        self._raw = b""
        self._text = b""
        self.ended = False
        while b"\r\n\r\n" not in self._raw:
            self._receive()
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
        self.last_id: str | None = None

    def _receive(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionResetError("the server cut the connection")
        self._raw += data

    def _take_chunk(self) -> None:
        while b"\r\n" not in self._raw:
            self._receive()
        size_text, _, _ = self._raw.partition(b"\r\n")
        size, start = int(size_text, 16), len(size_text) + 2
        while len(self._raw) < start + size + 2:
            self._receive()
        self._text += self._raw[start : start + size]
        self._raw = self._raw[start + size + 2 :]
        self.ended = size == 0

    def next(self, timeout_s: float = FRAME_S_MAX) -> Event:
        """The next frame of any kind."""
        self.socket.settimeout(timeout_s)
        while b"\n\n" not in self._text:
            if self.ended:
                raise EOFError("the stream is over")
            self._take_chunk()
        frame, _, self._text = self._text.partition(b"\n\n")
        fields = dict(line.split(": ", 1) for line in frame.decode().split("\n") if not line.startswith(":"))
        if frame.startswith(b":"):
            return Event(":", frame.decode()[1:].strip())
        if "retry" in fields:
            return Event("retry", int(fields["retry"]))
        if "id" in fields:
            self.last_id = fields["id"]
        if "data" not in fields:
            return Event("id", None, fields["id"])
        return Event(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id"))

    def event(self, timeout_s: float = FRAME_S_MAX) -> Event:
        """The next frame that is neither a comment nor the retry time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = self.next(max(0.01, deadline_s - time.monotonic()))
            if found.event not in (":", "retry"):
                return found

    def until(self, event: str) -> list[Event]:
        """Frames up to and with the first of this kind."""
        frames = [self.event()]
        while frames[-1].event != event:
            frames.append(self.event())
        return frames

    def is_quiet(self, for_s: float = 0.3) -> bool:
        try:
            found = self.event(for_s)
        except TimeoutError:
            return True
        raise AssertionError(f"unexpected: {found}")

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Cut the connection without a word."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


class Watcher:
    """Sessions and streams of one server."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client: Client = server.client()
        self._open: list[EventSource] = []

    def session(self, topics: Any, client: Client | None = None, query: str = "", **request: Any) -> Any:
        body = request if topics is None else {"topics": topics, **request}
        reply = (client or self.client).post(f"/v0/watch{query}", body)
        assert reply.status == 200, reply
        return reply.json

    def open(
        self, path: str, last_id: str | None = None, key: str | None = None, receive_bytes: int = 0, **headers: str
    ) -> EventSource:
        sent = {"Last-Event-ID": last_id or "", "Authorization": f"Bearer {key}" if key else "", **headers}
        source = EventSource(self.server.port, path, sent, receive_bytes)
        self._open.append(source)
        return source

    def watch(self, topics: Any, **request: Any) -> EventSource:
        source = self.open(self.session(topics, **request)["stream_url"])
        assert source.status == 200
        assert source.next() == Event("retry", 2000)
        return source

    def metric(self, name: str) -> float:
        return self.client.get("/v0/metrics", headers={"Accept": "application/json"}).json[name]

    def close(self) -> None:
        for source in self._open:
            source.close()


@contextlib.contextmanager
def watching(server: ServerProcess) -> Iterator[Watcher]:
    watcher = Watcher(server)
    try:
        yield watcher
    finally:
        watcher.close()


def eventually(true: Any, within_s: float = PATIENCE_S) -> None:
    """For what another process does in its own time."""
    deadline_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.005)

"""A server that answers by a script: what the real one cannot be made to say on demand."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """A request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


# What happens to a request: bytes that are sent back, None to cut the connection, or a function that decides.
Step = bytes | None | Callable[[Seen], "bytes | None"]


def answer(status: int, body: Any = b"", *, length: int | None = None, **headers: object) -> bytes:
    """An HTTP answer; `length` lies about the size of the body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {
        "Content-Type": "application/json",
        **{name.replace("_", "-"): str(value) for name, value in headers.items()},
    }
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(content) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in named.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def error(status: int, code: str, detail: Any = None, **headers: Any) -> bytes:
    body = {"error": {"code": code, "message": f"{code} by script", **({"detail": detail} if detail else {})}}
    return answer(status, body, **headers)


class ScriptedServer:
    """Takes one step of the script per request; after the last one it repeats that."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self.seen: list[Seen] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while (seen := _read_request(stream)) is not None:
                with self._lock:
                    self.seen.append(seen)
                    step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
                said = step(seen) if callable(step) else step
                try:
                    if said is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(said)
                except OSError:
                    return  # the client has gone meanwhile
                if _is_cut(said):
                    return

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()


def _is_cut(said: bytes) -> bool:
    """Less was sent than promised: the connection has to end."""
    head, _, body = said.partition(b"\r\n\r\n")
    promised = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return bool(promised) and len(body) < int(promised[0].partition(b":")[2])


def _read_request(stream: Any) -> Seen | None:
    try:
        first = stream.readline()
        if not first:
            return None
        method, path, _ = first.decode().split(" ", 2)
        headers: dict[str, str] = {}
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Seen(method, path, headers, stream.read(int(headers.get("content-length", 0))))
    except (OSError, ValueError):
        return None

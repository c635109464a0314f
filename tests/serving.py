"""A real `topics serve` in a process of its own, and a plain client for it: what black-box tests stand on."""

import contextlib
import http.client
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.launching import Launched
from tests.patience import PATIENCE_S

TOPICS = Path(sys.executable).parent / "topics"
START_S_MAX = PATIENCE_S
# More turns of a server's loop than it takes from a byte in its socket to a request that is served or waits.
TURNS = 8
# Of a server's log, what the report of a failed test shows.
SHOWN_LINES_MAX = 60


def free_port() -> int:
    """A port for a server that must know it before it starts, or keep it over restarts.

    The kernel assigns none below its range to connections and to servers on port 0, so no process takes it in between.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, first) if first > 12_000 else range(10_000, 60_000)
    while True:
        port = random.choice(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error code; fails if this is not an error."""
        return self.json["error"]["code"]

    @property
    def detail(self) -> dict[str, Any]:
        return self.json["error"].get("detail", {})


class Client:
    """One keep-alive connection. `json` is encoded and typed; `body` and `headers` are sent as they are."""

    def __init__(self, port: int, key: str | None = None, timeout_s: float = PATIENCE_S) -> None:
        self.port = port
        self.key = key
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def request(
        self,
        method: str,
        path: str,
        json_body: Any = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        sent: dict[str, str] = {}
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        if json_body is not None:
            body = json.dumps(json_body).encode()
            sent["Content-Type"] = "application/json"
        sent.update(headers or {})
        try:
            return self._exchange(method, path, body, sent)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # The server may close an idle connection at any time.
            return self._exchange(method, path, body, sent)

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        """A connection on which this fails is closed: its owner may be gone before the next one."""
        try:
            self._connection.request(method, path, body, headers)
            return _reply(self._connection.getresponse())
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def begin(self, method: str, path: str, json_body: Any) -> None:
        """Send a request; `end` reads its answer."""
        body = json.dumps(json_body).encode()
        sent = {"Content-Type": "application/json"}
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        self._connection.request(method, path, body, sent)

    @property
    def is_answered(self) -> bool:
        """Whether some of the answer has come already."""
        readable = select.poll()
        readable.register(self._connection.sock, select.POLLIN)  # select() would refuse high file numbers
        return bool(readable.poll(0))

    def end(self) -> Reply:
        return _reply(self._connection.getresponse())

    def get(self, path: str, **more: Any) -> Reply:
        return self.request("GET", path, **more)

    def put(self, path: str, json_body: Any = None, **more: Any) -> Reply:
        return self.request("PUT", path, json_body, **more)

    def post(self, path: str, json_body: Any = None, **more: Any) -> Reply:
        return self.request("POST", path, json_body, **more)

    def delete(self, path: str, **more: Any) -> Reply:
        return self.request("DELETE", path, **more)

    def append(self, topic: str, *payloads: Any, **fields: Any) -> Reply:
        return self.post(f"/v0/topics/{topic}", {"records": [{"data": data} for data in payloads], **fields})

    def diff(self, topic: str, **params: Any) -> Any:
        reply = self.post(f"/v0/topics/{topic}/diff", params)
        assert reply.status == 200, reply
        return reply.json

    def payloads(self, topic: str, **params: Any) -> list[Any]:
        return [record["data"] for record in self.diff(topic, **params)["records"]]

    def state(self, topic: str) -> Any:
        reply = self.get(f"/v0/topics/{topic}?touch=false")
        assert reply.status == 200, reply
        return reply.json

    def close(self) -> None:
        self._connection.close()


def _reply(response: http.client.HTTPResponse) -> Reply:
    content = response.read()
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, content)


class ServerProcess:
    """`topics serve` on a free port. `environ` adds settings: max_topics=3 becomes TOPICS_MAX_TOPICS=3."""

    # What is run; None: the product as the launcher has imported it.
    command: Sequence[str | Path] | None = None
    # Those that ran when the test began, or were started since: the report of a failed test accounts for them.
    known: ClassVar[list["ServerProcess"]] = []

    def __init__(self, data_dir: Path, *arguments: str, **environ: object) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        settings = {"port": 0, "data_dir": data_dir, **environ}
        clean.update({f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()})
        self.key: str | None = None
        self.lines: list[str] = []
        self._clients: list[Client] = []
        self._news = threading.Condition()
        self._end: str | None = None
        self.process = self._started(["serve", *arguments], clean)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.known.append(self)

    def _started(self, arguments: list[str], env: dict[str, str]) -> subprocess.Popen[bytes] | Launched:
        if self.command is None:
            return Launched(arguments, env, stderr=subprocess.PIPE)
        command = [*self.command, *arguments]
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for_log(self, pattern: str) -> re.Match[str]:
        """The first line of the log that matches, now or later."""
        deadline_s = time.monotonic() + START_S_MAX
        with self._news:
            while True:
                for line in self.lines:
                    if found := re.search(pattern, line):
                        return found
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, self.log
                assert self._reader.is_alive(), self.log
                self._news.wait(left_s)

    @property
    def port(self) -> int:
        return int(self.wait_for_log(r"listening on https?://\S+:(\d+)")[1])

    def ready(self) -> "ServerProcess":
        self.wait_for_log(r"\bready: ")
        return self

    def client(self, key: str | None = None) -> Client:
        """A connection of its own, closed with the server."""
        return self._opened(Client(self.port, key if key is not None else self.key))

    def stranger(self) -> Client:
        """A client without any key."""
        return self._opened(Client(self.port))

    def _opened(self, client: Client) -> Client:
        self._clients.append(client)
        return client

    def settle(self) -> None:
        settle(self.port)

    def waiting(self, method: str, path: str, json_body: Any, key: str | None = None) -> Client:
        """A request that has come to wait at the server; `end` of the client reads its answer."""
        client = self.client(key)
        client.begin(method, path, json_body)
        self.settle()
        return client

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def exit_code(self) -> int:
        code = self.process.wait(timeout=START_S_MAX)
        self._reader.join(timeout=START_S_MAX)
        assert self.process.stderr is not None
        self.process.stderr.close()
        for client in self._clients:
            client.close()
        return code

    def kill(self) -> None:
        self._end = self._state("ran until the test killed it")
        self.process.kill()
        self.exit_code()

    def account(self) -> tuple[str, str]:
        """For the report of a failed test: what became of it, and the end of its log."""
        state = self._end or self._state("runs")
        return f"server {self.process.pid} {state}", "\n".join(self.lines[-SHOWN_LINES_MAX:])

    def _state(self, running: str) -> str:
        code = self.process.poll()
        if code is None:
            return running
        self._reader.join(START_S_MAX)
        return f"ended with exit code {code}"


def settle(port: int) -> None:
    """Until the server has read what was sent to it before, and has dealt with it or has it waiting.

    On one machine a sent byte is in the receiver's socket at once, and so is the end of a connection; a loop that
    answers a later request on another connection has seen both.
    """
    with contextlib.closing(Client(port)) as client:
        for _ in range(TURNS):
            client.get("/v0/health")


@contextlib.contextmanager
def serving(data_dir: Path, *arguments: str, **environ: object) -> Iterator[ServerProcess]:
    server = ServerProcess(data_dir, *arguments, **environ)
    try:
        yield server.ready()
    finally:
        server.kill()

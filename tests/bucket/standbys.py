"""A primary and its standbys as processes, on a bucket in a directory, and what tests ask of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.test_lost_machine import settings
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess


class Servers:
    """Starts servers on one bucket; all of them are ended with the test."""

    def __init__(self, path: Path, **environ: object) -> None:
        self.path = path
        self.bucket = path / "bucket"
        self.bucket.mkdir()
        self._environ = environ
        self._started: list[ServerProcess] = []

    def start(self, name: str, *arguments: str, **environ: object) -> ServerProcess:
        environ = {**settings(self.bucket), **self._environ, **environ}
        server = ServerProcess(self.path / name, *arguments, **environ)
        self._started.append(server)
        return server

    def primary(self, name: str, **environ: object) -> ServerProcess:
        return self.start(name, **environ).ready()

    def standby(self, name: str, **environ: object) -> ServerProcess:
        return self.start(name, "--standby", **environ).ready()

    def started(self, server: ServerProcess) -> ServerProcess:
        """One that was started in another way; it is ended like the others."""
        self._started.append(server)
        return server

    def end(self) -> None:
        for server in self._started:
            with contextlib.suppress(ProcessLookupError, ValueError):
                server.process.kill()
            with contextlib.suppress(ValueError):
                server.exit_code()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    found = Servers(tmp_path)
    yield found
    found.end()


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for something that is bound to happen; what it was in the end."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, what or condition
        time.sleep(0.01)
    return found


def role(client: Client) -> str | None:
    """What the server says it is; None while it does not answer."""
    with contextlib.suppress(OSError):
        return client.get("/v0/health").json.get("role")
    return None


def until_primary(server: ServerProcess) -> Client:
    client = server.client()
    until(lambda: role(client) == "primary", "a primary")
    return client


def until_sees(client: Client, topic: str, seq: int) -> None:
    """The server has the topic up to this seq."""

    def sees() -> bool:
        reply = client.get(f"/v0/topics/{topic}?touch=false")
        return reply.status == 200 and reply.json["head_seq"] >= seq

    until(sees, f"{topic} up to {seq}")

"""More connections than file descriptors: some are refused, and everything else continues, above all writes."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import PROGRAM, Launched
from tests.patience import PATIENCE_S
from tests.serving import START_S_MAX, Client, ServerProcess, serving
from topics.http.descriptors import FILES_RESERVED, REFUSED_MAX, connections_within

LIMIT = 512


class FewFiles(ServerProcess):
    """May open no more than `LIMIT` files, whatever it asks for."""

    limits = f"({LIMIT}, {LIMIT})"

    def _started(self, arguments: list[str], env: dict[str, str]) -> Launched:
        limited = f"from resource import *; setrlimit(RLIMIT_NOFILE, {self.limits})"
        return Launched(arguments, env, code=f"{limited}\n{PROGRAM}", stderr=subprocess.PIPE)


class FewFilesAtFirst(FewFiles):
    limits = "(64, getrlimit(RLIMIT_NOFILE)[1])"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    # Log files of a few frames each: a write that finds no descriptor fails.
    server = FewFiles(tmp_path, wal_file_bytes="4 KiB")
    yield server.ready()
    server.kill()


@contextlib.contextmanager
def crowd(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing; the server may have closed some of them."""
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            for _ in range(count)
        ]


def metric(client: Client, name: str) -> int:
    return client.get("/v0/metrics", headers={"Accept": "application/json"}).json[name]


def test_1200_connections_that_say_nothing_do_not_stop_writes(server: ServerProcess) -> None:
    client = server.client()
    assert client.put("/v0/topics/t", {"durability": "fsync"}).status == 201

    with crowd(server.port, 1_200):
        for number in range(30):
            assert client.append("t", "x" * 1_000 + str(number)).status == 200
        assert client.get("/v0/ready").status == 200
        assert metric(client, "topics_connections") <= LIMIT
        assert metric(client, "topics_connections_max") == LIMIT // 2
        assert metric(client, "topics_connections_refused_total") > 0
        assert metric(client, "topics_wal_read_only") == 0

    assert client.append("t", "afterwards").status == 200
    assert client.state("t")["head_seq"] == 31
    assert "read-only" not in server.log
    assert server.terminate() == 0


def test_a_connection_too_many_is_told_why_and_there_is_room_again_when_others_leave(server: ServerProcess) -> None:
    client = server.client()
    assert client.get("/v0/health").status == 200
    with crowd(server.port, LIMIT // 2 - 1) as others:
        with socket.create_connection(("127.0.0.1", server.port), timeout=START_S_MAX) as refused:
            answer = b"".join(iter(lambda: refused.recv(65_536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nRetry-After: 1" in head
        error = json.loads(body)["error"]
        assert (error["code"], error["detail"]) == ("throttled", {"limit": "max_connections", "max": LIMIT // 2})
        others[0].close()
        while metric(client, "topics_connections") > LIMIT // 2 - 1:
            pass  # the server has yet to see that it left
        assert server.client().get("/v0/health").status == 200


def test_the_soft_limit_is_raised_at_the_start(tmp_path: Path) -> None:
    server = FewFilesAtFirst(tmp_path).ready()
    assert metric(server.client(), "topics_connections_max") > 64
    server.kill()


def test_the_setting_limits_connections_further(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections=3) as server:
        assert metric(server.client(), "topics_connections_max") == 3


def test_connections_leave_room_for_files(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert connections_within(1_000_000, 20_000, asked=True) == 20_000
        assert not caplog.records
        assert connections_within(20_000, 20_000, asked=False) == 20_000 - FILES_RESERVED - REFUSED_MAX
        assert connections_within(1_024, 20_000, asked=True) == 512
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "at most 512 connections instead of 20000" in caplog.text


@pytest.mark.parametrize(("settings", "level"), [({}, "INFO"), ({"max_connections": 30_000}, "WARNING")])
def test_fewer_connections_than_the_default_are_no_reason_to_worry(
    tmp_path: Path, settings: dict[str, int], level: str
) -> None:
    server = FewFiles(tmp_path, **settings).ready()
    (line,) = [line for line in server.lines if " connections instead of " in line]
    server.kill()
    assert line.split()[1] == level

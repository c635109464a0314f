"""What systemd is told: when the server is ready, that its loop turns, that it reloads, that it stops."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess
from topics.api.auth import authenticator_of
from topics.http.loop.systemd import ServiceManager
from topics.http.tls.certificate import tls_of
from topics.model.settings import Settings
from topics.server import Process, Server
from topics.storage.disk import Disk

Reports = Iterator[dict[str, str]]


@pytest.fixture(params=["path", "abstract"])
def reports(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    """Each report in turn, as a service manager receives it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}/notify"
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.settimeout(PATIENCE_S)
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield (dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines()) for _ in iter(int, 1))


def until(reports: Reports, name: str) -> dict[str, str]:
    return next(report for report in reports if name in report)


def test_readiness_reload_and_the_end_are_reported(tmp_path: Path, reports: Reports) -> None:
    files = Authority(tmp_path).pair()
    server = ServerProcess(tmp_path / "data", tls_cert=files.certificate, tls_key=files.key)
    try:
        assert until(reports, "READY")["READY"] == "1"
        assert "ready: " in server.ready().log
        server.process.send_signal(signal.SIGHUP)
        assert int(until(reports, "RELOADING")["MONOTONIC_USEC"]) > 0
        assert until(reports, "READY")["READY"] == "1"
        server.process.send_signal(signal.SIGTERM)
        assert until(reports, "STOPPING")["STOPPING"] == "1"
    finally:
        server.kill()


def test_the_watchdog_is_fed_again_and_again(tmp_path: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    server = ServerProcess(tmp_path / "data")
    try:
        until(reports, "READY")
        assert all(until(reports, "WATCHDOG")["WATCHDOG"] == "1" for _ in range(3))
    finally:
        server.kill()


def test_the_watchdog_of_another_process_is_not_fed(
    tmp_path: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    server = ServerProcess(tmp_path / "data")
    try:
        until(reports, "READY")
        server.settle()
        server.process.send_signal(signal.SIGTERM)
        # every report up to the end: none of them feeds
        assert all("WATCHDOG" not in report or "STOPPING" in report for report in before_the_end(reports))
    finally:
        server.kill()


def before_the_end(reports: Reports) -> Reports:
    for report in reports:
        yield report
        if "STOPPING" in report:
            return


class Reported(ServiceManager):
    """Notes what it is told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, {})
        self.lines: list[str] = []

    def _tell(self, *lines: str) -> None:
        self.lines += lines


def test_a_reload_while_the_log_is_replayed_is_not_taken_for_the_end_of_the_start(tmp_path: Path) -> None:
    told = asyncio.run(told_with_two_reloads(tmp_path))
    assert [line for line in told if line.endswith("=1")] == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


async def told_with_two_reloads(tmp_path: Path) -> list[str]:
    """One before the start is over, one after it."""
    files = Authority(tmp_path).pair()
    settings = Settings(data_dir=str(tmp_path / "data"), port=0, tls_cert=files.certificate, tls_key=files.key)
    loop = asyncio.get_running_loop()
    manager = Reported(loop)
    server = Server(settings, authenticator_of(settings), loop, Disk(), process=Process(manager, tls_of(settings)))
    server.reload()
    await server.listen()
    try:
        assert await server.open()
        server.start()
        server.reload()
    finally:
        server.stop()
        await server.stopped()
        await server.close()
    return manager.lines

"""The elastic throttle against a live server: a loop that is made to lag sheds what matters least."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving import ServerProcess, serving


@contextmanager
def lagging(server: ServerProcess) -> Iterator[None]:
    """Stop the process most of the time, so that its timers come late."""
    over = threading.Event()

    def stutter() -> None:
        while not over.is_set():
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            server.process.send_signal(signal.SIGCONT)
            time.sleep(0.03)

    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_under_pressure_low_priority_is_shed_first_and_opting_out_waits(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/low", {"priority": -1000})
        client.put("/v0/topics/high", {"priority": 1000})
        with lagging(server):
            deadline_s = time.monotonic() + 30
            while (shed := client.append("low", 1)).status == 200:
                assert time.monotonic() < deadline_s, "nothing was shed"
            assert (shed.status, shed.code) == (429, "throttled")
            assert shed.detail["retry_after_ms"] > 0
            assert int(shed.headers["retry-after"]) >= 1
            assert client.append("high", 1).status == 200
            assert client.post("/v0/topics/low/diff", {}).status in (200, 429)
            assert client.get("/v0/topics/low").status == 200, "looking is never shed"
            waited: list[float] = []
            other = server.client()
            thread = threading.Thread(
                target=lambda: waited.append(
                    other.append("low", 2, disable_backpressure=True).json["performance"].get("throttle_wait_ms", 0)
                )
            )
            thread.start()
        thread.join(timeout=30)
        assert waited[0] > 0
        deadline_s = time.monotonic() + 30
        while client.append("low", 3).status != 200:
            assert time.monotonic() < deadline_s, "pressure never fell"


def test_a_calm_server_sheds_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/low", {"priority": -1000})
        for _ in range(50):
            reply = client.append("low", 1, disable_backpressure=True)
            assert reply.status == 200
            assert "throttle_wait_ms" not in reply.json["performance"]

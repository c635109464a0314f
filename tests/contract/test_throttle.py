"""The elastic throttle against a live server: a loop that is made to lag sheds what matters least."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving import START_S_MAX, ServerProcess, serving


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
            deadline_s = time.monotonic() + START_S_MAX
            while (shed := client.append("low", 1)).status == 200:
                assert time.monotonic() < deadline_s, "nothing was shed"
            assert (shed.status, shed.code) == (429, "throttled")
            assert shed.detail["retry_after_ms"] > 0
            assert int(shed.headers["retry-after"]) >= 1
            assert client.append("high", 1).status == 200
            assert client.post("/v0/topics/low/diff", {}).status in (200, 429)
            assert client.get("/v0/topics/low").status == 200, "looking is never shed"
        waited_ms = 0.0
        while not waited_ms:
            assert time.monotonic() < deadline_s, "nothing waited"
            other = server.client()
            with lagging(server):
                while client.append("low", 1).status != 429:
                    pass
                other.begin("POST", "/v0/topics/low", {"records": [{"data": 2}], "disable_backpressure": True})
                server.settle()
            # Pressure may have fallen for the moment in which it came.
            waited_ms = other.end().json["performance"].get("throttle_wait_ms", 0)
        deadline_s = time.monotonic() + START_S_MAX
        while client.append("low", 3).status != 200:
            assert time.monotonic() < deadline_s, "pressure never fell"


def test_a_calm_server_sheds_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/low", {"priority": -1000})
        in_a_row = 0
        deadline_s = time.monotonic() + START_S_MAX
        # A busy machine may make it lag now and then; that passes.
        while in_a_row < 50:
            assert time.monotonic() < deadline_s, "it sheds for no reason"
            reply = client.append("low", 1, disable_backpressure=True)
            assert reply.status == 200
            in_a_row = 0 if "throttle_wait_ms" in reply.json["performance"] else in_a_row + 1

"""The server goes away and comes back under a working app: nothing is lost, and the app needs no code for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.serving import ServerProcess, free_port
from tests.workers.rig import empty, eventually, running, wait
from topics.client import Client
from topics.workers import App, Job

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_restart_in_the_middle_loses_no_job(tmp_path: Path, how: str) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port=port).ready()
    app, seen = App(f"http://127.0.0.1:{port}"), Counter[int]()

    @app.worker("q", concurrency=8)
    def handle(job: Job) -> None:
        time.sleep(0.002)
        seen[job.data] += 1

    with Client(f"http://127.0.0.1:{port}") as client:
        client.create("q", type="queue")
        client.append_many("q", list(range(500)))
        try:
            with running(app):
                eventually(lambda: len(seen) > 100)
                getattr(server, how)()
                server = ServerProcess(tmp_path, port=port).ready()
                empty(client, "q")
        finally:
            server.kill()
    assert set(seen) == set(range(500))
    assert sum(seen.values()) < 500 + 3 * 8, "only what was out when the server went away may be done twice"


def test_an_ack_waits_for_the_server_while_a_durable_lease_lives(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port=port).ready()
    app, deliveries = App(f"http://127.0.0.1:{port}"), list[int]()
    begun, may_end = threading.Event(), threading.Event()

    @app.worker("q")
    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        begun.set()
        wait(may_end)

    with Client(f"http://127.0.0.1:{port}") as client:
        client.create("q", type="queue", leases_durable=True)
        client.append("q", 1)
        try:
            with running(app):
                wait(begun)
                server.kill()
                may_end.set()
                server = ServerProcess(tmp_path, port=port).ready()
                empty(client, "q")
        finally:
            server.kill()
    assert deliveries == [1], "the lease was still there, so was the job's only delivery"


def test_an_app_goes_on_at_the_server_that_takes_over(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    server = ServerProcess(tmp_path, port=ports[0]).ready()
    app, seen = App(urls), Counter[int]()

    @app.worker("q", concurrency=8)
    def handle(job: Job) -> None:
        seen[job.data] += 1

    with Client(urls) as client:
        client.create("q", type="queue")
        try:
            with running(app):
                for number in range(1, 5):
                    client.append_many("q", list(range(100 * (number - 1), 100 * number)))
                    eventually(lambda most=100 * number: len(seen) > most - 50)
                    server.kill()
                    server = ServerProcess(tmp_path, port=ports[number % 2]).ready()
                empty(client, "q")
        finally:
            server.kill()
    assert set(seen) == set(range(400))


def test_an_app_may_be_started_before_its_server(tmp_path: Path) -> None:
    port = free_port()
    app, done = App(f"http://127.0.0.1:{port}"), threading.Event()
    app.worker("q")(lambda job: done.set())
    with running(app):
        server = ServerProcess(tmp_path, port=port).ready()
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                client.create("q", type="queue")
                client.append("q", 1)
                wait(done)
                empty(client, "q")
        finally:
            app.stop()
            server.kill()

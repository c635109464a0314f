"""An upgrade in miniature: a server is stopped and started again under load, and its clients do not notice."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.rig import eventually
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, free_port
from topics.client import Client, Record
from topics.workers import App, Job

RESTARTS = 4
# Acknowledged by each writer between two restarts: enough that all of them are in the middle of something.
BETWEEN = 25

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Load:
    """Threads that use a server until they are told to stop, and what they were told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stopping = threading.Event()
        self.acked: dict[str, list[int]] = {}
        self.seen: list[int] = []
        self.done: list[int] = []
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[Client], None]) -> None:
        def run() -> None:
            try:
                with Client(self.url, retry_s_max=PATIENCE_S) as client:
                    work(client)
            except BaseException as error:  # noqa: BLE001 - a thread's errors are the test's
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def write(self, writer: str, topic: str) -> Callable[[Client], None]:
        """One record after the other: the next when the last is acknowledged."""
        acked = self.acked[writer] = []

        def work(client: Client) -> None:
            while not self.stopping.is_set():
                number = len(acked)
                client.append(topic, {"writer": writer, "number": number})
                acked.append(number)

        return work

    def follow(self, client: Client) -> None:
        wanted = "last"
        for item in client.read("log", follow=True):
            assert isinstance(item, Record)
            self.seen.append(item.seq)
            if item.data == wanted:
                return

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_no_client_notices_a_restart_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path / "data", port=port).ready()
    load = Load(f"http://127.0.0.1:{port}")
    app = App(load.url)

    @app.worker("jobs", concurrency=4)
    async def work(job: Job) -> None:
        load.done.append(job.seq)

    worker = threading.Thread(target=lambda: asyncio.run(app.serve()))
    try:
        with Client(load.url) as client:
            client.create("log", durability="disk")
            client.create("synced", durability="fsync")
            client.create("jobs", type="queue", leases_durable=True)
        worker.start()
        for writer, topic in (("a", "log"), ("b", "log"), ("c", "synced"), ("d", "jobs")):
            load.start(load.write(writer, topic))
        load.start(load.follow)
        for _ in range(RESTARTS):
            goal = {writer: len(acked) + BETWEEN for writer, acked in load.acked.items()}
            eventually(lambda goal=goal: load.errors or all(len(load.acked[name]) >= goal[name] for name in goal))
            assert load.errors == []
            assert server.terminate() == 0
            server = ServerProcess(tmp_path / "data", port=port)
        server.ready()
        load.stopping.set()
        check(load)
    finally:
        load.stopping.set()
        app.stop()
        worker.join(PATIENCE_S)
        server.kill()


def check(load: Load) -> None:
    with Client(load.url, retry_s_max=PATIENCE_S) as client:
        last = client.append("log", "last").first_seq
        load.join()
        assert load.errors == []
        for topic, writers in (("log", "ab"), ("synced", "c")):
            records = [item.data for item in client.read(topic) if isinstance(item, Record) and item.data != "last"]
            for writer in writers:
                found = [record["number"] for record in records if record["writer"] == writer]
                assert found == load.acked[writer], f"each once, in order: {writer}"
        assert load.seen == list(range(1, last + 1)), "the reader has seen every record once"
        jobs = len(load.acked["d"])
        eventually(lambda: client.state("jobs").count == 0)
        assert set(load.done) == set(range(1, jobs + 1))

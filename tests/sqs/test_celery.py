"""Celery, unmodified, by kombu: tasks, retries, countdowns, late acks, and a worker that is killed in mid-job."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving
from tests.sqs.clients import NEW, environ, need
from topics.api.auth import key_id_of, sqs_secret_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "the-key-of-celery"
# Long enough for a worker that starts on a busy machine, short enough to wait for.
VISIBILITY_S = 10


class Project:
    """The project in tests/sqs/celery_app.py, with a server as its broker."""

    def __init__(self, server: ServerProcess, directory: Path) -> None:
        self.server = server
        self.client: Client = server.client(KEY)
        self._python = need(NEW) / "bin" / "python"
        self._log = directory / "workers.log"
        self._workers: list[subprocess.Popen[bytes]] = []
        self._seen = 0

    def _environ(self, **more: str) -> dict[str, str]:
        return environ(
            self.server.port,
            BROKER_URL=f"sqs://{key_id_of(KEY)}:{sqs_secret_of(KEY)}@127.0.0.1:{self.server.port}",
            VISIBILITY_S=str(VISIBILITY_S),
            REPORT_TO=f"http://127.0.0.1:{self.server.port}/v0/topics/reports",
            REPORT_KEY=KEY,
            PYTHONPATH=str(Path(__file__).parent),
            PYTHONSAFEPATH="1",
            **more,
        )

    def start_worker(self, number: int) -> subprocess.Popen[bytes]:
        command = [self._python, "-m", "celery", "-A", "celery_app", "worker", "--concurrency=1", "--loglevel=INFO"]
        with self._log.open("ab") as log:
            worker = subprocess.Popen(
                command,
                env=self._environ(WORKER=str(number), SEND=""),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def send(self, what: str) -> None:
        module = Path(__file__).parent / "celery_app.py"
        env = self._environ(WORKER="0", SEND=what)
        subprocess.run([self._python, module], env=env, check=True, timeout=PATIENCE_S)

    def reports(self, count: int) -> list[Any]:
        """The next reports; waits for them."""
        found: list[Any] = []
        while len(found) < count:
            page = self.client.diff("reports", from_seq=self._seen, limit=count - len(found), wait_ms=30_000)
            found += [record["data"] for record in page["records"]]
            self._seen = page["next_from_seq"]
            assert all(worker.poll() is None for worker in self._workers), self._log.read_text()
        return found

    def wait_until_done(self) -> None:
        while self.client.state("celery-jobs")["count"]:
            assert all(worker.poll() is None for worker in self._workers), self._log.read_text()

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        self._workers.remove(worker)

    def close(self) -> None:
        for worker in list(self._workers):
            self.kill(worker)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    directory = tmp_path_factory.mktemp("celery")
    with serving(directory / "data", api_keys=KEY) as server:
        server.client(KEY).put("/v0/topics/reports", {})
        project = Project(server, directory)
        yield project
        project.close()


def test_tasks_run_are_retried_and_wait_for_their_countdown(project: Project) -> None:
    worker = project.start_worker(2)
    project.send("send")
    reports = project.reports(6)
    sent_ms = reports[0]["at_ms"]
    assert sorted(seen["retries"] for seen in reports if seen["task"] == "flaky") == [0, 1, 2]
    added = {seen["result"]: seen["at_ms"] for seen in reports if seen["task"] == "add"}
    assert set(added) == {5, 50}
    assert added[50] - sent_ms >= 2_000
    project.wait_until_done()
    project.kill(worker)


def test_a_task_whose_worker_is_killed_is_run_by_another(project: Project) -> None:
    first = project.start_worker(1)
    project.send("long")
    assert [seen["worker"] for seen in project.reports(1)] == ["1"]
    project.kill(first)
    # On a busy machine its lease may be over already.
    queue = project.client.state("celery-jobs")["queue"]
    assert queue["in_flight"] + queue["ready"] == 1
    project.start_worker(2)
    assert [seen["worker"] for seen in project.reports(1)] == ["2"]
    project.wait_until_done()

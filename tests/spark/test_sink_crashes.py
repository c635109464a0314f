"""Tasks, drivers and the server are killed in mid-batch; afterwards source and destination are the same.

Executors are killed in test_cluster.py.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import ServerProcess, free_port
from tests.spark.bounds import needs_bounds
from tests.spark.running import Job, contents, fill, running
from topics.client import Client, TopicsError

# Without bounds all records are one batch, and none comes before it is there.
pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800), needs_bounds]

ROUNDS = int(os.environ.get("TOPICS_TORTURE", "1"))
RECORDS = 400
WAIT_S_MAX = 360.0


def until(what: Callable[[], object], job: Job) -> None:
    """Wait for the moment to strike; no test depends on when it comes."""
    give_up_s = time.monotonic() + WAIT_S_MAX
    while not what():
        assert time.monotonic() < give_up_s, job.log.read_text(errors="replace")[-4000:]
        if job.process.poll() is not None:
            return
        time.sleep(0.01)


def head(client: Client, topic: str) -> int:
    try:
        return client.state(topic).head_seq
    except TopicsError:
        return 0


def staged(client: Client) -> bool:
    """Whether a batch has begun and is not committed yet."""
    try:
        return any(app.stages for app in client.txns())
    except TopicsError:
        return False


def strike(pids: list[int]) -> int:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(pids)


def check(client: Client) -> None:
    expected = contents(client, "in")
    assert [number for number, _ in expected] == list(range(RECORDS))
    assert contents(client, "out") == expected, "nothing lost, nothing twice"


def test_drivers_and_servers_killed_in_mid_batch_lose_and_double_nothing(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "job.log"
    server = ServerProcess(tmp_path / "data", port=port).ready()
    arguments = ("stream", "local[2]", f"http://127.0.0.1:{port}", "in", "out", str(tmp_path / "checkpoint"))
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            fill(client, "in", RECORDS)
            for _ in range(2 * ROUNDS):
                before = head(client, "out")
                with running(log, *arguments) as job:
                    until(lambda before=before: head(client, "out") > before and staged(client), job)
            with running(log, *arguments) as job:
                until(lambda: staged(client) or head(client, "out") == RECORDS, job)
                server.kill()
                server = ServerProcess(tmp_path / "data", port=port).ready()
                job.process.wait(WAIT_S_MAX)
            with running(log, *arguments) as job:
                job.succeed()
            check(client)
    finally:
        server.kill()


def test_tasks_killed_in_mid_batch_are_run_again_and_add_nothing(tmp_path: Path) -> None:
    """Spark repeats a task whose Python process is lost; too many of them end the run, and the next one continues."""
    server = ServerProcess(tmp_path / "data").ready()
    url, log, killed = f"http://127.0.0.1:{server.port}", tmp_path / "job.log", 0
    arguments = ("stream", "local[2,4]", url, "in", "out", str(tmp_path / "checkpoint"))
    try:
        with Client(url) as client:
            fill(client, "in", RECORDS)
            with running(log, *arguments) as job:
                for _ in range(3 * ROUNDS):
                    before = head(client, "out")
                    until(lambda before=before: head(client, "out") > before and job.python_workers(), job)
                    killed += strike(job.python_workers())
                job.process.wait(WAIT_S_MAX)
            assert killed, "no task was met"
            with running(log, *arguments) as job:
                job.succeed()
            check(client)
    finally:
        server.kill()

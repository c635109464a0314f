"""Stopping: no more claims, time for what runs, the rest given back, exit code 0; a second signal ends it at once."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.rig import WAIT_S_MAX, counters, running
from topics.client import Client
from topics.workers import App, Job

ROOT = Path(__file__).parent.parent.parent
KINDS = ["function", "coroutine"]


class Process:
    def __init__(self, url: str, queue: str, kind: str, grace_s: float) -> None:
        command = [sys.executable, "-m", "tests.workers.app_process", url, queue, kind, str(grace_s)]
        self.popen = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def lines(self, count: int) -> list[str]:
        assert self.popen.stdout is not None
        return [self.popen.stdout.readline().strip() for _ in range(count)]

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait_for_log(self, word: str) -> None:
        assert self.popen.stderr is not None
        while word not in (line := self.popen.stderr.readline()):
            assert line, f"it ended without a word of {word}"

    def end(self) -> tuple[int, list[str], str]:
        """Exit code, the lines that were left, the log."""
        out, errors = self.popen.communicate(timeout=WAIT_S_MAX)
        return self.popen.returncode, [line.strip() for line in out.splitlines()], errors


@contextlib.contextmanager
def process(url: str, queue: str, kind: str, grace_s: float) -> Iterator[Process]:
    one = Process(url, queue, kind, grace_s)
    try:
        assert one.lines(1) == ["working"]
        yield one
    finally:
        one.popen.kill()
        one.popen.communicate()


@pytest.mark.parametrize(("kind", "number"), [("function", signal.SIGTERM), ("coroutine", signal.SIGINT)])
def test_a_signal_lets_handlers_finish_and_claims_no_more(
    url: str, client: Client, queue: str, tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    go = tmp_path / "go"
    client.append_many(queue, [str(go)] * 4)
    with process(url, queue, kind, grace_s=WAIT_S_MAX) as worker:
        assert sorted(worker.lines(4)) == [f"begin {seq}" for seq in (1, 2, 3, 4)]
        worker.signal(number)
        worker.wait_for_log("stopping")
        client.append(queue, str(go))
        go.touch()
        code, lines, errors = worker.end()
    assert (code, lines[-1]) == (0, "left"), errors
    assert sorted(lines[:-1]) == [f"end {seq}" for seq in (1, 2, 3, 4)]
    assert [record.seq for record in client.diff(queue).records] == [5], "those are done, the new one is untouched"
    assert (counters(client, queue).ready, counters(client, queue).in_flight) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_done_within_the_grace_goes_back_to_the_queue(
    url: str, client: Client, queue: str, tmp_path: Path, kind: str
) -> None:
    client.append_many(queue, [str(tmp_path), str(tmp_path / "never")])
    with process(url, queue, kind, grace_s=0.1) as worker:
        assert sorted(worker.lines(3)) == ["begin 1", "begin 2", "end 1"]
        worker.signal(signal.SIGTERM)
        code, lines, errors = worker.end()
    assert (code, lines) == (0, ["left"]), errors
    assert (counters(client, queue).ready, counters(client, queue).in_flight) == (1, 0)
    again = client.claim(queue, max=5)
    assert [(job.seq, job.deliveries) for job in again] == [(2, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_signal_ends_the_process_at_once(
    url: str, client: Client, queue: str, tmp_path: Path, kind: str
) -> None:
    client.append(queue, str(tmp_path / "never"))
    with process(url, queue, kind, grace_s=10 * WAIT_S_MAX) as worker:
        worker.lines(1)
        worker.signal(signal.SIGTERM)
        worker.wait_for_log("stopping")
        worker.signal(signal.SIGTERM)
        code, lines, _ = worker.end()
    assert (code, lines) == (-signal.SIGTERM, [])


def test_an_idle_worker_stops_at_once(url: str, client: Client, queue: str) -> None:
    app = App(url)
    app.worker(queue, wait_ms=30_000)(lambda job: None)
    with running(app) as one:
        started_s = time.monotonic()
        one.stop()
        one.end()
    assert time.monotonic() - started_s < 25, "it does not wait for its claim to come back"


def test_stop_may_be_called_by_a_handler(url: str, client: Client, queue: str) -> None:
    app = App(url)

    @app.worker(queue)
    def handle(job: Job) -> None:
        app.stop()

    client.append_many(queue, [1, 2, 3])
    with running(app) as one:
        one.end()
    assert client.state(queue).count < 3
    assert counters(client, queue).in_flight == 0


def test_jobs_granted_to_a_claim_that_was_cut_off_are_given_back(url: str, client: Client, queue: str) -> None:
    app = App(url)
    app.worker(queue)(lambda job: None)
    client.append_many(queue, [1, 2])
    # The answer of this claim, made in the name of the app, never reached it.
    assert len(client.claim(queue, node=app.node, max=2, lease_ms=600_000)) == 2
    with running(app) as one:
        one.stop()
        one.end()
    assert (counters(client, queue).ready, counters(client, queue).in_flight) == (2, 0)

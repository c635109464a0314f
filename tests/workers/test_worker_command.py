"""`topics worker`: an app from its module, its health endpoint, a drain with a limit, and a start after each change."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import run
from tests.patience import PATIENCE_S
from tests.serving import TOPICS
from tests.workers.rig import counters, eventually
from topics.client import Client
from topics.workers import App
from topics.workers.health import address_of

APP = """
import os, time
from topics.workers import App, Job

app = App()
other = 7

@app.worker("{queue}", concurrency=2)
def handle(job: Job) -> None:
    os.write(1, b"{word} %d\\n" % job.seq)
    while job.data == "wait":
        time.sleep(0.01)
"""


class Started:
    """The command, and what it writes."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        environ = {**os.environ, "TOPICS_URL": url}
        self.popen = subprocess.Popen(
            [TOPICS, "worker", *arguments],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def wait_for_log(self, pattern: str) -> re.Match[str]:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended without {pattern}")

    def end(self) -> tuple[int, str]:
        _, errors = self.popen.communicate(timeout=PATIENCE_S)
        return self.popen.returncode, errors


@contextlib.contextmanager
def started(folder: Path, url: str, *arguments: str) -> Iterator[Started]:
    one = Started(folder, url, *arguments)
    try:
        yield one
    finally:
        if one.popen.poll() is None:
            one.popen.send_signal(signal.SIGTERM)
            one.popen.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.popen.communicate(timeout=PATIENCE_S)


def write_app(folder: Path, queue: str, word: str = "job") -> None:
    (folder / "jobs.py").write_text(APP.format(queue=queue, word=word))


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_an_app_is_run_watched_and_drained(url: str, client: Client, queue: str, tmp_path: Path) -> None:
    write_app(tmp_path, queue)
    client.append(queue, 1)
    with started(tmp_path, url, "jobs:app", "--health", "0", "--grace", "50ms") as worker:
        port = int(worker.wait_for_log(r"health at port (\d+)")[1])
        assert worker.line() == "job 1"
        eventually(lambda: ask(port, "/readyz") == (200, "ok\n"))
        assert ask(port, "/healthz") == (200, "ok\n")
        assert ask(port, "/healthz", "HEAD") == (200, "")
        assert ask(port, "/healthz", "POST")[0] == 405
        assert ask(port, "/nowhere")[0] == 404
        eventually(lambda: 'topics_worker_jobs_total{outcome="done"} 1\n' in ask(port, "/metrics")[1])
        client.append(queue, "wait")
        assert worker.line() == "job 2"
        shown = ask(port, "/metrics")[1]
        assert f'topics_worker_running{{queue="{queue}"}} 1\n' in shown
        assert f'topics_worker_slots{{queue="{queue}"}} 2\n' in shown
        worker.popen.send_signal(signal.SIGTERM)
        worker.wait_for_log("1 unfinished jobs go back to the queue")
        eventually(lambda: counters(client, queue).ready == 1)
        # The handler cannot be interrupted: a second signal ends the process.
        worker.popen.send_signal(signal.SIGTERM)
        worker.end()


def test_it_is_not_ready_without_its_queue(url: str, client: Client, queue: str, tmp_path: Path) -> None:
    write_app(tmp_path, f"{queue}-late")
    with started(tmp_path, url, "jobs:app", "--health", "127.0.0.1:0") as worker:
        port = int(worker.wait_for_log(r"health at port (\d+)")[1])
        assert ask(port, "/readyz") == (503, f"not reached: {queue}-late\n")
        client.create(f"{queue}-late", type="queue")
        client.append(f"{queue}-late", 1)
        eventually(lambda: ask(port, "/readyz") == (200, "ok\n"))
        worker.popen.send_signal(signal.SIGINT)
        code, log = worker.end()
        assert (code, "1 done, 0 retried, 0 dead, 0 rejected" in log) == (0, True)


def test_a_change_of_the_code_starts_it_again(url: str, client: Client, queue: str, tmp_path: Path) -> None:
    write_app(tmp_path, queue, "before")
    with started(tmp_path, url, "jobs:app", "--reload") as worker:
        client.append(queue, 1)
        assert worker.line() == "before 1"
        (tmp_path / "jobs.py").write_text("def broken(")
        worker.wait_for_log("jobs.py has changed")
        worker.wait_for_log("SyntaxError")
        write_app(tmp_path, queue, "after")
        client.append(queue, 2)
        assert worker.line() == "after 2"
        worker.popen.send_signal(signal.SIGTERM)
        assert worker.end()[0] == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere:app", "there is no module nowhere"),
        ("jobs:other", "jobs:other is not an app of topics.workers; it has jobs:app"),
        ("jobs:absent", "it has jobs:app"),
        (":app", "is not MODULE:APP"),
    ],
)
def test_what_cannot_be_run_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    write_app(tmp_path, "q")
    monkeypatch.chdir(tmp_path)
    done = run(None, "worker", target, TOPICS_URL="http://127.0.0.1:1")
    assert done.code == 2
    assert said in done.err


def test_an_error_of_the_module_is_shown(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "from topics.workers import App\napp = App()\napp.worker('a', concurrency=5000)\n"
    )
    with started(tmp_path, "http://127.0.0.1:1", "jobs:app") as worker:
        code, log = worker.end()
    assert code != 0
    assert "concurrency must be" in log


@pytest.mark.parametrize("wrong", ["", "x", "host:", "1:2:3", "99999", "-1"])
def test_a_wrong_address_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="health must be a port"):
        App(health=wrong)
    assert address_of("[::1]:80") == ("::1", 80)

"""The server is killed again and again under a producer, a watcher and workers: every record is accounted for.

    Client.producer ─▶ log ──▶ Client.watch          each acknowledged record once, in order, at the seq it was given
                   └─▶ jobs ─▶ App, two processes    each job at least once, none after its ack was confirmed

None of them has any code for what happens here. One worker process is killed as well.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.crash.job_worker import CONCURRENCY
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, free_port
from topics.client import Client, Tombstone
from topics.client.live import TopicDeleted, TopicFailed

KILLS = 6 * int(os.environ.get("TOPICS_TORTURE", "1"))
WORKERS = 2
# Between two kills.
RECORDS_MIN = 20
ROOT = Path(__file__).parent.parent.parent
WAIT_S_MAX = PATIENCE_S
# However long a server takes to come back.
RETRY_S_MAX = 600.0


class Making:
    """One number after the other, to the log and as a job; keeps the seqs that were acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.begun = 0
        self.log_seqs: list[int] = []
        self.job_seqs: list[int] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._make()
        except BaseException as error:  # noqa: BLE001 - raised again in `end`
            self.error = error

    def _make(self) -> None:
        # Down for longer than up, and the machine is busy: time is the limit, not the number of attempts.
        with (
            Client(self._url, retries_max=1_000_000, retry_s_max=RETRY_S_MAX) as client,
            client.producer("log") as log,
            client.producer("jobs") as jobs,
        ):
            tickets = []
            while not self._over.is_set():
                tickets.append((log.append(len(tickets)), jobs.append(len(tickets))))
                self.begun = len(tickets)
                time.sleep(0.002)
            self.log_seqs = [ticket.result(WAIT_S_MAX) for ticket, _ in tickets]
            self.job_seqs = [ticket.result(WAIT_S_MAX) for _, ticket in tickets]

    def stop(self) -> None:
        self._over.set()

    def end(self) -> None:
        self.stop()
        self._thread.join(2 * WAIT_S_MAX)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class Watching:
    """What came over the stream, in the order it came."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)
        self._watch = self._client.watch(["log"])
        self.came: list[tuple[int, int]] = []
        self.strange: list[object] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        return self._watch.connections

    def _run(self) -> None:
        try:
            for event in self._watch:
                if isinstance(event, Tombstone | TopicDeleted | TopicFailed):
                    self.strange.append(event)
                else:
                    self.came += [(record.seq, record.data) for record in event.records]
        except Exception as error:  # noqa: BLE001 - part of the account
            self.strange.append(error)

    def end(self) -> None:
        self._watch.close()
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive()
        self._client.close()


class Fleet:
    """Worker processes that write into one pipe, and the lines in it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._read_end, self._write_end = os.pipe()
        self.processes = [self._started() for _ in range(WORKERS)]
        self.begun: Counter[int] = Counter()
        self.numbers: dict[int, int] = {}
        self.acked: set[int] = set()
        self.after_ack: list[int] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.crash.job_worker", self._url]
        return subprocess.Popen(command, cwd=ROOT, stdout=self._write_end)

    def _read(self) -> None:
        with os.fdopen(self._read_end) as lines:
            for line in lines:
                word, *numbers = line.split()
                if word == "acked":
                    self.acked.update(map(int, numbers))
                    continue
                seq, number = map(int, numbers)
                self.begun[seq] += 1
                self.numbers[seq] = number
                if seq in self.acked:
                    self.after_ack.append(seq)

    def replace_one(self) -> None:
        """One dies without a word, another takes its place."""
        victim = self.processes.pop(0)
        victim.kill()
        victim.wait()
        self.processes.append(self._started())

    def end(self) -> list[int]:
        """Exit codes."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(WAIT_S_MAX) for process in self.processes]
        os.close(self._write_end)
        self._thread.join(WAIT_S_MAX)
        return codes

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def eventually(condition: Callable[[], bool], what: Callable[[], object], done: Callable[[], int] = int) -> None:
    """Wait for a condition; as long as more and more is `done`, a slow machine has all the time it needs."""
    done_before, give_up_s = -1, 0.0
    while not condition():
        if (done_now := done()) != done_before:
            done_before, give_up_s = done_now, time.monotonic() + WAIT_S_MAX
        assert time.monotonic() < give_up_s, what()
        time.sleep(0.02)


@pytest.mark.crash
@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_every_record_is_accounted_for(tmp_path: Path, durability: Literal["disk", "fsync"]) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port=port).ready()
    url = f"http://127.0.0.1:{port}"
    client = Client(url)
    client.create("log", durability=durability)
    client.create("jobs", type="queue", durability=durability)
    making, watching, fleet = Making(url), Watching(url), Fleet(url)
    chance = random.Random(f"accounting {durability}")
    try:
        for number in range(KILLS):
            # All of them have found the server before it goes again, however long they paused.
            seen, acked, begun = len(watching.came), len(fleet.acked), making.begun + RECORDS_MIN
            eventually(
                lambda seen=seen, acked=acked, begun=begun: (
                    len(watching.came) > seen and len(fleet.acked) > acked and making.begun > begun
                ),
                lambda: (watching.strange, making.error),
            )
            # The moment is not to depend on what was just seen; nothing is decided by it.
            time.sleep(chance.uniform(0.0, 0.5))
            server.kill()
            server = ServerProcess(tmp_path, port=port).ready()
            if number == KILLS // 2:
                fleet.replace_one()
        making.end()
        made = len(making.log_seqs)
        eventually(lambda: len(watching.came) >= made, lambda: (len(watching.came), made), lambda: len(watching.came))
        eventually(
            lambda: client.state("jobs").count == 0, lambda: client.state("jobs"), lambda: sum(fleet.begun.values())
        )
        watching.end()
        codes = fleet.end()
        kept = [(record.seq, record.data) for record in client.read("log") if not isinstance(record, Tombstone)]
    finally:
        fleet.kill()
        making.stop()
        client.close()
        server.kill()

    # Acknowledged records exist once, in order, with the seqs that the producer got; and no others.
    assert made > RECORDS_MIN * KILLS, "the producer did produce"
    assert kept == list(zip(making.log_seqs, range(made), strict=True))
    # The watcher saw exactly that, over as many streams as there were servers.
    assert watching.strange == []
    assert watching.came == kept
    assert watching.connections > KILLS
    # Every job was begun, those that ended were acked, and an acked one never came back.
    assert fleet.numbers == {seq: number for number, seq in enumerate(making.job_seqs)}
    assert fleet.after_ack == []
    # Twice only jobs that were leased when a worker died: those that ran or waited to be acked.
    twice = sum(fleet.begun.values()) - len(fleet.begun)
    assert twice <= (KILLS + 1) * WORKERS * 3 * CONCURRENCY, twice
    assert codes == [0] * WORKERS, "the workers ended cleanly"

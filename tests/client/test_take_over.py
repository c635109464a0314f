"""A server is killed and another one takes over its directory at another port: its clients go on by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import Connect
from tests.client.going_on import Progress, going_on
from tests.launching import Launched
from tests.serving import ServerProcess, free_port
from topics.client import Client, ConnectionFailed, TopicsError

pytestmark = pytest.mark.slow
TAKE_OVERS = 4
BETWEEN = 50


class Pair:
    """Two addresses, and one server at a time."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        self.server = self._started()

    def _started(self) -> ServerProcess:
        return ServerProcess(self._data_dir, port=self._ports[0]).ready()

    def take_over(self) -> None:
        self.server.kill()
        self._ports.reverse()
        self.server = self._started()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    try:
        yield pair
    finally:
        pair.server.kill()


def test_nothing_is_lost_and_nothing_comes_twice(connect: Connect, pair: Pair) -> None:
    client = connect(pair.urls)
    client.create("t")
    with client.producer("made", linger_ms=1) as producer, client.watch("t") as watch:

        def write(own: Progress, ended: threading.Event) -> None:
            while not ended.is_set():
                number = len(own.done)
                own.add((number, client.append("t", number).last_seq))

        def produce(own: Progress, ended: threading.Event) -> None:
            while not ended.is_set():
                own.add(producer.append(len(own.done)).result())

        def follow(own: Progress, ended: threading.Event) -> None:
            for event in watch:
                own.add(*(record.data for record in event.records))
                if ended.is_set():
                    return

        with going_on(write, produce) as (written, made), going_on(follow) as (seen,):
            for _ in range(TAKE_OVERS):
                for own in (written, made, seen):
                    own.wait_for(len(own.done) + BETWEEN)
                pair.take_over()
            for own in (written, made, seen):
                own.wait_for(len(own.done) + BETWEEN)
        numbers = [number for number, _ in written.done]
    assert [record.data for record in client.read("t")] == numbers, "each once, in order"
    assert [seq for _, seq in written.done] == [number + 1 for number in numbers]
    assert [record.data for record in client.read("made")] == list(range(len(made.done)))
    assert seen.done == numbers[: len(seen.done)], "each once, in order"
    assert watch.connections > TAKE_OVERS


def test_jobs_and_groups_go_on(connect: Connect, pair: Pair) -> None:
    client = connect(pair.urls)
    client.create("jobs", type="queue", leases_durable=False)
    total = BETWEEN * (TAKE_OVERS + 1)
    client.append_many("jobs", list(range(total)))
    client.append_many("log", list(range(total)))

    def work(own: Progress, ended: threading.Event) -> None:
        with client.work("jobs", "w", max=1) as stream:
            for job in stream:
                client.ack("jobs", job, "w")
                own.add(job.data)
                if len(set(own.done)) == total:
                    return

    def consume(own: Progress, ended: threading.Event) -> None:
        while len(set(own.done)) < total:
            try:
                batch = client.consume("log", "g", start="Earliest", limit=3, timeout_s=1)
                client.commit_batch("log", "g", batch)
            except (ConnectionFailed, TimeoutError):
                continue  # with a group, a batch whose reply was lost comes again later
            own.add(*(message.data for message in batch.messages))

    with going_on(work, consume) as (worked, consumed):
        for number in range(TAKE_OVERS):
            for own in (worked, consumed):
                own.wait_for(BETWEEN * number)
            pair.take_over()
        worked.wait_for(total)
        consumed.wait_for(total)
    assert set(worked.done) == set(consumed.done) == set(range(total))


def test_a_websocket_goes_on(connect: Connect, pair: Pair) -> None:
    client = connect(pair.urls)
    client.create("t")
    with client.socket() as socket:
        socket.subscribe("t", tail=True)
        found: list[int] = []
        for number in range(TAKE_OVERS * 5):
            if number % 5 == 4:
                pair.take_over()
            assert socket.publish("t", number).last_seq == number + 1
            while len(found) <= number:
                found += [record.data for record in next(socket).records]
        assert found == list(range(TAKE_OVERS * 5))


def test_a_command_that_follows_goes_on(pair: Pair) -> None:
    with Client(pair.urls) as client:
        client.append("t", 0)
        environ = {"TOPICS_URL": client.url, "PATH": os.environ["PATH"]}
        tail = Launched(["tail", "-f", "t", "-n", "1"], environ, stdout=subprocess.PIPE)
        assert tail.stdout is not None
        try:
            for number in range(TAKE_OVERS):
                assert json.loads(tail.stdout.readline())["data"] == number
                pair.take_over()
                client.append("t", number + 1)
            assert json.loads(tail.stdout.readline())["data"] == TAKE_OVERS
        finally:
            tail.kill()
            tail.communicate()


def test_with_nobody_left_the_error_comes_in_time(connect: Connect, pair: Pair) -> None:
    client = connect(pair.urls, retries_max=2)
    client.append("t", 1)
    pair.server.kill()
    with pytest.raises(TopicsError, match="cannot reach http://"):
        client.append("t", 2)

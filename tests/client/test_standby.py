"""A primary is killed, or told to stand back: clients that know its standby too go on there by themselves."""

from __future__ import annotations

import signal
import threading
from collections import Counter

import pytest

from tests.bucket.standbys import Servers, role, servers, until, until_primary, until_sees
from tests.bucket.test_lost_machine import until_shipped
from tests.client.conftest import Connect
from tests.client.going_on import Progress, going_on
from tests.serving import ServerProcess, free_port
from tests.workers.rig import empty, eventually, running
from topics.client import Client, ConnectionFailed, NotPrimary, PrimaryAlive
from topics.workers import App, Job

__all__ = ["servers"]

pytestmark = pytest.mark.slow
TAKE_OVERS = 3
BETWEEN = 20
# A server that is stopped keeps its connections: only its silence shows it.
SILENCE_S_MAX = 5.0


class Pair:
    """Two addresses: at one of them the primary, at the other one its standby."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._ports = [free_port(), free_port()]
        self._started = 0
        self.primary = self._start(self._ports[0])
        self.standby = self._start(self._ports[1], "--standby")

    @property
    def urls(self) -> list[str]:
        """The standby first: nobody begins with the right one."""
        return [f"http://127.0.0.1:{server.port}" for server in (self.standby, self.primary)]

    def _start(self, port: int, *arguments: str) -> ServerProcess:
        self._started += 1
        name = f"machine-{self._started}"
        return self._servers.start(name, *arguments, port=port, visibility_timeout_secs=1).ready()

    def kill(self) -> None:
        """The primary; a new machine at its address is the next standby."""
        port = self.primary.port
        self.primary.kill()
        self._replace(port)

    def terminate(self) -> None:
        """The same in order."""
        port = self.primary.port
        self.primary.terminate()
        self._replace(port)

    def _replace(self, port: int) -> None:
        until_primary(self.standby)
        self.primary, self.standby = self.standby, self._start(port, "--standby")

    def stop(self) -> None:
        """The primary, until the standby has taken over: it does not answer, and is not gone either."""
        self.primary.process.send_signal(signal.SIGSTOP)
        try:
            until_primary(self.standby)
        finally:
            self.primary.process.send_signal(signal.SIGCONT)
        self._swap()

    def promote(self) -> None:
        """The standby, beside a primary that is well."""
        with Client(f"http://127.0.0.1:{self.standby.port}") as client:
            client.promote(force=True)
        self._swap()

    def _swap(self) -> None:
        self.primary, self.standby = self.standby, self.primary
        client = self.standby.client()
        until(lambda: role(client) == "standby", "the old primary is a standby")


@pytest.fixture
def pair(servers: Servers) -> Pair:
    return Pair(servers)


@pytest.mark.parametrize("how", ["kill", "terminate", "stop", "promote"])
def test_what_is_replicated_is_neither_lost_nor_seen_twice(connect: Connect, pair: Pair, how: str) -> None:
    client = connect(pair.urls, timeout_s=SILENCE_S_MAX)
    client.create("t", durability="replicated")
    with client.watch("t", heartbeat_ms=1_000) as watch:

        def write(own: Progress, ended: threading.Event) -> None:
            while not ended.is_set():
                number = len(own.done)
                client.append("t", number)
                own.add(number)

        def follow(own: Progress, ended: threading.Event) -> None:
            for event in watch:
                own.add(*(record.data for record in event.records))
                if ended.is_set():
                    return

        with going_on(write) as (written,), going_on(follow) as (seen,):
            for _ in range(TAKE_OVERS):
                for own in (written, seen):
                    own.wait_for(len(own.done) + BETWEEN)
                getattr(pair, how)()
            for own in (written, seen):
                own.wait_for(len(own.done) + BETWEEN)
    assert [record.data for record in client.read("t")] == written.done, "each once, in order"
    assert seen.done == written.done[: len(seen.done)], "each once, in order"


def test_workers_go_on(pair: Pair) -> None:
    app, seen = App(pair.urls), Counter[int]()

    @app.worker("jobs", concurrency=4, lease_ms=2_000)
    def handle(job: Job) -> None:
        seen[job.data] += 1

    with Client(pair.urls) as client:
        client.create("jobs", type="queue", durability="replicated")
        with running(app):
            for number in range(1, TAKE_OVERS + 1):
                client.append_many("jobs", list(range(BETWEEN * (number - 1), BETWEEN * number)))
                eventually(lambda most=BETWEEN * number: len(seen) >= most - 5)
                pair.kill()
            empty(client, "jobs")
    assert set(seen) == set(range(BETWEEN * TAKE_OVERS))


def test_a_consumer_group_goes_on(connect: Connect, pair: Pair) -> None:
    client = connect(pair.urls)
    total = BETWEEN * (TAKE_OVERS + 1)
    client.create("log", durability="replicated")
    client.append_many("log", list(range(total)))

    def consume(own: Progress, ended: threading.Event) -> None:
        while len(set(own.done)) < total and not ended.is_set():
            try:
                batch = client.consume("log", "g", start="Earliest", limit=2, timeout_s=1)
                client.commit_batch("log", "g", batch)
            except ConnectionFailed:
                continue  # a batch whose reply was lost comes again when its lease ends
            own.add(*(message.data for message in batch.messages))

    with going_on(consume) as (consumed,):
        for number in range(1, TAKE_OVERS + 1):
            consumed.wait_for(BETWEEN * number)
            pair.kill()
        consumed.wait_for(total)
        until(lambda: set(consumed.done) == set(range(total)), "every record")


def test_a_websocket_goes_on(connect: Connect, pair: Pair) -> None:
    client = connect(pair.urls)
    client.create("t", durability="replicated")
    with client.socket() as socket:
        socket.subscribe("t", tail=True)
        found: list[int] = []
        for number in range(6):
            if number in (2, 4):
                pair.kill()
            socket.publish("t", number)
            while len(found) <= number:
                found += [record.data for record in next(socket).records]
        assert found == list(range(6))


def test_a_client_of_both_reads_what_it_has_written_and_one_of_the_standby_what_that_has(
    connect: Connect, pair: Pair
) -> None:
    standby, primary = pair.urls
    client, reader = connect(pair.urls), connect(standby, retries_max=0)
    for number in range(BETWEEN):
        client.append("t", number)
        assert client.state("t").head_seq == number + 1
    until_shipped(pair.primary.client())
    until_sees(pair.standby.client(), "t", BETWEEN)
    assert [record.data for record in reader.read("t")] == list(range(BETWEEN))
    with pytest.raises(NotPrimary) as refused:
        reader.append("t", "no")
    assert refused.value.detail["primary"] == primary
    assert client.roles() == {standby: "standby", primary: "primary"}


def test_a_standby_is_promoted_beside_its_primary_which_stands_back(connect: Connect, pair: Pair) -> None:
    standby, primary = pair.urls
    client = connect(pair.urls)
    client.create("t", durability="replicated")
    client.append("t", 1)
    with pytest.raises(PrimaryAlive, match="force"):
        client.promote()
    assert client.promote(force=True).role == "primary"
    client.append("t", 2)
    until(lambda: client.roles() == {standby: "primary", primary: "standby"}, "the old primary is a standby")
    assert [record.data for record in client.read("t")] == [1, 2]

"""Primaries that are killed, stopped and continued: one server goes on, and has every acknowledged write."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from http.client import HTTPException
from typing import Any

import pytest

from tests.bucket.standbys import Servers, role, servers, until, until_primary, until_sees
from tests.bucket.test_lost_machine import everything, health, until_shipped
from tests.launching import run as run_topics
from tests.serving import Client, Reply, ServerProcess, free_port

__all__ = ["servers"]

REPLICATED = {"durability": "replicated"}
CLASSES = ("ephemeral", "memory", "disk", "fsync", "replicated")
ROUNDS = 3 * int(os.environ.get("TOPICS_TORTURE") or 1)


class Attempt(threading.Thread):
    """An append that is sent to a server that sleeps; None if the connection ended without a reply."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(daemon=True)
        self._port, self._topic = port, topic
        self.sent = False
        self.reply: Reply | None = None
        self.start()

    def run(self) -> None:
        client = Client(self._port)
        with contextlib.closing(client), contextlib.suppress(OSError, HTTPException):
            client.begin("POST", f"/v0/topics/{self._topic}", {"records": [{"data": "never"}]})
            self.sent = True
            self.reply = client.end()


def test_after_a_sleep_longer_than_its_lease_nothing_is_acknowledged(servers: Servers) -> None:
    primary = servers.primary("a")
    client = primary.client()
    for name in CLASSES:
        client.put(f"/v0/topics/{name}", {"durability": name})
        assert client.append(name, "before").status == 200
    until_shipped(client)
    standby = servers.standby("b")
    primary.process.send_signal(signal.SIGSTOP)
    after = until_primary(standby)
    # They are in the sockets of the sleeping server, and the first thing that it reads.
    port = primary.port
    attempts = [Attempt(port, name) for name in CLASSES for _ in range(3)]
    until(lambda: all(attempt.sent for attempt in attempts), "requests in the sockets")
    primary.process.send_signal(signal.SIGCONT)
    for attempt in attempts:
        attempt.join()
        reply = attempt.reply
        assert reply is None or (reply.status, reply.code) == (503, "not_primary"), reply
    assert any(attempt.reply is not None for attempt in attempts)
    primary.wait_for_log("starting again as a standby")
    again = primary.client()
    until(lambda: role(again) == "standby", "the old primary follows")
    for name in CLASSES:
        refused = again.append(name, "never")
        assert (refused.status, refused.code) == (503, "not_primary")
    assert after.append("replicated", "after").json["last_seq"] == 2
    until_sees(again, "replicated", 2)
    assert everything(again, "replicated") == ["before", "after"]
    assert everything(again, "disk", lost=True) == ["before"]


def test_a_command_that_starts_while_there_is_no_primary_waits_for_one(servers: Servers) -> None:
    # Longer than a command tries to reach a server at all.
    primary = servers.primary("a", bucket_lease_ms=5_000)
    primary.client().append("t", 1)
    standby = servers.standby("b", bucket_lease_ms=5_000)
    primary.kill()
    env = {"PATH": "/usr/bin:/bin", "TOPICS_URL": f"http://127.0.0.1:{primary.port},http://127.0.0.1:{standby.port}"}
    done = run_topics(["append", "t", "2"], env)
    assert done.returncode == 0, done.stderr
    assert role(standby.client()) == "primary"
    standby.kill()
    assert run_topics(["append", "t", "3"], env).returncode == 5


def test_of_two_standbys_one_takes_over_and_the_other_follows_it(servers: Servers) -> None:
    primary = servers.primary("a")
    client = primary.client()
    client.put("/v0/topics/r", REPLICATED)
    client.append("r", 0)
    standbys = [servers.standby(name) for name in ("b", "c")]
    clients = [standby.client() for standby in standbys]
    primary.kill()
    until(lambda: "primary" in [role(client) for client in clients], "one of them is primary")
    first, second = sorted(clients, key=lambda client: role(client) != "primary")
    assert first.append("r", 1).json["last_seq"] == 2
    until_sees(second, "r", 2)
    assert [role(first), role(second)] == ["primary", "standby"]
    assert (health(first)["term"], health(second)["term"]) == (2, 2)
    refused = second.append("r", 2)
    assert refused.detail["primary"] == f"http://127.0.0.1:{first.port}"


def test_an_old_primary_joins_and_what_only_it_has_is_set_aside(servers: Servers) -> None:
    primary = servers.primary("a")
    primary.client().append("t", "everywhere")
    assert primary.terminate() == 0
    primary = servers.primary("a", bucket_piece_ms=60_000)
    standby = servers.standby("b")
    assert primary.client().append("d", "only here").status == 201
    primary.kill()
    after = until_primary(standby)
    last_seq = after.append("t", "later").json["last_seq"]
    again = servers.standby("a")
    aside = again.wait_for_log(r"it is set aside in (\S+),")[1]
    assert (servers.path / "a" / os.path.basename(aside) / "meta.json").exists()
    reader = again.client()
    until_sees(reader, "t", last_seq)
    assert reader.get("/v0/topics/d").status == 404
    with ServerSetAside(aside) as found:
        assert found.payloads("d") == ["only here"]
    standby.kill()
    last = until_primary(again)
    assert [record["data"] for record in last.diff("t", from_seq=last_seq - 1)["records"]] == ["later"]
    assert last.payloads("t")[0] == "everywhere"


class ServerSetAside:
    """A server on a directory that was set aside, with a bucket of its own."""

    def __init__(self, path: str) -> None:
        from pathlib import Path

        bucket = Path(path).parent.parent / "bucket-of-aside"
        bucket.mkdir()
        (Path(path) / "bucket.json").unlink()
        self._server = ServerProcess(Path(path), bucket=f"file://{bucket}", bucket_takeover="manual")

    def __enter__(self) -> Client:
        return self._server.ready().client()

    def __exit__(self, *_: object) -> None:
        self._server.kill()


def test_a_primary_that_stopped_in_order_is_filled_anew_without_a_copy(servers: Servers) -> None:
    primary = servers.primary("a")
    primary.client().append("t", 1)
    standby = servers.standby("b")
    assert primary.terminate() == 0
    after = until_primary(standby)
    assert after.append("t", 2).json["last_seq"] == 2
    again = servers.standby("a")
    again.wait_for_log("there is nothing here that the bucket does not have")
    until_sees(again.client(), "t", 2)
    assert everything(again.client(), "t") == [1, 2]
    assert not list((servers.path / "a").glob("aside-*"))


def test_a_second_primary_is_refused_while_a_standby_that_took_over_lives(servers: Servers) -> None:
    primary = servers.primary("a")
    primary.client().append("t", 1)
    standby = servers.standby("b")
    primary.kill()
    until_primary(standby)
    refused = servers.start("c")
    assert refused.exit_code() == 2
    assert "renews its lease" in refused.lines[-1]


def test_a_forced_promotion_shuts_out_a_primary_that_lives(servers: Servers) -> None:
    primary = servers.primary("a")
    client = primary.client()
    client.put("/v0/topics/r", REPLICATED)
    client.append("r", 1)
    standby = servers.standby("b", bucket_takeover="manual").client()
    until_sees(standby, "r", 1)
    promoted = standby.post("/v0/promote", {"force": True})
    assert (promoted.status, promoted.json["term"]) == (200, 2)
    assert standby.append("r", 2).json["last_seq"] == 2
    primary.wait_for_log("starting again as a standby")
    again = primary.client()
    until(lambda: role(again) == "standby", "the old primary follows")
    until_sees(again, "r", 2)
    assert everything(again, "r") == [1, 2]


def test_a_primary_without_standbys_stays_as_it_is_when_it_is_shut_out(servers: Servers) -> None:
    primary = servers.primary("a", bucket_takeover="off")
    client = primary.client()
    client.append("t", 1)
    until_shipped(client)
    standby = servers.standby("b").client()
    assert standby.post("/v0/promote", {"force": True}).status == 200
    # Its lease is renewed rarely, but the next piece is refused.
    client.append("t", 2)
    primary.wait_for_log("writes are refused until a restart")
    refused = client.append("t", 3)
    assert (refused.status, refused.code, health(client)["state"]) == (503, "read_only", "fenced")
    assert client.get("/v0/ready").status == 503


def test_jobs_and_routers_go_on_after_a_take_over(servers: Servers) -> None:
    primary = servers.primary("a")
    client = primary.client()
    for name in ("q", "source", "copy"):
        client.put(f"/v0/topics/{name}", {"type": "queue" if name == "q" else "log", **REPLICATED})
    client.put("/v0/routers/r", {"source": "source", "dest": "copy"})
    standby = servers.standby("b")
    client.append("q", *range(10))
    claimed = client.post("/v0/topics/q/claim", {"node": "w", "max": 4}).json["claimed"]
    acked = client.post("/v0/topics/q/ack", {"node": "w", "seqs": [job["$seq"] for job in claimed[:2]]})
    assert acked.status == 200, acked.body
    client.append("source", *range(10))
    primary.kill()
    after = until_primary(standby)
    after.append("source", *range(10, 20))
    until_sees(after, "copy", 20)
    assert everything(after, "copy") == list(range(20))
    done: set[Any] = set()

    def take() -> bool:
        found = after.post("/v0/topics/q/claim", {"node": "x", "max": 10}).json["claimed"]
        if found:
            after.post("/v0/topics/q/ack", {"node": "x", "seqs": [job["$seq"] for job in found]})
            done.update(job["data"] for job in found)
        return len(done) == 8

    until(take, "the jobs that were not acked")
    assert done == set(range(10)) - {job["data"] for job in claimed[:2]}


class Writer(threading.Thread):
    """Appends numbers to a `replicated` topic at whichever server is primary, each until it is acknowledged."""

    def __init__(self, name: str, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self._name, self._ports = name, ports
        self.seqs: dict[int, int] = {}
        self.over = False
        self.start()

    def run(self) -> None:
        number, at = 0, 0
        clients = [Client(port, timeout_s=20) for port in self._ports]
        while not self.over:
            body = {"records": [{"data": [self._name, number]}], "idempotency_key": f"{self._name}-{number}"}
            try:
                reply = clients[at % len(clients)].post("/v0/topics/r", body)
            except (OSError, HTTPException):
                at += 1
                continue
            if reply.status in (200, 201):
                self.seqs[number] = reply.json["first_seq"]
                number += 1
            else:
                assert reply.code in ("not_primary", "not_replicated", "not_ready", "shutting_down"), reply
                at += 1
        for client in clients:
            client.close()


@pytest.mark.timeout(3000)
def test_however_often_the_primary_is_killed_every_acknowledged_write_is_there_once(servers: Servers) -> None:
    ports = {name: free_port() for name in ("a", "b")}
    primary = servers.primary("a", port=ports["a"])
    primary.client().put("/v0/topics/r", REPLICATED)
    until_shipped(primary.client())
    standby, names = servers.standby("b", port=ports["b"]), ["a", "b"]
    writers = [Writer(f"w{number}", list(ports.values())) for number in range(3)]
    for round_number in range(ROUNDS):
        before = [len(writer.seqs) for writer in writers]
        until(lambda: all(len(w.seqs) > b + 5 for w, b in zip(writers, before, strict=True)), "writes")  # noqa: B023
        primary.kill()
        client = until_primary(standby)
        names.reverse()
        primary, standby = standby, servers.standby(names[1], port=ports[names[1]])
        assert role(client) == "primary", round_number
    for writer in writers:
        writer.over = True
    for writer in writers:
        writer.join()
    found = primary.client().diff("r", from_seq=0, limit=100_000)
    records = {tuple(record["data"]): record["$seq"] for record in found["records"]}
    assert len(records) == len(found["records"])
    for writer in writers:
        assert len(writer.seqs) > 5 * ROUNDS
        for number, seq in writer.seqs.items():
            assert records[writer._name, number] == seq

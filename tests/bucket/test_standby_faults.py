"""A primary and its standby in bad times: asleep, cut off, without room, with a wrong clock; and readers who stay."""

from __future__ import annotations

import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.bad_network import bad_network
from tests.bucket.faulty import close_newest
from tests.bucket.interrupted import Interrupted, die, nothing, refuse, shipping_of, until_shipped
from tests.bucket.load import Load, make_topics, read_all
from tests.bucket.s3_server import S3Server, s3_server
from tests.bucket.standbys import Servers, role, servers, until, until_primary, until_sees
from tests.bucket.test_lost_machine import LEASE_MS, everything, health, settings
from tests.bucket.test_lost_machine import until_shipped as until_all_shipped
from tests.engine.rig import Rig
from tests.faults import SmallDisk
from tests.live.rig import EventSource, watching
from tests.live.test_websocket import Socket, open_socket
from tests.patience import PATIENCE_S
from tests.real_run.machine import CLOCK_SOURCE, InstalledServer
from tests.serving import TOPICS, Client, ServerProcess, free_port, serving
from topics.model.errors import StorageFull
from topics.storage.bucket.shared_directory import SharedDirectory

__all__ = ["servers"]

REPLICATED = {"durability": "replicated"}
CLASSES = ("ephemeral", "memory", "disk", "fsync", "replicated")
MIB = 1 << 20


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as server:
        yield server


class Knocking(threading.Thread):
    """Appends to one topic of one server, again and again; when each was sent that was acknowledged."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(daemon=True)
        self._port, self._topic = port, topic
        self.acked_s: list[float] = []
        self.answers = 0
        self.over = False
        self.start()

    def run(self) -> None:
        while not self.over:
            with closing(Client(self._port)) as client, suppress(OSError, HTTPException):
                while not self.over:
                    sent_s = time.monotonic()
                    reply = client.append(self._topic, "x")
                    self.answers += 1
                    if reply.status in (200, 201):
                        self.acked_s.append(sent_s)

    def end(self) -> list[float]:
        self.over = True
        self.join(PATIENCE_S)
        return self.acked_s


# --- asleep ---


def stop(server: ServerProcess) -> None:
    """SIGSTOP, until it does not run any more."""
    server.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{server.process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the server has stopped")


def test_a_primary_that_wakes_up_while_its_term_is_closed_and_nobody_is_named_acknowledges_nothing(
    servers: Servers,
) -> None:
    """The other server is this test, which closes the term, and does not come to put its name anywhere."""
    # It does not take over in its turn, and its pieces come late: what they are told does not help.
    primary = servers.primary("a", bucket_takeover="manual", bucket_piece_ms=2_000)
    client = primary.client()
    for name in CLASSES[:-1]:
        assert client.put(f"/v0/topics/{name}", {"durability": name}).status == 201
    until_all_shipped(client)
    stop(primary)
    time.sleep(2.5 * LEASE_MS / 1000)
    close_newest(SharedDirectory(str(servers.bucket)), "another")
    knocking = [Knocking(primary.port, name) for name in CLASSES[:-1]]
    primary.process.send_signal(signal.SIGCONT)
    primary.wait_for_log("another has taken over with term 2")
    assert [one.end() for one in knocking] == [[]] * len(knocking)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stopped_past_its_lease_and_continued_a_primary_acknowledges_nothing_any_more(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(tmp_path)
    with bad_network(s3.port) as network:
        network.lead_to(s3.environ, monkeypatch)
        environ = {"bucket": "s3://bkt/topics", "bucket_lease_ms": 2_000}
        try:
            primary, standby = servers.primary("a", **environ), servers.standby("b", **environ)
            for name in CLASSES:
                primary.client().put(f"/v0/topics/{name}", {"durability": name})
            for _ in range(3):
                knocking = [Knocking(primary.port, name) for name in CLASSES]
                until(lambda: all(one.acked_s for one in knocking), "writes")  # noqa: B023
                network.share = 0.1
                stop(primary)
                stopped_s = time.monotonic()
                after = until_primary(standby)
                network.share = 0.0
                primary.process.send_signal(signal.SIGCONT)
                again = primary.client()
                until(lambda: role(again) == "standby", "the old primary follows")  # noqa: B023
                for one in knocking:
                    # What was read before the signal may be acknowledged.
                    assert [sent_s for sent_s in one.end() if sent_s > stopped_s] == []
                found = read_all(after, "replicated")
                assert not found.gaps
                assert len(found.values) >= len(knocking[-1].acked_s)
                primary, standby = standby, primary
        finally:
            servers.end()


# --- cut off ---


class Later(threading.Thread):
    """A keyed append whose answer comes later."""

    def __init__(self, client: Client, topic: str, key: str) -> None:
        super().__init__(daemon=True)
        self._client, self._topic, self._key = client, topic, key
        self.reply: Any = None
        self.start()

    def run(self) -> None:
        body = {"records": [{"data": self._key}], "idempotency_key": self._key}
        self.reply = self._client.post(f"/v0/topics/{self._topic}", body)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bucket_that_is_away_for_many_leases_changes_nothing(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(tmp_path)
    with bad_network(s3.port) as network:
        network.lead_to(s3.environ, monkeypatch)
        environ = {"bucket": "s3://bkt/topics", "bucket_lease_ms": 1_000, "bucket_piece_ms": 10}
        try:
            primary, standby = servers.primary("a", **environ), servers.standby("b", **environ)
            client, reader = primary.client(), standby.client()
            client.put("/v0/topics/r", REPLICATED)
            client.append("r", "before")
            client.append("d", 0)
            until_all_shipped(client)
            network.away = True
            # It is refused after ten seconds, which are ten leases.
            waits = Later(primary.client(), "r", "waits")
            primary.wait_for_log("the bucket does not answer")
            standby.wait_for_log("the bucket does not answer")
            number = 0
            while waits.is_alive():
                number += 1
                assert client.append("d", number).status == 200
                assert role(reader) == "standby"
            assert (waits.reply.status, waits.reply.code) == (503, "not_replicated")
            assert everything(client, "r") == ["before"]
            network.away = False
            until_all_shipped(client)
            again = client.post("/v0/topics/r", {"records": [{"data": "waits"}], "idempotency_key": "waits"})
            assert (again.status, again.json["deduped"]) == (200, True)
            until_sees(reader, "d", number + 1)
            assert [role(client), role(reader)] == ["primary", "standby"]
            assert (health(client)["term"], health(reader)["term"]) == (1, 1)
            assert everything(reader, "d") == list(range(number + 1))
            assert everything(reader, "r") == ["before", "waits"]
        finally:
            servers.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bucket_that_is_away_for_a_minute_stops_only_what_waits_for_it(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings that a server has by itself, under writers, workers and routers."""
    servers = Servers(tmp_path)
    with bad_network(s3.port) as network:
        network.lead_to(s3.environ, monkeypatch)
        environ = {"bucket": "s3://bkt/topics", "bucket_lease_ms": 10_000, "bucket_piece_ms": 50}
        try:
            primary, standby = servers.primary("a", **environ), servers.standby("b", **environ)
            client, reader = primary.client(), standby.client()
            make_topics(client)
            load = Load([primary.port, standby.port])
            load.until_progress(20)
            network.away = True
            left_s = time.monotonic()
            until(lambda: health(client)["state"] == health(reader)["state"] == "away", "both notice")
            replicated = [one for one in load.writers if one.topic != "d"]
            acked = [one.progress for one in replicated]
            while time.monotonic() < left_s + 60:
                before = disk_progress(load)
                until(lambda: all(map(int.__gt__, disk_progress(load), before)), "disk writes go on")  # noqa: B023
                assert [role(client), role(reader)] == ["primary", "standby"]
            assert [one.progress for one in replicated] == acked
            assert (health(client)["term"], health(client)["state"]) == (1, "away")
            network.away = False
            load.until_progress(20)
            load.end()
            until_all_shipped(client)
            assert load.check(client).disk_lost == 0
            assert [role(client), role(reader)] == ["primary", "standby"]
            assert (health(client)["term"], health(reader)["term"]) == (1, 1)
            until_sees(reader, "d", client.state("d")["head_seq"])
            assert read_all(reader, "d") == read_all(client, "d")
        finally:
            servers.end()


def disk_progress(load: Load) -> list[int]:
    return [one.progress for one in load.writers if one.topic == "d"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_primary_that_alone_is_cut_off_is_replaced_and_keeps_what_only_it_has(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(tmp_path)
    with bad_network(s3.port) as cut, bad_network(s3.port) as good:
        environ = {"bucket": "s3://bkt/topics", "bucket_lease_ms": 1_000, "bucket_piece_ms": 10}
        try:
            cut.lead_to(s3.environ, monkeypatch)
            primary = servers.primary("a", **environ)
            good.lead_to(s3.environ, monkeypatch)
            standby = servers.standby("b", **environ)
            client = primary.client()
            client.put("/v0/topics/r", REPLICATED)
            client.append("r", "before")
            client.append("d", "before")
            until_all_shipped(client)
            until_sees(standby.client(), "d", 1)
            cut.away = True
            waits = Later(primary.client(), "r", "never")
            after = until_primary(standby)
            assert client.append("d", "only here").status == 200
            cut.away = False
            waits.join(PATIENCE_S)
            assert waits.reply.code in ("not_primary", "not_replicated")
            aside = primary.wait_for_log(r"it is set aside in (\S+),")[1]
            again = primary.client()
            until(lambda: role(again) == "standby", "the old primary follows")
            assert after.append("r", "after").json["last_seq"] == 2
            until_sees(again, "r", 2)
            for one in (after, again):
                assert everything(one, "r") == ["before", "after"]
                assert list(read_all(one, "d").values.values()) == ["before"]
            own = tmp_path / "own"
            own.mkdir()
            with serving(Path(aside), bucket=f"file://{own}") as server:
                assert everything(server.client(), "d") == ["before", "only here"]
        finally:
            servers.end()


# --- without the primary that made a gap ---


def die_in_a_gap(rig: Rig, interrupted: Interrupted) -> None:
    """More waits than may; the slot that begins the gap is there, and the machine is lost before the manifest is."""
    interrupted.before = refuse
    for _ in range(60):
        rig.append("d", "x" * 50_000)
    rig.checkpoint()
    rig.wait_until(lambda: shipping_of(rig).status.state == "gap")
    tried = threading.Event()

    def refuse_manifest(key: str) -> None:
        if key.startswith("snapshots/"):
            tried.set()
            refuse(key)

    interrupted.before = refuse_manifest
    rig.wait_until(tried.is_set)
    die(rig, interrupted)


@pytest.mark.parametrize("follows", [False, True])
def test_a_gap_that_its_primary_did_not_live_to_end_does_not_hold_up_a_standby(
    tmp_path: Path, interrupted: Interrupted, opened: Callable[..., Rig], follows: bool
) -> None:
    # Long enough that a standby takes over when it has died, and not because the machine is busy.
    rig = opened("a", bucket_backlog_bytes=MIB, wal_file_bytes=1 << 16, bucket_lease_ms=8_000)
    rig.configure("r", durability="replicated")
    rig.append("r", 1, 2)
    until_shipped(rig)
    bucket = settings(tmp_path / "bucket")
    server = ServerProcess(tmp_path / "b", "--standby", bucket_takeover="auto", **bucket)
    try:
        if follows:
            until_sees(server.ready().client(), "r", 2)
        else:
            server.kill()
        die_in_a_gap(rig, interrupted)
        if not follows:
            server = ServerProcess(tmp_path / "b", "--standby", **bucket)
        server.ready()
        client = until_primary(server)
        assert everything(client, "r") == [1, 2]
        assert client.append("r", 3).json["last_seq"] == 3
        until_all_shipped(client)
    finally:
        server.kill()
    with serving(tmp_path / "c", **bucket) as last:
        assert everything(last.client(), "r") == [1, 2, 3]


def test_a_snapshot_from_before_the_end_of_the_log_does_not_end_a_gap_that_a_start_has_found(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    """It was restored with an older one: sent again, that would take the copy back over what was acknowledged."""
    rig = opened("a", bucket_backlog_bytes=MIB, wal_file_bytes=1 << 16)
    rig.configure("r", durability="replicated")
    rig.append("r", 1)
    rig.checkpoint()
    rig.wait_until(lambda: shipping_of(rig).stored != ())
    rig.append("r", 2)
    until_shipped(rig)
    die_in_a_gap(rig, interrupted)
    ends: list[int] = []

    def note_manifest(key: str) -> None:
        if key.startswith("snapshots/"):
            ends.append(int(key.removeprefix("snapshots/").partition("-")[0]))

    interrupted.before = note_manifest
    again = opened("b")
    until_shipped(again)
    interrupted.before = nothing
    assert [record["data"] for record in again.records("r")] == [1, 2]
    restored = again.store.directory.previous.log_end
    assert restored
    assert min(ends) >= restored
    again.append("r", 3)
    until_shipped(again)
    die(again, interrupted)
    assert [record["data"] for record in opened("c").records("r")] == [1, 2, 3]


# --- without room ---


def test_a_primary_whose_disk_is_full_keeps_its_lease_and_the_bucket_has_what_it_acknowledged(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig = opened("a", disk=SmallDisk(6 * MIB), wal_file_bytes=1 << 16)
    rig.configure("r", durability="replicated")
    written = 0
    with suppress(StorageFull):
        while True:
            rig.append("r", "x" * 20_000)
            written += 1
    assert written > 10
    until_shipped(rig)
    renewed = shipping_of(rig)._seen
    rig.wait_until(lambda: shipping_of(rig)._seen is not renewed)
    assert shipping_of(rig).fenced is None
    die(rig, interrupted)
    assert opened("b").look("r").count == written


def test_a_standby_whose_disk_is_full_takes_nothing_over_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    small = SmallDisk(3 * MIB)
    pace = {"bucket": f"file://{bucket}", "bucket_piece_ms": 1}
    with Rig(tmp_path / "a", **pace) as primary, Rig(tmp_path / "b", disk=small, standby=True, **pace) as rig:
        assert rig.store.standby is not None
        following = rig.store.standby.following
        for _ in range(8):
            primary.append("t", "x" * 900_000)
        until_shipped(primary)

        def is_lost() -> bool:
            rig.store.turn()
            return following.lost is not None

        until(is_lost, "the standby notices")
        following.stop()
        following._lease_left_s, following._looked_after_slot = 0.0, True
        assert not following._may_take_over()
        rig.store.close()
        small.size_bytes = 100 * MIB
        rig.open()
        again = rig.store.standby
        assert again is not None

        def follows() -> bool:
            rig.store.turn()
            return rig.store.wal.synced_to == primary.store.wal.written_to

        until(follows, "the standby follows")
        again.following.stop()
        primary.close()


# --- with a wrong clock ---


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
def test_a_clock_that_is_an_hour_off_loses_nothing_and_uses_no_seq_twice(
    servers: Servers, tmp_path: Path, ahead_s: int
) -> None:
    library, clock = tmp_path / "clock.so", tmp_path / "clock"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, CLOCK_SOURCE, "-ldl"], check=True)
    clock.write_bytes(struct.pack("<q", ahead_s * 1_000_000_000))
    ports = [free_port(), free_port()]

    def start_wrong() -> ServerProcess:
        command: list[str | Path] = ["env", f"LD_PRELOAD={library}", f"CLOCK_STEP_FILE={clock}", TOPICS]
        environ: dict[str, Any] = {**settings(servers.bucket), "standby": True, "port": ports[1]}
        return servers.started(InstalledServer(command, tmp_path / "wrong", environ)).ready()

    right = servers.primary("right", port=ports[0])
    make_topics(right.client())
    wrong = start_wrong()
    load = Load(ports)
    for _ in range(2):
        load.until_progress(10)
        right.kill()
        until_primary(wrong)
        load.until_progress(10)
        right = servers.standby("right", port=ports[0])
        wrong.kill()
        until_primary(right)
        wrong = start_wrong()
    load.until_progress(10)
    load.end()
    load.check(right.client())


# --- readers who stay ---


class Seen:
    """What a reader was sent: records and gaps by topic, and the answers to its own commands."""

    def __init__(self, receive: Callable[[], tuple[str, Any]]) -> None:
        self._receive = receive
        self.records: dict[str, dict[int, Any]] = {"r": {}, "d": {}}
        self.gaps: dict[str, list[tuple[int, int]]] = {"r": [], "d": []}
        self.answers: dict[str, Any] = {}

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            kind, data = self._receive()
            if kind == "record":
                for record in data["records"]:
                    assert record["$seq"] > max(self.records[data["topic"]], default=0)
                    self.records[data["topic"]][record["$seq"]] = record["data"]
            elif kind == "tombstone":
                assert data["reason"] == "lost"
                self.gaps[data["topic"]].append((data["gap_from"], data["gap_to"]))
            elif kind in ("ack", "error"):
                self.answers[data["request_id"]] = data

    def until_seq(self, topic: str, seq: int) -> None:
        self.until(lambda: seq in self.records[topic])


def of_stream(stream: EventSource) -> Callable[[], tuple[str, Any]]:
    """The stream of the topic `r`: an event for each record."""

    def receive() -> tuple[str, Any]:
        event = stream.event()
        return ("record", {"topic": "r", "records": [event.data]}) if event.event == "message" else event[:2]

    return receive


def of_socket(ws: Socket) -> Callable[[], tuple[str, Any]]:
    def receive() -> tuple[str, Any]:
        frame = ws.next(PATIENCE_S)
        return frame["op"], frame

    return receive


@pytest.mark.slow
def test_streams_of_a_standby_go_on_when_it_is_primary(servers: Servers) -> None:
    primary = servers.primary("a")
    client = primary.client()
    client.put("/v0/topics/r", REPLICATED)
    client.append("r", 1)
    client.append("d", 1)
    until_all_shipped(client)
    standby = servers.standby("b")
    until_sees(standby.client(), "d", 1)
    with watching(standby) as watcher, open_socket(standby) as ws:
        start = {"r": {"from_seq": 0}, "d": {"from_seq": 0}}
        stream, watch = watcher.open("/v0/topics/r/stream?from_seq=0"), watcher.watch(start)
        ws.send("subscribe", topics=start)
        by_socket, by_stream = Seen(of_socket(ws)), Seen(of_stream(stream))
        by_watch = Seen(lambda: watch.event()[:2])
        client.append("r", 2)
        client.append("d", 2)
        for reader in (by_socket, by_watch):
            reader.until_seq("r", 2)
            reader.until_seq("d", 2)
        ws.send("publish", topic="r", records=[{"data": "never"}], request_id="refused")
        by_socket.until(lambda: "refused" in by_socket.answers)
        assert by_socket.answers["refused"]["code"] == "not_primary"
        primary.kill()
        after = until_primary(standby)
        assert after.append("r", 3).json["last_seq"] == 3
        last = after.append("d", 3).json["last_seq"]
        ws.send("publish", topic="r", records=[{"data": 4}], request_id="taken")
        by_socket.until(lambda: "taken" in by_socket.answers)
        assert by_socket.answers["taken"]["op"] == "ack"
        for reader in (by_socket, by_watch, by_stream):
            reader.until_seq("r", 4)
            assert (reader.records["r"], reader.gaps["r"]) == ({1: 1, 2: 2, 3: 3, 4: 4}, [])
        for reader in (by_socket, by_watch):
            reader.until_seq("d", last)
            assert reader.records["d"] == {1: 1, 2: 2, last: 3}
            assert reader.gaps["d"] == [(3, last - 1)], "what the primary may have had is lost, and readers are told"

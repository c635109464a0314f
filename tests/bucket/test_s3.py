"""The same against a real S3 server: what the protocol needs, bad settings, kills, and a bucket that is away."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bucket.s3_server import SECRET, S3Server, s3_server
from tests.bucket.test_lost_machine import everything, health, settings, until_shipped
from tests.bucket.test_shared_directory import check_bucket
from tests.launching import run as run_topics
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving
from topics.storage.bucket.object_store import ObjectStoreBucket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)


def test_s3_has_what_the_protocol_needs(s3: S3Server, tmp_path: Path) -> None:
    check_bucket(ObjectStoreBucket("s3://bkt/calls", s3.environ), tmp_path)


def test_the_profile_gives_the_keys(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text(
        f"[work]\naws_access_key_id = {s3.environ['AWS_ACCESS_KEY_ID']}\naws_secret_access_key = {SECRET}\n"
    )
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "work", "HOME": str(tmp_path)}
    endpoint = {name: s3.environ[name] for name in ("AWS_ENDPOINT_URL", "AWS_REGION")}
    bucket = ObjectStoreBucket("s3://bkt/profile", {**environ, **endpoint})
    bucket.create("a", b"1")
    assert bucket.read("a") is not None


def test_bad_settings_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(bucket: str) -> str:
        server = ServerProcess(tmp_path / "data", bucket=bucket)
        assert server.exit_code() == 2
        assert SECRET not in server.log
        return server.lines[-1]

    assert "cannot write to it" in refused("s3://nosuchbucket/p")
    assert "check that it exists" in refused("s3://nosuchbucket/p")
    assert "not found (404 NoSuchBucket): " in refused("s3://nosuchbucket/p")
    assert "contains credentials" in refused(f"s3://key:{SECRET}@bkt/p")
    assert "it must be s3://" in refused("ftp://bkt/p")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    denied = refused("s3://bkt/p")
    assert "access is denied (403 SignatureDoesNotMatch): " in denied
    assert "the rights of the credentials" in denied
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    unreachable = refused("s3://bkt/p")
    assert "no connection: " in unreachable
    assert "the endpoint" in unreachable


def test_credentials_are_not_shown(tmp_path: Path) -> None:
    with serving(tmp_path / "data", bucket="s3://bkt/shown", log_level="debug") as server:
        server.client().append("t", 1)
        until_shipped(server.client())
        assert SECRET not in server.log
        assert SECRET.encode() not in server.client().get("/v0/server").body
    shown = run_topics(["config", "show"], {**os.environ, "TOPICS_BUCKET": "s3://bkt/shown"})
    assert shown.returncode == 0
    assert SECRET.encode() not in shown.stdout + shown.stderr


class Writer(threading.Thread):
    """Appends numbers until the server is gone; `acked` is what was acknowledged."""

    def __init__(self, port: int, start: int) -> None:
        super().__init__(daemon=True)
        self._client = Client(port)
        self._next = start
        self.acked: list[int] = []
        self.many = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while self._client.append("t", self._next).status in (200, 201):
                self.acked.append(self._next)
                self._next += 1
                if len(self.acked) == 30:
                    self.many.set()
        except OSError:
            pass


def test_killed_under_writers_again_and_again_what_was_shipped_comes_back(tmp_path: Path) -> None:
    """The machine dies with its disk each time; of what a writer was told, only the last moment may be missing."""
    acked: list[int] = []
    shipped = 0
    for round_number in range(7):
        data = tmp_path / f"data{round_number}"
        with serving(data, **{**settings(tmp_path), "bucket": "s3://bkt/kills", "checkpoint_ms": 200}) as server:
            client = server.client()
            kept = [] if not round_number else everything_kept(client)
            assert kept == acked[: len(kept)], "what is there is a beginning of what was acknowledged"
            assert len(kept) >= shipped
            acked = kept
            for number in range(30):
                client.append("t", 1_000 * round_number + number)
                acked.append(1_000 * round_number + number)
            until_shipped(client)
            shipped = len(acked)
            writer = Writer(server.port, 1_000 * round_number + 30)
            assert writer.many.wait(PATIENCE_S)
            server.process.kill()
            writer.join()
            acked += writer.acked
        shutil.rmtree(data)


def everything_kept(client: Client) -> list[int]:
    found: list[int] = []
    cursor, caught_up = 0, False
    while not caught_up:
        page = client.diff("t", from_seq=cursor, limit=1000)
        found += [record["data"] for record in page["records"]]
        cursor, caught_up = page["next_from_seq"], page["caught_up"]
    return found


class KeyedWriter(threading.Thread):
    """Appends numbers to a topic until the server is gone; `acked` has the seq of each that was acknowledged."""

    def __init__(self, port: int, topic: str, start: int) -> None:
        super().__init__(daemon=True)
        self._client = Client(port)
        self._topic = topic
        self._next = start
        self.acked: dict[int, int] = {}
        self.many = threading.Event()
        self.start()

    def run(self) -> None:
        with contextlib.closing(self._client), contextlib.suppress(OSError):
            while True:
                body = {"records": [{"data": self._next}], "idempotency_key": str(self._next)}
                done = self._client.post(f"/v0/topics/{self._topic}", body)
                if done.status not in (200, 201):
                    return
                self.acked[self._next] = done.json["first_seq"]
                self._next += 1
                if len(self.acked) == 10:
                    self.many.set()


def test_killed_under_replicated_writers_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """The machine dies with its disk each time. Losses of the other class are announced, exactly."""
    acked: dict[str, dict[int, int]] = {"r": {}, "d": {}}
    for round_number in range(6):
        data = tmp_path / f"data{round_number}"
        with serving(data, **{**settings(tmp_path), "bucket": "s3://bkt/replicated", "checkpoint_ms": 200}) as server:
            client = server.client()
            client.put("/v0/topics/r", {"durability": "replicated"})
            client.put("/v0/topics/d", {})
            for topic, written in acked.items():
                check_kept(client, topic, written)
            check_retries(client, acked["r"])
            first = 100_000 * round_number
            writers = {
                topic: [KeyedWriter(server.port, topic, first + 10_000 * number) for number in range(4)]
                for topic in acked
            }
            for writer in (*writers["r"], *writers["d"]):
                assert writer.many.wait(PATIENCE_S)
            server.process.kill()
            for topic, several in writers.items():
                for writer in several:
                    writer.join()
                    acked[topic].update(writer.acked)
        shutil.rmtree(data)
    assert len(acked["r"]) >= 6 * 4 * 10


def check_kept(client: Client, topic: str, written: dict[int, int]) -> None:
    """Every seq has one record; what is missing of the acknowledged ones lies in a gap that readers are told of."""
    found: dict[int, int] = {}
    gaps: list[tuple[int, int]] = []
    cursor, caught_up = 0, False
    while not caught_up:
        page = client.diff(topic, from_seq=cursor, limit=1000)
        if page["tombstone"]:
            assert page["tombstone"]["reason"] == "lost"
            gaps.append((page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]))
        for record in page["records"]:
            assert record["$seq"] not in found
            found[record["$seq"]] = record["data"]
        cursor, caught_up = page["next_from_seq"], page["caught_up"]
    assert len(set(found.values())) == len(found), "no record is there twice"
    missing = {value: seq for value, seq in written.items() if found.get(seq) != value}
    if topic == "r":
        assert not missing
        assert not gaps
        assert sorted(found) == list(range(1, len(found) + 1))
    for value, seq in missing.items():
        assert seq not in found, f"seq {seq} was acknowledged for {value}"
        assert any(first <= seq <= last for first, last in gaps), f"seq {seq} is lost in silence"


def check_retries(client: Client, written: dict[int, int]) -> None:
    """The newest keys are known to the server that took over."""
    for value, seq in list(written.items())[-5:]:
        body = {"records": [{"data": value}], "idempotency_key": str(value)}
        again = client.post("/v0/topics/r", body).json
        assert (again["deduped"], again["first_seq"]) == (True, seq)


def test_while_the_server_of_the_bucket_is_dead_or_hangs_writes_go_on(s3: S3Server, tmp_path: Path) -> None:
    with serving(tmp_path / "a", **{**settings(tmp_path), "bucket": "s3://bkt/away"}) as server:
        client = server.client()
        client.append("t", 0)
        until_shipped(client)
        s3.kill()
        for number in range(1, 50):
            assert client.append("t", number).status == 200
        server.wait_for_log("the bucket does not answer")
        assert health(client)["state"] == "away"
        s3.start_again()
        until_shipped(client)
        s3.pause()
        for number in range(50, 100):
            assert client.append("t", number).status == 200
        s3.go_on()
        until_shipped(client)
    with serving(tmp_path / "b", **{**settings(tmp_path), "bucket": "s3://bkt/away"}) as server:
        assert everything(server.client(), "t", lost=True) == list(range(100))

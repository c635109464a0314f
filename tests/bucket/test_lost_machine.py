"""Real servers and a bucket in a directory: the machine dies, its disk is gone, and the next one goes on."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launching import run as run_topics
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving

LEASE_MS = 1_000


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    path = tmp_path / "bucket"
    path.mkdir()
    return path


def settings(bucket: Path, **more: object) -> dict[str, object]:
    return {"bucket": f"file://{bucket}", "bucket_lease_ms": LEASE_MS, "bucket_piece_ms": 10, **more}


def health(client: Client) -> Any:
    return client.get("/v0/health").json["bucket"]


def everything(client: Client, topic: str, *, lost: bool = False) -> list[Any]:
    """All payloads of a topic; `lost`: and after them a gap for what the bucket may not have got."""
    found: list[Any] = []
    cursor, caught_up, reasons = 0, False, list[str]()
    while not caught_up:
        page = client.diff(topic, from_seq=cursor, limit=1000)
        found += [record["data"] for record in page["records"]]
        if page["tombstone"]:
            assert page["tombstone"]["gap_from"] == len(found) - len(page["records"]) + 1
            reasons.append(page["tombstone"]["reason"])
        cursor, caught_up = page["next_from_seq"], page["caught_up"]
    assert reasons == (["lost"] if lost else [])
    return found


def until_shipped(client: Client) -> None:
    """Everything that is acknowledged is in the bucket."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := health(client))["lag_bytes"] or found["state"] != "ok":
        assert time.monotonic() < deadline_s, found
        time.sleep(0.005)


def test_a_machine_that_is_lost_is_no_loss(tmp_path: Path, bucket: Path) -> None:
    data = tmp_path / "data"
    with serving(data, **settings(bucket, checkpoint_ms=100)) as server:
        client = server.client()
        client.put("/v0/topics/q", {"type": "queue"})
        client.put("/v0/topics/copied", {})
        client.put("/v0/routers/r", {"source": "log", "dest": "copied"})
        for number in range(50):
            assert client.append("log", *[{"n": number, "i": i} for i in range(20)]).status == 200
        client.append("q", "job")
        before = everything(client, "log")
        # What is copied after the restore would come between two gaps, that of the copies and that of their source.
        while client.state("copied")["head_seq"] < len(before):
            client.diff("copied", from_seq=client.state("copied")["head_seq"], wait_ms=1_000)
        assert client.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_bucket_up"] == 1
        until_shipped(client)
    shutil.rmtree(data)
    with serving(data, **settings(bucket)) as server:
        client = server.client()
        assert everything(client, "log", lost=True) == before
        assert everything(client, "copied", lost=True) == before
        assert [job["data"] for job in client.post("/v0/topics/q/claim", {"node": "w"}).json["claimed"]] == ["job"]
        head = client.state("log")["head_seq"]
        assert client.append("log", "after").json["last_seq"] > head >= 1000
        server.wait_for_log(r"primary in term 2, after ")


def test_a_server_that_has_stopped_goes_on_elsewhere_without_a_gap(tmp_path: Path, bucket: Path) -> None:
    for number in range(3):
        server = ServerProcess(tmp_path / f"data{number}", **settings(bucket)).ready()
        assert server.client().append("t", number).json["last_seq"] == number + 1
        assert server.terminate() == 0
    with serving(tmp_path / "last", **settings(bucket)) as server:
        assert everything(server.client(), "t") == [0, 1, 2]


def test_the_same_directory_goes_on_after_a_kill(tmp_path: Path, bucket: Path) -> None:
    """Also with records that the bucket did not get."""
    for number in range(3):
        with serving(tmp_path / "data", **settings(bucket, bucket_piece_ms=60_000)) as server:
            assert server.client().append("t", number).json["last_seq"] == number + 1
    with serving(tmp_path / "data", **settings(bucket)) as server:
        until_shipped(server.client())
    with serving(tmp_path / "other", **settings(bucket)) as server:
        assert everything(server.client(), "t", lost=True) == [0, 1, 2]


def test_a_second_server_is_refused_while_the_first_lives(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "a", **settings(bucket)) as first:
        first.client().append("t", 1)
        second = ServerProcess(tmp_path / "b", **settings(bucket))
        assert second.exit_code() == 2
        assert "renews its lease" in second.lines[-1]
        assert "stop it first" in second.lines[-1]
        assert first.client().append("t", 2).status == 200


def test_a_directory_with_another_log_is_refused(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "other") as server:
        server.client().append("t", "other")
    server = ServerProcess(tmp_path / "a", **settings(bucket)).ready()
    server.client().append("t", "first")
    assert server.terminate() == 0
    second = ServerProcess(tmp_path / "other", **settings(bucket))
    assert second.exit_code() == 2
    assert "is not the one in" in second.lines[-1]
    # Somebody else has gone on from the bucket: the directory of the first is out of date.
    with serving(tmp_path / "b", **settings(bucket)) as server:
        server.client().append("t", "second")
    again = ServerProcess(tmp_path / "a", **settings(bucket))
    assert again.exit_code() == 2
    assert "start on an empty one" in again.lines[-1]


def test_a_directory_that_had_no_bucket_gets_one(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "a", checkpoint_bytes=1, wal_file_bytes=4096) as server:
        client = server.client()
        for number in range(200):
            client.append("t", {"n": number, "filler": "x" * 200})
    with serving(tmp_path / "a", **settings(bucket, checkpoint_ms=100)) as server:
        client = server.client()
        client.append("t", "last")
        until_shipped(client)
    with serving(tmp_path / "b", **settings(bucket)) as server:
        payloads = everything(server.client(), "t", lost=True)
        assert len(payloads) == 201
        assert payloads[-1] == "last"


def test_while_the_bucket_is_away_writes_go_on(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "a", **settings(bucket)) as server:
        client = server.client()
        client.append("t", 0)
        until_shipped(client)
        bucket.rename(tmp_path / "gone")
        for number in range(1, 100):
            assert client.append("t", number).status == 200
        server.wait_for_log("the bucket does not answer; the log waits on disk")
        assert health(client)["state"] == "away"
        assert health(client)["lag_bytes"] > 0
        (tmp_path / "gone").rename(bucket)
        until_shipped(client)
        server.wait_for_log("the bucket answers again")
    with serving(tmp_path / "b", **settings(bucket)) as server:
        assert everything(server.client(), "t", lost=True) == list(range(100))


def test_what_waits_for_the_bucket_is_bounded(tmp_path: Path, bucket: Path) -> None:
    """The copy gets a gap, which is announced, and goes on from a snapshot."""
    bounded = settings(bucket, bucket_backlog_bytes="1MiB", checkpoint_bytes=1 << 18, wal_file_bytes=1 << 16)
    with serving(tmp_path / "a", **bounded) as server:
        client = server.client()
        client.append("t", "first")
        until_shipped(client)
        bucket.rename(tmp_path / "gone")
        payload = "x" * 5_000
        for _ in range(600):
            assert client.append("t", payload).status == 200
        server.wait_for_log("cannot be restored to a moment before that")
        assert health(client)["state"] == "gap"
        (tmp_path / "gone").rename(bucket)
        client.append("t", "last")
        until_shipped(client)
        assert sum(file.stat().st_size for file in (tmp_path / "a/shard-00/wal").iterdir()) < 3 << 20
    with serving(tmp_path / "b", **settings(bucket)) as server:
        state = server.client().state("t")
        assert state["count"] == 602


def test_a_restore_goes_back_in_time(tmp_path: Path, bucket: Path) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    with serving(tmp_path / "a", **settings(bucket, checkpoint_ms=100)) as server:
        client = server.client()
        moments: list[int] = []
        for number in range(3):
            client.append("t", number)
            until_shipped(client)
            time.sleep(0.002)
            moments.append(time.time_ns() // 1_000_000)
            time.sleep(0.002)
        for number, moment in enumerate(moments):
            done = run_topics(["restore", f"file://{bucket}", str(tmp_path / f"r{number}"), "--at", str(moment)], env)
            assert done.returncode == 0, done.stderr
            assert f"{number + 1} records".encode() in done.stdout + done.stderr
        too_old = run_topics(["restore", f"file://{bucket}", str(tmp_path / "old"), "--at", "1d"], env)
        assert too_old.returncode == 2
        assert b"its oldest moment is 20" in too_old.stderr
        assert not (tmp_path / "old").exists()
        assert client.append("t", "the server goes on").status == 200
    with serving(tmp_path / "r1") as server:
        assert everything(server.client(), "t", lost=True) == [0, 1]


def test_a_copy_with_replicated_topics_is_restored_and_served_with_a_bucket_of_its_own(
    tmp_path: Path, bucket: Path
) -> None:
    with serving(tmp_path / "a", **settings(bucket)) as server:
        client = server.client()
        assert client.put("/v0/topics/t", {"durability": "replicated"}).status == 201
        client.append("t", 1)
        done = run_topics(["restore", f"file://{bucket}", str(tmp_path / "copy")], {"PATH": "/usr/bin:/bin"})
        assert (done.returncode, done.stderr.count(b"1 topics, 1 records")) == (0, 1), done.stderr
    refused = run_topics(["serve", "--data-dir", str(tmp_path / "copy"), "--port", "0"], {"PATH": "/usr/bin:/bin"})
    assert refused.returncode == 2
    assert b"has topics with durability replicated (t)" in refused.stderr
    (tmp_path / "own").mkdir()
    with serving(tmp_path / "copy", **settings(tmp_path / "own")) as server:
        assert [record["data"] for record in server.client().diff("t", from_seq=0)["records"]] == [1]


def test_a_restore_that_was_killed_is_done_again(tmp_path: Path, bucket: Path) -> None:
    server = ServerProcess(tmp_path / "a", **settings(bucket)).ready()
    server.client().append("t", 1)
    assert server.terminate() == 0
    half = tmp_path / "b"
    (half / "restoring" / "shard-00").mkdir(parents=True)
    (half / "shard-00" / "wal").mkdir(parents=True)
    (half / "shard-00" / "wal" / f"{1:020d}.log").write_bytes(b"half of a file")
    with serving(half, **settings(bucket)) as server:
        assert everything(server.client(), "t") == [1]
    assert not (half / "restoring").exists()


@pytest.mark.parametrize("kind", ["log", "files", "snapshots"])
def test_a_damaged_object_is_named_and_nothing_is_served(kind: str, tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "a", **settings(bucket, checkpoint_ms=50)) as server:
        client = server.client()
        for number in range(20):
            client.append("t", {"n": number})
        until_shipped(client)
        while not (bucket / "snapshots").exists():
            client.append("t", "more")
        client.append("t", "the last piece")
        until_shipped(client)
    # Which pack the newest snapshot refers to depends on when the server was killed: every one is damaged.
    damaged = [path for path in (bucket / kind).rglob("*") if path.is_file()]
    if kind == "log":
        damaged = [max((bucket / "log" / f"{1:010d}").iterdir())]
    for path in damaged:
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    server = ServerProcess(tmp_path / "b", **settings(bucket))
    assert server.exit_code() == 2
    assert f"{kind}/" in server.lines[-1]
    assert "damaged" in server.lines[-1]


def test_a_server_that_slept_past_its_lease_is_shut_out_and_follows_the_other(tmp_path: Path, bucket: Path) -> None:
    first = ServerProcess(tmp_path / "a", **settings(bucket)).ready()
    try:
        client = first.client()
        client.append("t", "before")
        until_shipped(client)
        first.process.send_signal(signal.SIGSTOP)
        with serving(tmp_path / "b", **settings(bucket)) as second:
            second.client().append("t", "elsewhere")
            first.process.send_signal(signal.SIGCONT)
            first.wait_for_log("starting again as a standby: .* term 2")
            first.wait_for_log("is set aside in|nothing here that the bucket does not have")
            until_follows(client, "t", second.client().state("t")["head_seq"])
            refused = client.append("t", "after")
            assert (refused.status, refused.code) == (503, "not_primary")
            assert everything(client, "t", lost=True) == ["before", "elsewhere"]
            assert second.client().append("t", "goes on").status == 200
    finally:
        first.kill()


def until_follows(client: Client, topic: str, head_seq: int) -> None:
    """The server answers as a standby, and has the topic up to there."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline_s
        with contextlib.suppress(OSError):
            reply = client.get(f"/v0/topics/{topic}?touch=false")
            if "topics-age-ms" in reply.headers and reply.status == 200 and reply.json["head_seq"] >= head_seq:
                return
        time.sleep(0.01)

"""History larger than the disk, with real servers: what is only in the bucket is read as if it were here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.bucket.s3_server import s3_server
from tests.bucket.test_lost_machine import everything, health, settings, until_shipped
from tests.launching import run as run_topics
from tests.patience import PATIENCE_S
from tests.serving import Client, Reply, ServerProcess, serving

LOCAL_BYTES = 1_000_000
PAYLOAD_BYTES = 4_000
# Every record that is packed leaves memory, so that reads need the packs.
SMALL: dict[str, object] = {
    "local_bytes": LOCAL_BYTES,
    "checkpoint_bytes": 400_000,
    "checkpoint_ms": 200,
    "segment_max_events": 100,
    "hot_retain_segments": 0,
    "hot_retain_bytes": 0,
}


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    path = tmp_path / "bucket"
    path.mkdir()
    return path


def payload(number: int) -> dict[str, Any]:
    return {"n": number, "filler": f"{number:010d}" * (PAYLOAD_BYTES // 10)}


def fill(client: Client, first: int, count: int, topic: str = "t") -> list[dict[str, Any]]:
    written = [payload(number) for number in range(first, first + count)]
    for at in range(0, count, 50):
        assert client.append(topic, *written[at : at + 50]).status in (200, 201)
    return written


def wait_until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def until_offloaded(client: Client, records: int) -> None:
    """All records are packed; the disk has what it may have, and the rest is in the bucket only."""
    until_shipped(client)
    remote_bytes = PAYLOAD_BYTES * records - LOCAL_BYTES
    wait_until(lambda: health(client)["local_bytes"] <= LOCAL_BYTES and health(client)["remote_bytes"] > remote_bytes)


def first_refusal(client: Client, **body: Any) -> Reply:
    """The checkpoint that packed them may take a moment longer to release the records: until then memory has them."""
    replies: list[Reply] = []

    def is_refused() -> bool:
        replies.append(client.post("/v0/topics/t/diff", body))
        return replies[-1].status != 200

    wait_until(is_refused)
    return replies[-1]


def metrics(client: Client) -> dict[str, float]:
    return client.get("/v0/metrics", headers={"Accept": "application/json"}).json


def first_read_requests(client: Client, oldest: Any) -> int:
    """How many requests the first read of the oldest record takes, on a server that has just started."""
    before = metrics(client)["topics_bucket_range_requests_total"]
    assert client.payloads("t", from_seq=0, limit=1) == [oldest]
    return int(metrics(client)["topics_bucket_range_requests_total"] - before)


def pack_bytes(data: Path) -> int:
    with os.scandir(data / "shard-00/packs") as found:
        return sum(entry.stat().st_size for entry in found if entry.name.endswith(".pack"))


@contextlib.contextmanager
def following(server: ServerProcess, topic: str, count: int) -> Iterator[list[Any]]:
    """The payloads that a watch gets from the beginning of a topic; complete when the block ends."""
    found: list[Any] = []

    def follow() -> None:
        with topics.Client(f"http://127.0.0.1:{server.port}") as client:
            for event in client.watch({topic: 0}):
                found.extend(record.data for record in getattr(event, "records", ()))
                if len(found) >= count:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    yield found
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), len(found)


def test_everything_is_read_back_byte_for_byte(tmp_path: Path, bucket: Path) -> None:
    data = tmp_path / "data"
    with serving(data, **settings(bucket, **SMALL)) as server:
        client = server.client()
        written = fill(client, 0, 2_000)
        until_offloaded(client, 2_000)
        assert pack_bytes(data) <= LOCAL_BYTES
        assert health(client)["remote_bytes"] > 5 * LOCAL_BYTES
        assert everything(client, "t") == written
        with following(server, "t", len(written)) as found:
            pass
        assert found == written
        found = metrics(client)
        assert found["topics_packs_remote_bytes"] > 5 * LOCAL_BYTES
        assert found["topics_bucket_cache_hits_total"] > 0
        export = client.get("/v0/topics/t/export")
        assert [json.loads(line)["data"] for line in export.body.splitlines()[:-1]] == written
        tar = client.get("/v0/backup")
        assert tar.status == 200
        (tmp_path / "all.tar").write_bytes(tar.body)
        assert server.terminate() == 0
    # Again in the same directory, which knows what is in the bucket.
    with serving(data, **settings(bucket, **SMALL)) as server:
        assert pack_bytes(data) <= LOCAL_BYTES
        assert first_read_requests(server.client(), written[0]) in (1, 2)
        assert everything(server.client(), "t") == written
        assert server.terminate() == 0
    # In an empty one: what does not fit is not even fetched.
    with serving(tmp_path / "other", **settings(bucket, **SMALL)) as server:
        assert pack_bytes(tmp_path / "other") <= LOCAL_BYTES
        assert everything(server.client(), "t") == written
    for source in (str(tmp_path / "all.tar"), f"file://{bucket}"):
        plain = tmp_path / f"plain-{len(source)}"
        restored = run_topics(["restore", source, str(plain)], os.environ)
        assert restored.returncode == 0, restored.stderr
        assert pack_bytes(plain) > 5 * LOCAL_BYTES
        with serving(plain) as server:
            assert [record["n"] for record in everything(server.client(), "t", lost=True)] == list(range(2_000))


def test_settings_that_cannot_be_are_refused(tmp_path: Path, bucket: Path) -> None:
    alone = ServerProcess(tmp_path / "a", local_bytes="1GiB")
    assert alone.exit_code() == 2
    assert "TOPICS_BUCKET is not" in alone.lines[-1]
    both = ServerProcess(tmp_path / "a", **settings(bucket, local_bytes="1GiB", cold_dir=tmp_path / "cold"))
    assert both.exit_code() == 2
    assert "TOPICS_LOCAL_BYTES and TOPICS_COLD_DIR are both set" in both.lines[-1]


def test_while_the_bucket_is_away_the_rest_goes_on(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "data", **settings(bucket, **SMALL)) as server:
        client = server.client()
        written = fill(client, 0, 1_000)
        until_offloaded(client, 1_000)
        written += fill(client, 1_000, 10)
        bucket.rename(tmp_path / "gone")
        refused = first_refusal(client, from_seq=0)
        assert (refused.status, refused.code) == (503, "bucket_away")
        assert refused.headers["retry-after"] == "1"
        assert refused.detail["from_seq"] == 1
        polled = client.post("/v0/topics/t/diff", {"from_seq": 0, "wait_ms": 1_000})
        assert (polled.status, polled.code) == (503, "bucket_away")
        assert client.payloads("t", from_seq=1_000) == written[1_000:]
        assert client.append("t", payload(1_010)).status == 200
        assert client.get("/v0/topics/t/export").code == "bucket_away"
        with following(server, "t", 1_011) as found:
            server.settle()
            python = topics.Client(f"http://127.0.0.1:{server.port}", retries_max=0)
            with python, pytest.raises(topics.client.BucketAway):
                python.diff("t", from_seq=0)
            assert found == []
            (tmp_path / "gone").rename(bucket)
        assert found == [*written, payload(1_010)]
        assert everything(client, "t") == found


def test_a_kill_while_packs_leave_loses_nothing(tmp_path: Path, bucket: Path) -> None:
    data = tmp_path / "data"
    count = 0
    for kills in range(1, 5):
        with serving(data, **settings(bucket, **SMALL)) as server:
            client = server.client()
            for _ in range(4):
                fill(client, count, 100)
                count += 100
            server.wait_for_log("packs are only in the bucket now")
            fill(client, count, 50 * kills)
            count += 50 * kills
            server.kill()
    with serving(data, **settings(bucket, **SMALL)) as server:
        assert [record["n"] for record in everything(server.client(), "t")] == list(range(count))


def test_damage_in_the_bucket_names_the_seqs(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "data", **settings(bucket, **SMALL)) as server:
        client = server.client()
        fill(client, 0, 1_000)
        until_offloaded(client, 1_000)
        first = min((bucket / "files").glob("*.pack-*"))
        content = bytearray(first.read_bytes())
        content[5_000] ^= 1
        first.write_bytes(content)
        found = first_refusal(client, from_seq=1, limit=1)
        assert (found.status, found.code) == (500, "internal")
        assert found.detail["from_seq"] <= 2 <= found.detail["to_seq"]
        assert found.detail["pack"] == 1
        assert client.payloads("t", from_seq=999) == [payload(999)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_caps_and_ttl_free_the_bucket(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "data", **settings(bucket, bucket_keep_ms=1_000, **SMALL)) as server:
        client = server.client()
        client.put("/v0/topics/capped", {"cap_records": 100})
        client.put("/v0/topics/short", {"ttl_ms": 1})
        for number in range(10):
            fill(client, 100 * number, 100, "capped")
            fill(client, 100 * number, 100, "short")
        until_shipped(client)
        assert [record["n"] for record in client.payloads("capped", from_seq=900, limit=100)] == list(range(900, 1_000))

        def all_gone() -> bool:
            client.append("tick", 1)
            return health(client)["remote_bytes"] + health(client)["local_bytes"] < 3_000_000

        wait_until(all_gone)
        assert client.diff("short", from_seq=0)["records"] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_in_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "s3") as s3:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        where = {**settings(tmp_path, **SMALL), "bucket": "s3://bkt/history"}
        with serving(tmp_path / "data", **where) as server:
            client = server.client()
            written = fill(client, 0, 2_000)
            until_offloaded(client, 2_000)
        with serving(tmp_path / "data", **where) as server:
            client = server.client()
            assert first_read_requests(client, written[0]) in (1, 2)
            written += fill(client, 2_000, 10)
            s3.kill()
            assert client.post("/v0/topics/t/diff", {"from_seq": 1_000}).code == "bucket_away"
            assert client.payloads("t", from_seq=2_000) == written[2_000:]
            s3.start_again()
            wait_until(lambda: client.post("/v0/topics/t/diff", {"from_seq": 1_000}).status == 200)
            assert everything(client, "t") == written
            until_shipped(client)
            assert server.terminate() == 0
        shutil.rmtree(tmp_path / "data")
        with serving(tmp_path / "data", **where) as server:
            assert pack_bytes(tmp_path / "data") <= LOCAL_BYTES
            assert everything(server.client(), "t") == written

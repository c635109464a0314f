"""A primary and a standby on file systems that are really full: nothing acknowledged is lost, and the lease goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.load import read_all
from tests.bucket.s3_server import S3Server, s3_server
from tests.bucket.small_file_system import SmallFileSystem, small_file_system
from tests.bucket.standbys import Servers, role, until, until_primary, until_sees
from tests.bucket.test_lost_machine import everything, health, until_shipped
from tests.serving import Client

MIB = 1 << 20
# Small files and packs, so that the disk is full to the last megabyte.
SETTINGS = {
    "bucket": "s3://bkt/topics",
    "bucket_lease_ms": 2_000,
    "bucket_piece_ms": 10,
    "wal_file_bytes": MIB,
    "checkpoint_bytes": 2 * MIB,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallFileSystem]:
    with small_file_system(tmp_path / "small", 64 * MIB) as found:
        yield found


@pytest.fixture
def servers(disk: SmallFileSystem, s3: S3Server, tmp_path: Path) -> Iterator[Servers]:
    del s3
    found = Servers(tmp_path, **SETTINGS)
    yield found
    found.end()
    assert disk.path.is_mount()


def until_refused(client: Client, topic: str, acked: list[Any], first: int) -> None:
    """Append numbers until there is no room; those that were acknowledged are noted."""
    value = first
    while (reply := client.append(topic, [value, "x" * 50_000])).status in (200, 201):
        acked.append(value)
        value += 1
    assert (reply.status, reply.code) == (507, "storage_full")


def numbers(client: Client, topic: str) -> list[int]:
    return [value for value, _ in read_all(client, topic).values.values()]


def test_a_primary_on_a_full_file_system_stays_primary_and_a_standby_has_what_it_acknowledged(
    disk: SmallFileSystem, servers: Servers
) -> None:
    primary = servers.primary(f"{disk.path.name}/a")
    client = primary.client()
    acked: dict[str, list[int]] = {"r": [], "d": []}
    client.put("/v0/topics/r", {"durability": "replicated"})
    for topic, values in acked.items():
        for value in range(10):
            assert client.append(topic, [value, ""]).status in (200, 201)
            values.append(value)
    standby = servers.standby("b")
    disk.fill()
    until_refused(client, "r", acked["r"], 10)
    until_refused(client, "d", acked["d"], 10)
    assert disk.free_bytes < MIB
    # It renews its lease, and sends what it has, without any room.
    until_shipped(client)
    age_ms = primary.client().get("/v0/health").json["uptime_ms"]
    until(lambda: health(client)["lag_bytes"] == 0 and client.get("/v0/health").json["uptime_ms"] > age_ms + 5_000)
    assert [role(client), role(standby.client())] == ["primary", "standby"]
    assert health(client)["term"] == 1
    assert numbers(client, "r") == acked["r"]
    primary.kill()
    after = until_primary(standby)
    assert {topic: numbers(after, topic) for topic in acked} == acked, "all of it was in the bucket"
    # The old one has no room to follow, and says so; when there is some, it does.
    again = servers.start(f"{disk.path.name}/a", "--standby")
    until(lambda: again.process.poll() is not None or "No space left" in again.log or role(again.client()))
    disk.make_room()
    if again.process.poll() is not None:
        assert again.exit_code() != 0
        again = servers.start(f"{disk.path.name}/a", "--standby")
    assert after.append("r", [1_000, ""]).status == 200
    reader = again.ready().client()
    until_sees(reader, "r", len(acked["r"]) + 1)
    assert numbers(reader, "r") == [*acked["r"], 1_000]


def test_a_standby_on_a_full_file_system_takes_nothing_over_until_it_has_room_for_what_it_follows(
    disk: SmallFileSystem, servers: Servers
) -> None:
    primary = servers.primary("a")
    client = primary.client()
    client.put("/v0/topics/r", {"durability": "replicated"})
    client.append("r", 0)
    standby = servers.start(f"{disk.path.name}/b", "--standby").ready()
    reader = standby.client()
    until_sees(reader, "r", 1)
    disk.fill()
    for value in range(1, 200):
        assert client.append("r", [value, "x" * 50_000]).status == 200
    standby.wait_for_log("this standby begins again|No space left|no room")
    primary.kill()
    disk.make_room()
    if standby.process.poll() is not None:
        standby = servers.start(f"{disk.path.name}/b", "--standby").ready()
    after = until_primary(standby)
    assert len(read_all(after, "r").values) == 200
    assert not read_all(after, "r").gaps
    assert after.append("r", "last").json["last_seq"] == 201
    assert everything(after, "r")[-1] == "last"

"""A full disk is emptied by deleting: at any size, after a kill, with strangers' files in what was left of it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.rig import Rig
from tests.faults import SmallDisk
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess
from topics.engine.core.checkpoints.checkpoint import FULL_EVERY_MS
from topics.model.errors import StorageFull

MIB = 1 << 20
WAIT_S_MAX = PATIENCE_S
# Twenty tags in turn: deleting nineteen of them leaves one record in twenty, everywhere.
TAGS = 20
RECORDS = 100
BODY = b'{"records":[%b]}' % b",".join(
    b'{"data":"%b","tag":"t%d"}' % (b"x" * 900, number % TAGS) for number in range(RECORDS)
)


def keep_house(rig: Rig) -> None:
    """What the server does all the time, until nothing is due any more."""
    rig.clock.advance(FULL_EVERY_MS + 1)
    while rig.store.step() or rig.store._checkpoint is not None:
        rig.store.settle()
        time.sleep(0)


def fill(rig: Rig) -> int:
    """Append until even checkpoints make no more room; how many records were taken."""
    taken = refused = 0
    while refused < 3:
        try:
            rig.append_body("t", BODY)
        except StorageFull:
            keep_house(rig)
            refused += 1
        else:
            taken += RECORDS
            refused = 0
    return taken


def delete_most(rig: Rig) -> None:
    for tag in range(TAGS - 1):
        rig.delete("t", match=f"t{tag}")
        rig.clock.advance(1)


@pytest.mark.parametrize("mib", [1, 10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_full_of_records_takes_more_after_most_were_deleted(tmp_path: Path, mib: int, killed: bool) -> None:
    path = tmp_path / "data"
    # What the data directory takes besides records, more than that: the log and the room for a checkpoint.
    disk = SmallDisk(3 * mib * MIB + 2 * MIB)
    with Rig(path, disk=disk) as rig:
        taken = fill(rig)
        assert taken * 900 > mib * MIB
        if killed:
            rig.abandon()
            rig.store.directory.close()
            # Somebody else takes the rest of the disk before the next start; the threads take nothing any more.
            disk.size_bytes = disk.used_bytes
            rig.open()

        delete_most(rig)
        for _ in range(10):
            keep_house(rig)
        more = fill(rig)

        assert more > taken // 3
        assert rig.look("t").count == taken // TAGS + more
        rig.abandon()
        rig.store.directory.close()
        rig.open()
        assert rig.look("t").count == taken // TAGS + more


def test_while_the_disk_is_full_deletes_acks_and_reads_go_on(tmp_path: Path) -> None:
    disk = SmallDisk(4 * MIB)
    with Rig(tmp_path / "data", disk=disk) as rig:
        taken = fill(rig)
        disk.size_bytes = disk.used_bytes
        with pytest.raises(StorageFull):
            rig.append_body("t", BODY)
        assert rig.delete("t", before_seq=10) == 9
        assert rig.look("t").count == taken - 9
        assert rig.seqs("t", from_seq=9)[0] == 10


def test_what_a_checkpoint_needs_is_there_before_it_is_needed(tmp_path: Path) -> None:
    """At no moment of filling a disk could the next checkpoint fail."""
    disk = SmallDisk(6 * MIB)
    with Rig(tmp_path / "data", disk=disk) as rig:
        for number in range(200):
            try:
                rig.append_body(f"t{number % 7}", BODY)
            except StorageFull:
                break
            limit, disk.size_bytes = disk.size_bytes, disk.used_bytes
            if number % 10 == 9:
                assert rig.store.checkpoint(), number
            disk.size_bytes = limit


def test_a_new_data_directory_takes_less_than_2_mb(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("a", 1)
        rig.append("a", 2)
        assert allocated_bytes(tmp_path) < 2_000_000
        rig.store.checkpoint()
        assert allocated_bytes(tmp_path) < 2_000_000
        rig.close()
        assert allocated_bytes(tmp_path) < 2_000_000


def allocated_bytes(path: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in path.rglob("*") if file.is_file())


# --- a real server on a real file system ---


@pytest.fixture(params=["tmpfs", "ext4"])
def small_file_system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Twelve megabytes, if this process may mount."""
    mount = tmp_path / "mounted"
    mount.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(mount)]
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(16 * MIB)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mkfs.ext4 is not available here")
        command = ["mount", "-o", "loop", str(image), str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount])


@pytest.mark.crash
def test_a_server_recovers_by_deleting_after_a_kill_on_a_disk_that_is_full_to_the_last_byte(
    small_file_system: Path,
) -> None:
    server = ServerProcess(small_file_system / "data").ready()
    taken = fill_by_http(server.client())
    assert taken > 5_000
    with pytest.raises(OSError, match="No space left"):
        write_without_end(small_file_system / "foreign")
    server.kill()
    server = ServerProcess(small_file_system / "data").ready()
    try:
        client = server.client()
        for tag in range(TAGS - 1):
            reply = client.post("/v0/topics/t/delete", {"match": f"t{tag}"})
            assert reply.status == 200, reply
        more = fill_by_http(client)
        assert more > taken // 3
        assert client.state("t")["count"] == taken // TAGS + more
        assert client.get("/v0/ready").status == 200
        assert server.terminate() == 0
    finally:
        server.kill()


def write_without_end(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def fill_by_http(client: Client) -> int:
    """Append until the server has refused for several of its checkpoints; how many records it took."""
    taken = 0
    until_s = time.monotonic() + WAIT_S_MAX
    refused_since_s: float | None = None
    while refused_since_s is None or time.monotonic() - refused_since_s < 5 * FULL_EVERY_MS / 1000:
        reply = client.request(
            "POST", "/v0/topics/t?return_seqs=false", body=BODY, headers={"Content-Type": "application/json"}
        )
        if reply.status < 300:
            taken += RECORDS
            refused_since_s = None
            continue
        assert (reply.status, reply.code) == (507, "storage_full"), reply
        refused_since_s = refused_since_s or time.monotonic()
        assert time.monotonic() < until_s + WAIT_S_MAX
        time.sleep(0.05)
    return taken

"""Appends to several topics when the power fails, the process is killed, or the disk refuses: all or nothing."""

from __future__ import annotations

import errno
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.rig import WAIT_S_MAX
from tests.faults import FaultyDisk, Mode
from tests.multi_append.rig import MultiRig
from tests.serving import Client, ServerProcess
from topics.engine.core.pending import PendingChange
from topics.engine.core.state import NEVER
from topics.model.errors import ReadOnly, StorageFull

# Records of one write in each of the topics.
RECORDS = {"x": 7, "y": 5, "z": 1}
WAL_FILE_BYTES = 64 * 1024


def write(number: int, **fields: Any) -> dict[str, Any]:
    return {topic: {"records": [{"data": number}] * count, **fields} for topic, count in RECORDS.items()}


def check_all_or_nothing(rig: MultiRig, acknowledged: int, begun: int) -> None:
    """Every write is in all topics or in none, none twice, none that was acknowledged is missing."""
    found = {topic: Counter(rig.payloads(topic)) for topic in RECORDS}
    for number in range(1, begun + 1):
        counts = {topic: found[topic][number] for topic in RECORDS}
        assert counts in (RECORDS, dict.fromkeys(RECORDS, 0)), f"write {number} is torn: {counts}"
        assert counts == RECORDS or number > acknowledged
    # A topic is never there without what made it.
    assert len({topic in rig.store.state.by_name for topic in RECORDS}) == 1


def driven(rig: MultiRig, change: PendingChange) -> Iterator[None]:
    yield
    rig.store.commit_log.flush()
    give_up_s = time.monotonic() + WAIT_S_MAX
    while not change.done:
        assert time.monotonic() < give_up_s, "there is no progress"
        yield
        rig.store.settle()
    yield


@pytest.mark.parametrize("mode", ["drop", "torn", "reorder"])
@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_a_power_failure_at_any_step_leaves_a_write_whole_or_absent(
    tmp_path: Path, mode: Mode, durability: str
) -> None:
    disk = FaultyDisk()
    tried = 0
    with MultiRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        for number in range(1, 5):
            if number == 3:
                rig.checkpoint()
            change = rig.begin_all(write(number, config={"durability": durability}), idempotency_key=str(number))
            for step, _ in enumerate(driven(rig, change)):
                if step > 3 and not change.done:
                    # Waiting for the disk looks like this for as long as it takes.
                    continue
                tried += 1
                into = tmp_path / f"after-{tried}"
                after = disk.power_loss(rig.path, into, mode, seed=tried)
                lasting = 0 if durability == "memory" else number if change.done else number - 1
                with MultiRig(into, disk=after, wal_file_bytes=WAL_FILE_BYTES) as found:
                    check_all_or_nothing(found, lasting, number)
                    found.append_all(write(number), idempotency_key=str(number))
                    check_all_or_nothing(found, lasting, number)
                    assert Counter(found.payloads("x"))[number] == RECORDS["x"]
    assert tried >= 8


def test_a_kill_at_any_step_leaves_a_write_whole_or_absent_and_a_retry_adds_it_once(tmp_path: Path) -> None:
    disk = FaultyDisk()
    tried = 0
    with MultiRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        for number in range(1, 5):
            if number == 3:
                rig.checkpoint()
            change = rig.begin_all(write(number), idempotency_key=str(number))
            for _ in driven(rig, change):
                tried += 1
                into = tmp_path / f"after-{tried}"
                after = disk.kill(rig.path, into)
                with MultiRig(into, disk=after, wal_file_bytes=WAL_FILE_BYTES) as found:
                    check_all_or_nothing(found, number if change.done else number - 1, number)
                    found.append_all(write(number), idempotency_key=str(number))
                    check_all_or_nothing(found, number, number)
    assert tried >= 8


def test_a_full_disk_refuses_the_write_whole_and_it_can_be_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with MultiRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        for number in (1, 2):
            disk.fail("pwritev", path=".log", error=errno.ENOSPC)
            with pytest.raises(StorageFull):
                rig.append_all(write(number), idempotency_key=str(number))
            disk.heal()
            check_all_or_nothing(rig, number - 1, number)
            topics = rig.store.state.by_id.values()
            assert all((topic.assigned_seq, topic.pending_count) == (topic.head_seq, 0) for topic in topics)
            assert rig.store.commit_log.pending_bytes == 0
            assert not rig.append_all(write(number), idempotency_key=str(number)).deduped
            check_all_or_nothing(rig, number, number)
        rig.crash()
        check_all_or_nothing(rig, 2, 2)


def test_what_is_still_on_its_way_keeps_its_seqs_when_a_later_write_fails(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with MultiRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        rig.append_all(write(1, config={"durability": "fsync"}))
        waiting = rig.begin_all(write(2))
        rig.store.commit_log.flush()
        disk.fail("pwritev", path=".log", error=errno.ENOSPC)
        failed = rig.begin_all(write(3))
        rig.store.commit_log.flush()
        assert isinstance(failed.error, StorageFull)
        topic = rig.store.state.by_name["x"]
        assert (topic.assigned_seq, topic.pending_count) == (14, 7)
        disk.heal()
        rig.finish(waiting)
        rig.append_all(write(3))
        check_all_or_nothing(rig, 3, 3)
        assert rig.seqs("x") == list(range(1, 22))


def test_a_failed_sync_acknowledges_nothing_and_shows_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with MultiRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        disk.fail("fdatasync", times=-1)
        with pytest.raises(ReadOnly):
            rig.append_all(write(1, config={"durability": "fsync"}))
        assert not rig.store.state.by_name
        after = disk.power_loss(rig.path, tmp_path / "after", "drop")
    with MultiRig(tmp_path / "after", disk=after, wal_file_bytes=WAL_FILE_BYTES) as rig:
        check_all_or_nothing(rig, 0, 1)


@pytest.mark.parametrize("late", range(0, 12, 2))
def test_a_checkpoint_at_any_moment_agrees_with_the_log(tmp_path: Path, late: int) -> None:
    with MultiRig(tmp_path / "data", wal_file_bytes=WAL_FILE_BYTES) as rig:
        rig.append_all({topic: [0] for topic in RECORDS if topic != "z"})
        checkpoint = rig.store._checkpointer.steps()
        for _ in range(late):
            next(checkpoint, None)
        rig.append_all(write(1), idempotency_key="k")
        for _ in checkpoint:
            rig.store.settle()
        rig.append_all(write(2))
        rig.crash()
        check_all_or_nothing(rig, 2, 2)
        assert rig.append_all(write(1), idempotency_key="k").deduped
        rig.reopen()
        check_all_or_nothing(rig, 2, 2)


def test_a_write_between_the_mark_of_a_checkpoint_and_its_captures_is_in_the_log_alone(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with MultiRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        # The last of the topics is made by the write itself.
        rig.append_all({"x": [0], "y": [0]})
        gate = disk.hold("fdatasync", path=".log")
        checkpoint = rig.store._checkpointer.steps()
        while rig.store.state.capture_from == NEVER:
            next(checkpoint)
            rig.store.worker.poll()
        rig.append_all(write(1), idempotency_key="k")
        gate.open()
        for _ in checkpoint:
            rig.store.settle()
        rig.crash()
        check_all_or_nothing(rig, 1, 1)
        assert rig.seqs("x") == list(range(1, 9))
        assert rig.store.state.names == ["x", "y", "z"]
        assert rig.append_all(write(1), idempotency_key="k").deduped


# --- a server killed in the middle ---

ROUNDS = 3
KILL_S_MAX = 1.0


class Writer:
    """Appends one write after the other, and repeats with the same key what was not answered."""

    def __init__(self) -> None:
        self.acknowledged = 0

    def run(self, client: Client) -> None:
        try:
            while True:
                number = self.acknowledged + 1
                reply = client.post("/v0/append", {"topics": write(number), "idempotency_key": str(number)})
                assert reply.status in (200, 201), reply.body
                self.acknowledged = number
        except (OSError, http.client.HTTPException, ValueError):
            return


def counted(client: Client, topic: str) -> Counter[int]:
    found: Counter[int] = Counter()
    cursor = 0
    while client.get(f"/v0/topics/{topic}").status == 200:
        diff = client.diff(topic, from_seq=cursor, limit=1_000)
        found.update(record["data"] for record in diff["records"])
        cursor = diff["next_from_seq"]
        if diff["caught_up"]:
            break
    return found


@pytest.mark.crash
def test_a_server_killed_again_and_again_has_every_write_whole_and_once(tmp_path: Path) -> None:
    rng = random.Random(11)
    writer = Writer()
    settings = {"checkpoint_bytes": 100_000, "wal_file_bytes": 256 * 1024}
    for last in [False] * ROUNDS + [True]:
        server = ServerProcess(tmp_path / "data", **settings).ready()
        client = server.client()
        found = {topic: counted(client, topic) for topic in RECORDS}
        whole = max(writer.acknowledged, *(max(counts, default=0) for counts in found.values()))
        assert whole <= writer.acknowledged + 1
        for topic, count in RECORDS.items():
            assert found[topic] == dict.fromkeys(range(1, whole + 1), count)
        if last:
            assert writer.acknowledged > 0
            server.terminate()
            break
        writing = threading.Thread(target=writer.run, args=(server.client(),))
        writing.start()
        wanted = writer.acknowledged + 1
        while writing.is_alive() and writer.acknowledged < wanted:
            writing.join(0.001)
        writing.join(rng.uniform(0.0, KILL_S_MAX))
        server.process.kill()
        writing.join()
        server.exit_code()

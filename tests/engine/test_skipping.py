"""Seqs that are skipped: nothing goes on before the topics are above them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bucket.interrupted import shipping_of
from tests.engine.rig import Rig
from tests.faults import FaultyDisk, SmallDisk
from topics.engine.log.retention import Hole
from topics.engine.log.topic import SEQ_CHUNK, STAGING, Topic
from topics.engine.opening.loss_estimates import nothing
from topics.engine.opening.skipping import LOGGED, SEQS_PER_S_MAX, seqs_since
from topics.model.errors import NotPrimary, StorageFull, TopicsError
from topics.model.requests.config import Durability, TopicConfig
from topics.storage.bucket.terms import TakenOver
from topics.storage.steps import at_once


def test_a_lease_in_doubt_delays_what_is_skipped_and_what_comes_after(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", 1)
        store = rig.store
        answers = iter([False] * 5)
        store.commit_log.may_answer = lambda: next(answers, True)
        at_once(store.skipping.skip(frozenset(), nothing, 1000))
        assert rig.append("t", 2).first_seq > 1000


def test_a_start_that_was_taken_over_meanwhile_ends(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with Rig(tmp_path / "data", bucket=f"file://{bucket}") as rig:
        rig.append("t", 1)
        store = rig.store
        store.commit_log.may_answer = lambda: False
        shipping_of(rig).fenced = TakenOver("another server is primary")
        with pytest.raises(NotPrimary):
            at_once(store.skipping.skip(frozenset(), nothing, 1000))
        rig.close()


CLASSES: tuple[Durability, ...] = ("memory", "disk", "fsync")


def with_topics(rig: Rig) -> dict[str, Topic]:
    """One of each class, with two records."""
    for durability in CLASSES:
        rig.configure(durability, durability=durability)
        rig.append(durability, 1, 2)
    return {durability: rig.store.state.by_name[durability] for durability in CLASSES}


def test_topics_go_on_above_all_that_may_have_been_seen(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        topics = with_topics(rig)
        for topic in topics.values():
            topic.ceiling, topic.chunk = 50, 1
        at_once(rig.store.skipping.skip(frozenset(("memory",)), lambda _: 3))
        assert {name: topic.head_seq for name, topic in topics.items()} == {
            "memory": 2,
            "disk": 50,
            "fsync": 2 + SEQ_CHUNK,
        }
        assert topics["disk"].holes == [Hole(3, 50, "lost", 3)]
        assert (topics["disk"].ceiling, topics["disk"].chunk) == (51, SEQ_CHUNK)
        at_once(rig.store.skipping.skip(frozenset(("disk", "fsync")), lambda _: 10**9, 70))
        assert (topics["memory"].head_seq, topics["memory"].holes) == (72, [Hole(3, 72, "lost", 70)])
        at_once(rig.store.skipping.skip(LOGGED, lambda _: 3, 1000))
        assert topics["memory"].head_seq == 72
        rig.crash()
        assert rig.look("disk").head_seq == 50, "it is in the log"


def test_a_topic_that_was_seen_up_to_its_head_skips_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        topic = with_topics(rig)["disk"]
        topic.ceiling = 2
        at_once(rig.store.skipping.skip(frozenset(), nothing))
        assert topic.head_seq == 2


def test_topics_that_no_reader_sees_skip_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        hidden = Topic(77, STAGING + "1", 1, TopicConfig(), 0)
        rig.store.state.add(hidden)
        at_once(rig.store.skipping.skip(frozenset(), nothing, 1000))
        assert hidden.head_seq == 0


@pytest.mark.parametrize("in_bucket", [False, True])
def test_a_copy_skips_what_its_original_may_have_assigned_since(tmp_path: Path, in_bucket: bool) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with Rig(tmp_path / "data", bucket=f"file://{bucket}") as rig:
        rig.configure("r", durability="replicated")
        rig.append("r", 1)
        rig.append("t", 1, 2)
        now_ms = rig.clock.now_ms()
        seqs = at_once(rig.store.skipping.since(now_ms - 5000, in_bucket=in_bucket))
        assert seqs == seqs_since(now_ms - 5000, now_ms) == 65 * SEQS_PER_S_MAX
        assert rig.look("t").head_seq == 2 + seqs
        assert rig.store.state.by_name["t"].holes == [Hole(3, 2 + seqs, "lost", 2)]
        assert rig.look("r").head_seq == (1 if in_bucket else 1 + seqs)


def test_a_note_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with Rig(tmp_path / "data", disk=disk) as rig:
        rig.append("t", 1)
        disk.fail("pwritev", path=".log")
        with pytest.raises(TopicsError):
            at_once(rig.store.skipping.skip(frozenset(), nothing, 1000))
        disk.heal()
        assert rig.look("t").head_seq == 1


def test_what_is_skipped_is_written_a_few_topics_at_a_time_and_synced(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        for number in range(200):
            rig.append(f"t{number}", 1)
        wal = rig.store.wal
        steps = rig.store.skipping.skip(frozenset(), nothing, 1000)
        waiting = [wal.buffered_to - wal.written_to for _ in steps]
        assert 3000 < max(waiting) < 4096
        assert wal.synced_to == wal.written_to


def test_seqs_are_skipped_in_the_space_that_is_kept_for_that(tmp_path: Path) -> None:
    disk = SmallDisk(1 << 30)
    with Rig(tmp_path / "data", disk=disk, wal_file_bytes=4096) as rig:
        for number in range(40):
            rig.append(f"t{number}", 1)
        rig.append("t", 1)
        disk.size_bytes = disk.used_bytes
        with pytest.raises(StorageFull):
            fill(rig)
        head_seq = rig.look("t").head_seq
        at_once(rig.store.skipping.skip(frozenset(), nothing))
        assert rig.look("t").head_seq > head_seq
        disk.size_bytes = 1 << 30


def fill(rig: Rig) -> None:
    for _ in range(20):
        rig.append("t", "x" * 1000)

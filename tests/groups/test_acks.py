"""What an ack covers: everything up to its offset, or just its range; where a group begins; state of version 0.1."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.groups.consumers import Partition
from topics.engine.log.seq_ranges import SeqRange

VISIBLE_MS = 60_000
DATA = Path(__file__).parent / "data"


@pytest.fixture
def partition(rig: Rig) -> Partition:
    rig.append("t", *range(12))
    return Partition(rig, "t", VISIBLE_MS)


# --- everything up to an offset ---


@pytest.mark.parametrize("expired", [False, True])
def test_an_ack_covers_the_batches_below_open_or_run_out(rig: Rig, partition: Partition, expired: bool) -> None:
    assert partition.consume(limit=5) == [0, 1, 2, 3, 4]
    assert partition.consume(limit=6) == [5, 6, 7, 8, 9, 10]
    if expired:
        rig.clock.advance(VISIBLE_MS)
    assert partition.ack(10) == (11, [])
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume() == [11]


def test_the_answer_is_what_is_committed_now(partition: Partition) -> None:
    partition.consume()
    assert [partition.ack(offset).committed - 1 for offset in (4, 1, 7, 7, 3, 10**6)] == [4, 4, 7, 7, 7, 11]


def test_what_was_acked_ahead_joins_an_ack_that_reaches_it(partition: Partition) -> None:
    for _ in range(4):
        partition.consume(limit=3)
    partition.ack(8, since=6)
    assert partition.ack(5).committed == 9
    assert partition.ack(11, since=9).committed == 12


def test_an_ack_leaves_the_claims_above_alone(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=3)
    partition.consume(limit=3)
    partition.ack(2)
    assert partition.consume() == [6, 7, 8, 9, 10, 11]
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=3) == [3, 4, 5]


def test_a_first_ack_below_where_the_group_began_is_taken_as_said(partition: Partition) -> None:
    assert partition.consume(start={"Offset": 8}, limit=2) == [8, 9]
    assert partition.ack(5).committed == 6
    assert partition.consume() == [6, 7]


# --- ranges ---


def test_a_group_that_began_in_the_middle_commits_from_there(partition: Partition) -> None:
    assert partition.consume(start={"Offset": 6}, limit=2) == [6, 7]
    assert partition.consume(start={"Offset": 6}, limit=2) == [8, 9]
    acked = partition.ack(9, since=8)
    assert acked == (6, [SeqRange(7, 8)]), "what lies before the group's work does not hold it back"
    assert partition.ack(7, since=6).committed == 10
    assert partition.consume(start="Earliest") == [10, 11]


def test_a_range_for_a_group_that_never_began_does_not_begin_it(partition: Partition) -> None:
    assert partition.ack(7, since=5).committed < 0
    assert partition.consume(start="Earliest") == [0, 1, 2, 3, 4]
    assert partition.ack(4, since=0).committed == 8
    assert partition.consume() == [8, 9, 10, 11]


def test_dead_records_below_a_range_do_not_hold_it_back(rig: Rig, partition: Partition) -> None:
    rig.delete("t", before_seq=4)
    assert partition.consume(limit=3) == [3, 4, 5]
    assert partition.ack(5, since=3).committed == 6


def test_dead_records_between_two_consumers_do_not_hold_the_group_back(rig: Rig) -> None:
    rig.append("t", *({"data": number, "tag": f"n{number}"} for number in range(6)))
    partition = Partition(rig, "t", VISIBLE_MS)
    for tag in ("n2", "n3"):
        rig.delete("t", match=["tag", "Eq", tag])
    assert partition.consume(limit=2) == [0, 1]
    assert partition.consume() == [4, 5]
    assert partition.ack(5, since=4) == (0, [SeqRange(1, 2)])
    assert partition.ack(1, since=0).committed == 6


def test_a_dead_batch_does_not_take_a_group_back_to_the_beginning(rig: Rig, partition: Partition) -> None:
    """The group began at the end; what it was handed was deleted before it was acked."""
    assert partition.consume(start={"Offset": 10}) == [10, 11]
    rig.delete("t", before_seq=13)
    rig.append("t", "new")
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(start="Latest") == []
    assert partition.consume(start="Latest") == [12]


# --- the first Latest ---


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("restart", [None, Rig.reopen, Rig.crash])
def test_what_is_appended_between_two_polls_at_the_end_arrives(
    rig: Rig, partition: Partition, restart, checkpoint: bool
) -> None:
    assert (partition.consume(start="Latest"), partition.next_offset) == ([], 12)
    if checkpoint:
        rig.checkpoint()
    if restart is not None:
        restart(rig)
        partition.opened()
    rig.append("t", "a", "b")
    assert partition.consume(start="Latest", limit=1) == [12]
    rig.append("t", "c")
    assert partition.consume(start="Latest") == [13, 14]
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(start="Latest") == [12, 13, 14]
    assert partition.ack(14, since=12).committed == 15


def test_another_start_still_decides_before_the_first_commit(partition: Partition) -> None:
    assert partition.consume(start="Latest") == []
    assert partition.consume(start={"Offset": 9}, limit=1) == [9]
    assert partition.consume(start="Earliest", limit=2) == [0, 1]
    assert partition.consume(start="Latest") == []
    assert partition.next_offset == 12


def test_a_group_that_has_not_committed_lags_by_what_came_since(rig: Rig, partition: Partition) -> None:
    partition.consume(start="Latest")
    rig.append("t", "a", "b")
    (standing,) = rig.drive(partition.consuming.standings(10, lambda *_: True))
    assert (standing.committed, standing.position, standing.lag) == (-1, 12, 2)


def test_a_forgotten_group_begins_anew(rig: Rig, partition: Partition) -> None:
    partition.consume(start="Latest")
    rig.append("t", "a")
    rig.finish(partition.consuming.forget(partition.consuming.topic("t"), "g"))
    assert (partition.consume(start="Latest"), partition.next_offset) == ([], 13)


# --- data directories of version 0.1 ---


@pytest.fixture(params=["log", "checkpoint"])
def old(request: pytest.FixtureRequest, tmp_path: Path, open_rig: OpenRig) -> Rig:
    """Three topics with offsets 0 to 9 each. In all of them the claims end a minute after the clock's beginning.

    held: claims 0–2 and 3–5, 5 acked (which 0.1 held back). fresh: claim 0–3. late: claims 6–7 and 8–9 from Offset 6.
    """
    with tarfile.open(DATA / f"groups-0.1-{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "data").rename(tmp_path / "data0")
    return open_rig()


def test_a_batch_that_0_1_held_back_is_delivered_and_joins_what_was_acked(old: Rig) -> None:
    held = Partition(old, "held", VISIBLE_MS)
    assert held.consume(start="Latest") == [6, 7, 8, 9]
    assert held.committed() is None
    old.clock.advance(VISIBLE_MS)
    assert held.consume(limit=3) == [0, 1, 2]
    assert held.ack(2, since=0).committed == 6


def test_a_cumulative_ack_frees_a_group_that_0_1_held_back(old: Rig) -> None:
    held = Partition(old, "held", VISIBLE_MS)
    assert held.ack(5).committed == 6
    assert held.consume() == [6, 7, 8, 9]


def test_open_claims_of_0_1_end_in_their_time(old: Rig) -> None:
    fresh = Partition(old, "fresh", VISIBLE_MS)
    assert fresh.consume(limit=2) == [4, 5]
    old.clock.advance(VISIBLE_MS)
    assert fresh.consume(limit=4, start="Latest") == [0, 1, 2, 3]
    assert fresh.ack(3, since=0).committed == 4


def test_a_group_of_0_1_that_began_in_the_middle_commits_from_there(old: Rig) -> None:
    late = Partition(old, "late", VISIBLE_MS)
    assert late.ack(9, since=8) == (6, [SeqRange(7, 8)])
    old.reopen()
    late.opened()
    assert late.ack(7, since=6).committed == 10

"""Pending changes: a verb that depends on one waits for it, and decides on the state after it."""

from __future__ import annotations

import pytest

from tests.decoders import delete_decoder
from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.engine.test_append import request
from tests.faults import FaultyDisk, Gate
from topics.engine.core.pending import Busy
from topics.model.errors import StorageError, TopicNotFound
from topics.model.requests.config import ConfigRequest
from topics.model.requests.records import decode_body


@pytest.fixture
def held(open_rig: OpenRig) -> tuple[Rig, FaultyDisk, Gate]:
    """A store whose log cannot be synced until the gate is opened; topic "a" has one record."""
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    rig.append("a", 1)
    return rig, disk, disk.hold("fdatasync", path=".log")


Held = tuple[Rig, FaultyDisk, Gate]


def test_a_topic_on_its_way_is_not_there_yet_and_not_made_twice(held: Held) -> None:
    rig, _, gate = held
    first = rig.engine.configure("new", ConfigRequest(ttl_ms=5))
    rig.store.commit_log.flush()
    with pytest.raises(TopicNotFound):
        rig.engine.look("new")
    for verb in (
        lambda: rig.engine.configure("new", ConfigRequest()),
        lambda: rig.engine.append("new", request(1)),
        lambda: rig.engine.drop("new"),
    ):
        with pytest.raises(Busy):
            verb()
    gate.open()
    rig.finish(first)
    again = rig.configure("new", ttl_ms=5)
    assert not again.created
    assert rig.append("new", 1).first_seq == 1


def test_a_dropped_topic_is_readable_until_the_drop_is_durable(held: Held) -> None:
    rig, _, gate = held
    dropped = rig.engine.drop("a")
    rig.store.commit_log.flush()
    assert rig.seqs("a") == [1]
    with pytest.raises(Busy):
        rig.engine.append("a", request(2))
    gate.open()
    rig.finish(dropped)
    assert rig.append("a", 2).first_seq == 1


def test_a_write_after_a_change_of_configuration_obeys_the_new_one(held: Held) -> None:
    rig, _, gate = held
    changed = rig.engine.configure("a", ConfigRequest(cap_records=2))
    rig.store.commit_log.flush()
    with pytest.raises(Busy):
        rig.engine.append("a", request(2, 3))
    gate.open()
    rig.finish(changed)
    rig.append("a", 2, 3)
    assert rig.seqs("a") == [2, 3]


def test_deletes_and_appends_of_one_topic_are_published_in_the_order_they_were_staged(held: Held) -> None:
    rig, _, gate = held
    change = [rig.engine.append("a", request(2))]
    with pytest.raises(StopIteration) as end:
        next(rig.engine.delete("a", decode_body(delete_decoder, b'{"before_seq":100}')))
    change += [end.value.value, rig.engine.append("a", request(3))]
    rig.store.commit_log.flush()
    seen: list[int] = []
    for number, one in enumerate(change):
        one.then(lambda _, number=number: seen.append(number))
    gate.open()
    for one in change:
        rig.finish(one)
    assert seen == [0, 1, 2]
    assert rig.seqs("a") == [2, 3]


def test_a_callback_added_late_runs_at_once(rig: Rig) -> None:
    change = rig.append("a", 1)
    seen: list[bool] = []
    change.then(lambda done: seen.append(done.done))
    assert seen == [True]


def test_a_topic_whose_creation_failed_may_be_made_again(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.append("other", 1)
    disk.fail("pwritev", path=".log")
    failed = rig.engine.append("new", request(1))
    rig.store.commit_log.flush()
    assert isinstance(failed.error, StorageError)
    with pytest.raises(TopicNotFound):
        rig.look("new")
    made = rig.append("new", "good", config={"ttl_ms": 9})
    assert (made.created, made.first_seq) == (True, 1)
    rig.disk = FaultyDisk()
    rig.crash()
    assert [record["data"] for record in rig.records("new")] == ["good"]
    assert rig.look("new").config.ttl_ms == 9


def test_a_topic_whose_drop_failed_is_still_there(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.append("a", 1)
    disk.fail("pwritev", path=".log")
    dropped = rig.engine.drop("a")
    rig.store.commit_log.flush()
    assert isinstance(dropped.error, StorageError)
    assert rig.seqs("a") == [1]
    assert rig.append("a", 2).first_seq == 2
    assert rig.drop("a") is True


def test_a_configuration_whose_write_failed_did_not_happen(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.append("a", *range(5))
    disk.fail("pwritev", path=".log")
    changed = rig.engine.configure("a", ConfigRequest(cap_records=1))
    rig.store.commit_log.flush()
    assert isinstance(changed.error, StorageError)
    assert rig.look("a").config.cap_records == 0
    assert rig.seqs("a") == [1, 2, 3, 4, 5]
    assert rig.configure("a", cap_records=1).result.cap_records == 1


def test_a_reservation_of_seqs_that_failed_is_made_again(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk, max_batch_records=100_000)
    rig.append("a", *[0] * 30_000)
    disk.fail("pwritev", path=".log")
    with pytest.raises(StorageError):
        rig.append("a", *[0] * 30_000)
    for _ in range(4):
        rig.append("a", *[0] * 30_000)
    topic = rig.store.state.by_name["a"]
    assert topic.head_seq == 150_000 <= topic.ceiling

"""Every feature on a `replicated` topic: answered when the bucket has it, and known to the server that takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.bucket.interrupted import Interrupted, end_thread, nothing
from tests.patience import PATIENCE_S
from topics.client.values import Tombstone
from topics.embedded import Database
from topics.model.settings import Settings


class Gate:
    """Holds up the pieces of the log until it is opened; `reached` tells that one has come."""

    def __init__(self, bucket: Interrupted) -> None:
        self._bucket = bucket
        self.reached, self._open = threading.Event(), threading.Event()
        bucket.before = self._wait

    def _wait(self, key: str) -> None:
        if key.startswith("log/"):
            self.reached.set()
            assert self._open.wait(PATIENCE_S)

    def open(self) -> None:
        self._bucket.before = nothing
        self._open.set()


@pytest.fixture
def database(tmp_path: Path, interrupted: Interrupted) -> Iterator[Database]:
    settings = Settings(bucket=f"file://{tmp_path}/bucket", bucket_piece_ms=1, bucket_lease_ms=600_000)
    with topics.open(str(tmp_path / "a"), settings=settings) as database:
        database.create("r", durability="replicated")
        database.create("q", type="queue", durability="replicated", dead_letter="dead", max_deliveries=1)
        yield database
        interrupted.before = nothing


def payloads(database: Database, topic: str) -> list[Any]:
    found = list(database.read(topic))
    assert not any(isinstance(record, Tombstone) for record in found)
    return [record.data for record in found if not isinstance(record, Tombstone)]


class Verb(threading.Thread):
    """A call that blocks."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.result: Any = None
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.failure = error


def answered_with_the_bucket(bucket: Interrupted, database: Database, call: Callable[[], Any]) -> Any:
    """The result of a call that ends when the bucket has taken its piece, and not before."""
    until_shipped(database)
    gate = Gate(bucket)
    verb = Verb(call)
    try:
        assert gate.reached.wait(PATIENCE_S)
        assert verb.is_alive()
    finally:
        gate.open()
    verb.join(PATIENCE_S)
    assert not verb.is_alive()
    if verb.failure is not None:
        raise verb.failure
    return verb.result


def until_shipped(database: Database) -> None:
    shipping = database._host.store.shipping
    assert shipping is not None
    assert database._host.wait_until(lambda: not shipping.status.lag_bytes, PATIENCE_S)


def test_an_append_and_a_delete(database: Database, interrupted: Interrupted) -> None:
    answered_with_the_bucket(interrupted, database, lambda: database.append("r", 1))
    assert answered_with_the_bucket(interrupted, database, lambda: database.delete("r", before_seq=2)) == 1
    assert payloads(database, "r") == []


def test_an_ack_and_a_dead_letter(database: Database, interrupted: Interrupted) -> None:
    database.append("q", "done")
    database.append("q", "failed")
    done, failed = database.claim("q", node="w", max=2)
    answered_with_the_bucket(interrupted, database, lambda: database.ack("q", [done], node="w"))
    database.nack("q", [failed], node="w")
    assert database.claim("q", node="w") == []
    state = database._host.engine.state
    assert database._host.wait_until(lambda: "dead" in state.by_name and state.by_name["dead"].head_seq, PATIENCE_S)
    assert database.state("dead").config.durability == "replicated"
    assert payloads(database, "dead") == ["failed"]


def test_an_append_to_several_topics(database: Database, interrupted: Interrupted) -> None:
    database.create("d")
    answered_with_the_bucket(interrupted, database, lambda: database.append_all({"r": [1], "d": [2]}))
    assert (payloads(database, "r"), payloads(database, "d")) == ([1], [2])


def test_an_offset_of_a_group(database: Database, interrupted: Interrupted) -> None:
    database.append("r", 1)
    batch = database.consume("r", "g", start="Earliest")
    assert len(batch.messages) == 1
    done = answered_with_the_bucket(interrupted, database, lambda: database.commit("r", "g", 0))
    assert done.acknowledged_offset == 0


def test_a_transaction(database: Database, interrupted: Interrupted) -> None:
    database.create("d")
    for name in ("r", "d"):
        database.stage("app", 1, name, 0, [name], topic=name)
    committed = answered_with_the_bucket(interrupted, database, lambda: database.commit_txn("app", 1, ["r", "d"]))
    assert committed.deduped is False
    assert (payloads(database, "r"), payloads(database, "d")) == (["r"], ["d"])


def test_a_schedule(database: Database, interrupted: Interrupted) -> None:
    database.put_schedule("s", "r", every_ms=3_600_000, data="due")
    answered_with_the_bucket(interrupted, database, lambda: database.run_schedule("s"))
    assert payloads(database, "r") == ["due"]


def test_copies_of_a_router(database: Database, interrupted: Interrupted) -> None:
    database.route("copies", "s", "r")
    until_shipped(database)
    gate = Gate(interrupted)
    database.append("s", 1)
    assert gate.reached.wait(PATIENCE_S)
    assert payloads(database, "s") == [1]
    assert payloads(database, "r") == []
    gate.open()
    assert database._host.wait_until(lambda: database._host.engine.state.by_name["r"].head_seq == 1, PATIENCE_S)


def test_a_server_that_takes_over_has_all_of_it(database: Database, interrupted: Interrupted, tmp_path: Path) -> None:
    database.append("q", "acked")
    database.append("q", "waits")
    database.ack("q", database.claim("q", node="w"), node="w")
    database.append("r", 1, idempotency_key="k")
    database.consume("r", "g", start="Earliest")
    database.commit("r", "g", 0)
    database.stage("app", 1, "stage", 0, [2], topic="r")
    database.commit_txn("app", 1, ["stage"])
    # Nothing more of it arrives: what it has acknowledged must be there.
    shipping = database._host.store.shipping
    assert shipping is not None
    interrupted.before = end_thread
    with shipping._changed:
        shipping._renew_at_s = 0.0
        shipping._changed.notify()
    shipping._thread.join(PATIENCE_S)
    interrupted.before = nothing
    (tmp_path / "bucket" / "primary").unlink()
    settings = Settings(bucket=f"file://{tmp_path}/bucket", bucket_piece_ms=1, bucket_lease_ms=600_000)
    with topics.open(str(tmp_path / "b"), settings=settings) as elsewhere:
        assert payloads(elsewhere, "r") == [1, 2]
        assert elsewhere.append("r", 1, idempotency_key="k").deduped
        assert [job.data for job in elsewhere.claim("q", max=5)] == ["waits"]
        assert [message.offset for message in elsewhere.consume("r", "g").messages] == [1]
        assert elsewhere.commit_txn("app", 1, ["stage"]).deduped
        assert elsewhere.append("r", 3).seqs == [3]

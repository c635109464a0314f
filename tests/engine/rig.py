"""A store driven by hand: verbs run to their end in the test's own thread, and a crash is a copy of the directory."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from tests.decoders import config_decoder, delete_decoder, diff_decoder
from tests.faults import QuickDisk
from tests.patience import PATIENCE_S
from topics.engine.core.configuration import Edit
from topics.engine.core.listing import TopicState
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.deadlines import PolledTimers
from topics.engine.core.waiting.runner import Steps, Wait
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.reading import Diff
from topics.engine.opening.store import Store
from topics.model.clock import ManualClock
from topics.model.requests.config import ConfigPatch
from topics.model.requests.records import append_decoder, decode_body
from topics.model.settings import Settings
from topics.storage.disk import Disk

WAIT_S_MAX = PATIENCE_S
# Not everything that a test waits for has an event.
NEWS_S_MAX = 0.01
T = TypeVar("T")


class Outcome(Generic[T]):
    """The owner of steps that a test drives."""

    def __init__(self) -> None:
        self.wanted = True
        self.values: list[T] = []
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        return bool(self.values) or self.error is not None

    def done(self, result: T) -> None:
        self.values.append(result)

    def failed(self, error: Exception) -> None:
        self.error = error

    def cancelled(self) -> None: ...


class Rig:
    """One data directory, opened and reopened; every call returns only when it is done."""

    def __init__(self, path: Path, *, disk: Disk | None = None, clock: ManualClock | None = None, **settings: Any):
        self.path = path
        self.clock = clock or ManualClock()
        self.disk = disk
        self.settings = Settings(**settings)
        self.generation = 0
        # Whether a sync that is out counts as stalled: the test decides, not how long the machine takes for it.
        self.syncs_stall = False
        self.news = threading.Event()
        self.open()

    def open(self) -> None:
        self.store = Store(
            str(self.path), self.settings, clock=self.clock, disk=self.disk or QuickDisk(), notify=self.news.set
        )
        self.progress = list(self.store.opening())
        self.engine = self.store.engine
        self.store.wal._clock = lambda: math.inf if self.syncs_stall else 0.0

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def crash(self) -> None:
        """What a kill leaves: the files as they are at this moment, opened by a new process."""
        self.generation += 1
        left = self.path.with_name(f"{self.path.name.split('~')[0]}~{self.generation}")
        # The threads first: a copy of a file that they unlink meanwhile would not be a possible crash.
        self.abandon()
        shutil.copytree(self.path, left)
        self.path = left
        self.open()

    def abandon(self) -> None:
        self.store.syncer.stop()
        self.store.worker.stop()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    # --- verbs, from request bytes ---

    def append(self, topic: str, *payloads: Any, **fields: Any) -> PendingChange:
        """Payloads are bytes of JSON, or objects; a dict with "data" is a whole record."""
        records = [payload if _is_record(payload) else {"data": _raw(payload)} for payload in payloads]
        body = msgspec.json.encode({"records": records, **fields})
        request = decode_body(append_decoder, body)
        return self._commit(lambda: self.engine.append(topic, request))

    def append_body(self, topic: str, body: bytes) -> PendingChange:
        request = decode_body(append_decoder, body)
        return self._commit(lambda: self.engine.append(topic, request))

    def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> Diff:
        request = decode_body(diff_decoder, msgspec.json.encode({"from_seq": from_seq, **fields}))
        return self._run(lambda: self.engine.diff(topic, request))

    def records(self, topic: str, from_seq: int = 0, **fields: Any) -> list[dict[str, Any]]:
        """All records after a cursor, over as many reads as it takes."""
        found: list[dict[str, Any]] = []
        while True:
            diff = self.diff(topic, from_seq, **fields)
            found += msgspec.json.decode(b"[%b]" % diff.records())
            if diff.caught_up:
                return found
            assert diff.next_from_seq > from_seq or from_seq > diff.head_seq, "a read makes progress"
            from_seq = diff.next_from_seq

    def seqs(self, topic: str, from_seq: int = 0, **fields: Any) -> list[int]:
        return [record["$seq"] for record in self.records(topic, from_seq, **fields)]

    def delete(self, topic: str, **fields: Any) -> int:
        request = decode_body(delete_decoder, msgspec.json.encode(fields))
        return self.finish(self.drive(self.engine.delete(topic, request))).result[0]

    def configure(self, topic: str, **fields: Any) -> PendingChange:
        request = decode_body(config_decoder, msgspec.json.encode(fields))
        return self._commit(lambda: self.engine.configure(topic, request))

    def edit(self, topic: str, *, dry_run: bool = False, **fields: Any) -> Edit:
        patch = msgspec.convert(fields, ConfigPatch)
        return self._commit(lambda: self.engine.configuration.edit(topic, patch, dry_run=dry_run)).result

    def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        return self._commit(lambda: self.engine.drop(topic, if_empty=if_empty)).result

    def look(self, topic: str) -> TopicState:
        return self._run(lambda: self.engine.look(topic, touch=False))

    def checkpoint(self) -> None:
        assert self.store.checkpoint()

    # --- running ---

    def _run(self, verb: Any) -> Any:
        while True:
            try:
                return verb()
            except Busy as busy:
                self.finish(busy.change)
            except ColdMiss as miss:
                self.fetch(miss)

    def _commit(self, verb: Any) -> PendingChange:
        return self.finish(self._run(verb))

    def drive(self, steps: Steps[T]) -> T:
        """Run steps to their end, settling whenever the threads of the store have news."""
        outcome: Outcome[T] = Outcome()
        self.store.runner.start(steps, outcome)
        give_up_s = time.monotonic() + WAIT_S_MAX
        self.store.flush()
        while not outcome.over:
            assert time.monotonic() < give_up_s, "there is no progress"
            self.news.wait(NEWS_S_MAX)
            self.news.clear()
            self.store.settle()
            self.store.flush()
        if outcome.error is not None:
            raise outcome.error
        return outcome.values[0]

    def work(self) -> bool:
        """One step of each task in the background; whether one can continue at once."""
        assert isinstance(self.store.timers, PolledTimers)
        self.store.timers.poll()
        self.store.background.run(math.inf)
        self.store.commit_log.flush()
        return self.store.background.pending

    def fetch(self, miss: Wait) -> None:
        """Read what a verb missed; None is only a pause."""
        if miss is None:
            return
        assert isinstance(miss, ColdMiss)
        cold = self.store.state.cold
        cold.take(miss, cold.read(miss))

    def wait_until(self, is_so: Callable[[], object]) -> None:
        """Settle whenever the threads of the store have news, until it is so."""
        give_up_s = time.monotonic() + WAIT_S_MAX
        while not is_so():
            assert time.monotonic() < give_up_s, "the threads of the store have no news"
            self.news.wait(NEWS_S_MAX)
            self.news.clear()
            self.store.settle()

    def finish(self, change: PendingChange) -> PendingChange:
        self.store.commit_log.flush()
        self.wait_until(lambda: change.done)
        if change.error is not None:
            raise change.error
        return change


def _is_record(payload: Any) -> bool:
    return isinstance(payload, dict) and "data" in payload


def _raw(payload: Any) -> Any:
    return Raw(payload) if isinstance(payload, bytes) else payload

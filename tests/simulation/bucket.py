"""The simulated bucket: its objects, requests on their way to it and answers on their way back, and what goes wrong.

    process: ask ─▶ there, for a while ─▶ the store carries it out ─▶ back, for a while ─▶ answer
                    │ lost, or very late    │ the term's owner?        │ lost
                    └───────────────────────┴──────────────────────────┴─▶ Unreachable, after a time

A request that is on its way arrives whatever becomes of its sender: it may have been killed since, or replaced.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from tests.simulation.scheduler import Fiber, Killed, Process, Scheduler
from tests.simulation.substitutes import SURROUNDINGS, WALL_START_S
from topics.engine.opening import bucket_side
from topics.storage.bucket.bucket import (
    BucketError,
    Changed,
    Exists,
    Found,
    Listed,
    ObjectBucket,
    Refused,
    Unreachable,
)
from topics.storage.bucket.lease import Primary
from topics.storage.bucket.shipping import ShippingPace
from topics.storage.bucket.slots import PRIMARY, LogPiece, TermClosing, decode_slot, parse_slot_key
from topics.storage.bucket.starting import connecting
from topics.storage.disk import Buffer, Disk, write_all

Trouble = Literal["lost", "unanswered", "refused"]

# How long a request is waited for, and how late one that nobody waits for any more may arrive.
TIMEOUT_S_MIN, TIMEOUT_S_MAX, LATE_S_MAX = 0.5, 10.0, 40.0
# Requests that go wrong without any spell: lost, not answered, late; and slow ones.
LOST, UNANSWERED, LATE, SLOW = 0.002, 0.003, 0.002, 0.02
SLOW_S_MAX = 4.0
BACKLOG_DIVISOR = 100
# Of a bucket that lies.
FORGOTTEN = 0.3


class Reign(NamedTuple):
    """From when on a term was a machine's: `holder` is its directory, `asked_ms` when it first asked, by its clock."""

    from_s: float
    term: int
    machine: str
    holder: str
    asked_ms: int


class _Object(NamedTuple):
    data: bytes
    version: int
    made_s: float


class _Request:
    """One that a fiber waits for, until it does not any more."""

    def __init__(self, fiber: Fiber) -> None:
        self.fiber: Fiber | None = fiber
        self.outcome: Any = None
        self.error: BucketError | None = None
        self.answered = False


class ObjectStore:
    """The bucket of a world, apart from the processes that use it."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, note: Callable[[str, str, str], None]) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self._note = note
        self.objects: dict[str, _Object] = {}
        self._versions = 0
        self.latency_s = rng.choice((0.001, 0.005, 0.02, 0.08))
        # Whether requests go wrong without any spell.
        self.calm = False
        # What is wrong between a machine and the bucket, and until when.
        self.spells: dict[str, tuple[Trouble, float]] = {}
        self.slow_until_s = 0.0
        # Some pieces are taken and forgotten: to see that it is found.
        self.lies = False
        self.requests = 0
        # Who had which term, and the pieces of the log with the time of each.
        self.reigns: list[Reign] = []
        self.pieces: list[tuple[float, bytes]] = []
        self.gaps, self._end = 0, 0
        # When the lease of each term was announced and renewed, up to when it was given up.
        self.renewals: dict[int, list[float]] = {}
        self._tokens: dict[int, str] = {}
        # What was ever in a slot, and the objects that were removed.
        self._slots: dict[str, bytes] = {}
        self._removed: set[str] = set()
        self.mistakes: list[str] = []

    def trouble(self, machine: str) -> Trouble | None:
        kind, until_s = self.spells.get(machine, ("lost", 0.0))
        return kind if self.scheduler.now_s < until_s else None

    def delay_s(self) -> float:
        rng = self.rng
        delay_s = self.latency_s * (0.5 + rng.random())
        if not self.calm and rng.random() < (0.5 if self.scheduler.now_s < self.slow_until_s else SLOW):
            delay_s += rng.random() ** 3 * SLOW_S_MAX
        return delay_s

    # --- what a request does when it arrives ---

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise Exists(f"{key} exists", key=key)
        is_slot = parse_slot_key(key) is not None
        if self.lies and is_slot and self.rng.random() < FORGOTTEN:
            return
        self._put(key, data)
        if is_slot:
            self._filled(key, data)

    def swap(self, key: str, data: bytes, etag: str | None) -> str:
        found = self.read(key)
        if (found.etag if found is not None else None) != etag:
            raise Changed(f"{key} was changed by another server", key=key)
        if key == PRIMARY:
            self._renewed(msgspec.json.decode(data, type=Primary))
        return self._put(key, data)

    def read(self, key: str) -> Found | None:
        found = self.objects.get(key)
        return None if found is None else Found(found.data, f"v{found.version}")

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        found = self.objects.get(key)
        return None if found is None else found.data[offset : offset + length]

    def upload(self, key: str, data: bytes) -> None:
        found = self.objects.get(key)
        if found is not None and found.data != data:
            self.mistakes.append(f"{key} was uploaded with another content")
        self._put(key, data)

    def listing(self, prefix: str, after: str) -> list[Listed]:
        return [
            Listed(key, len(self.objects[key].data), int(1000 * (WALL_START_S + self.objects[key].made_s)))
            for key in sorted(self.objects)
            if key.startswith(prefix) and key > after
        ]

    def delete(self, keys: list[str]) -> None:
        self._removed.update(keys)
        for key in keys:
            self.objects.pop(key, None)

    def _put(self, key: str, data: bytes) -> str:
        self._versions += 1
        self.objects[key] = _Object(data, self._versions, self.scheduler.now_s)
        return f"v{self._versions}"

    def _renewed(self, primary: Primary) -> None:
        renewals = self.renewals.setdefault(primary.term, [])
        if primary.released:
            renewals.clear()
        else:
            renewals.append(self.scheduler.now_s)

    def _filled(self, key: str, data: bytes) -> None:
        """A slot: whether the one who fills it has the term."""
        if self._slots.setdefault(key, data) == data and key in self._removed:
            # A late request, for a slot that was filled by an earlier one and is not kept any more.
            return
        head, frames = decode_slot(key, data)
        now_s = self.scheduler.now_s
        newest = self.reigns[-1].term if self.reigns else 0
        if head.term != newest:
            self.mistakes.append(f"{key} was filled in term {newest}")
        if isinstance(head, TermClosing):
            machine = head.holder.rpartition("-")[0]
            self._tokens[head.term + 1] = head.token
            self.reigns.append(Reign(now_s, head.term + 1, machine, head.holder, head.time_ms))
            self._note("term", f"{head.term + 1} is that of {head.holder}", machine)
        elif isinstance(head, LogPiece):
            self.pieces.append((now_s, bytes(frames)))
            self.gaps += head.from_position > self._end
            self._end = head.to_position
            if head.token != self._tokens.get(head.term):
                self.mistakes.append(f"{key} was filled by a server that does not have the term")


class SimulatedBucket(ObjectBucket):
    """What one process has of it: its way there, and its disk."""

    def __init__(self, store: ObjectStore, process: Process, disk: Disk) -> None:
        self._store = store
        self._scheduler = store.scheduler
        self._process = process
        self._disk = disk

    def create(self, key: str, data: Buffer) -> None:
        content = bytes(data)
        self._ask(lambda: self._store.create(key, content), writes=True)

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        content = bytes(data)
        return self._ask(lambda: self._store.swap(key, content, etag), writes=True)

    def read(self, key: str) -> Found | None:
        return self._ask(lambda: self._store.read(key))

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        return self._ask(lambda: self._store.read_range(key, offset, length))

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        yield from self._ask(lambda: self._store.listing(prefix, after))

    def expect(self, key: str, data: bytes) -> None:
        """It is always there."""

    def delete(self, keys: list[str]) -> None:
        gone = list(keys)
        self._ask(lambda: self._store.delete(gone), writes=True)

    def upload(self, key: str, path: str) -> None:
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            content = self._disk.pread(fd, self._disk.size(fd), 0)
        finally:
            self._disk.close(fd)
        self._ask(lambda: self._store.upload(key, content), writes=True)

    def download(self, key: str, path: str) -> bool:
        found = self.read(key)
        if found is None:
            return False
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self._disk, fd, [found.data], 0)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        return True

    # --- on the way ---

    def _ask(self, work: Callable[[], Any], *, writes: bool = False) -> Any:
        """Send a request and wait for its answer; what happens to it does not depend on who waits."""
        if self._process.dead:
            raise Killed
        store, scheduler, rng = self._store, self._scheduler, self._store.rng
        fiber = scheduler.current
        assert fiber is not None, "only a fiber can wait for the bucket"
        store.requests += 1
        trouble = store.trouble(self._process.host.name)
        if trouble == "refused":
            scheduler.sleep(store.delay_s())
            raise Refused("the bucket does not allow that for now")
        fate = rng.random()
        lost = trouble == "lost" or (not store.calm and fate < LOST)
        late = not lost and writes and not store.calm and fate > 1 - LATE
        request = _Request(fiber)
        if late:
            scheduler.after(rng.random() * LATE_S_MAX, self._arrive, request, work, False)
        elif not lost or (writes and trouble == "lost" and rng.random() < 0.05):
            # One that was under way when the line was cut may still arrive.
            answers = not lost and trouble is None and (store.calm or not LOST <= fate < LOST + UNANSWERED)
            scheduler.after(store.delay_s(), self._arrive, request, work, answers)
        return self._wait(request, rng.uniform(TIMEOUT_S_MIN, TIMEOUT_S_MAX))

    def _arrive(self, request: _Request, work: Callable[[], Any], answers: bool) -> None:
        try:
            request.outcome = work()
        except BucketError as error:
            request.error = error
        if answers and self._store.trouble(self._process.host.name) is None:
            self._scheduler.after(self._store.delay_s(), self._answer, request)

    def _answer(self, request: _Request) -> None:
        request.answered = True
        if request.fiber is not None:
            self._scheduler.unpark(request.fiber)

    def _wait(self, request: _Request, timeout_s: float) -> Any:
        until_s = self._scheduler.now_s + timeout_s
        try:
            while not request.answered:
                left_s = until_s - self._scheduler.now_s
                if left_s <= 0:
                    raise Unreachable("no answer from the bucket")
                self._scheduler.park(left_s)
        finally:
            request.fiber = None
        if request.error is not None:
            raise request.error
        return request.outcome


def use_simulated_bucket() -> None:
    """From now on `file://` names the bucket of the process that connects to it, and gaps come early."""
    connecting.SharedDirectory = _of_this_process
    bucket_side.ShippingPace = _shorter_pace


def _shorter_pace(piece_ms: int, piece_bytes: int, backlog_bytes_max: int, keep_ms: int) -> ShippingPace:
    """A world writes much less than the smallest backlog that a server can be given."""
    return ShippingPace(piece_ms, piece_bytes, backlog_bytes_max // BACKLOG_DIVISOR, keep_ms)


def _of_this_process(path: str) -> ObjectBucket:
    del path
    fiber = SURROUNDINGS.scheduler().current
    assert fiber is not None
    bucket = getattr(fiber.process, "bucket", None)
    assert isinstance(bucket, SimulatedBucket), "this world has no bucket"
    return bucket

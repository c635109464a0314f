"""Runs the engine for the threads of a program: one lock, one condition to wait on, one housekeeping thread.

    caller ─▶ lock ─▶ verb ─▶ flush ─▶ done? answer : wait ◀── notify ──┐
    housekeeping thread ─▶ lock ─▶ Store.turn ──────────────────────────┘

The thread that holds the lock owns the engine for that time. The housekeeping thread does what the event loop does in a
server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from copy import copy
from typing import Final, Generic, NoReturn, TypeVar

from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.cold_reader import PatientReader
from topics.engine.core.waiting.deadlines import PolledTimers
from topics.engine.core.waiting.runner import Steps, attempt
from topics.engine.groups.verbs import Consuming
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.opening.store import Store
from topics.model.clock import Clock, SystemClock
from topics.model.errors import ShuttingDown, StorageError, TopicsError
from topics.model.settings import Settings

T = TypeVar("T")

HOUSEKEEPING_S: Final = 0.05
log = logging.getLogger("topics.embedded")


class Outcome(Generic[T]):
    """The outcome of steps that a thread waits for; the thread reads from disk for them, without the lock."""

    __slots__ = ("_moved", "error", "has_read", "miss", "over", "values", "wanted")

    def __init__(self, moved: threading.Condition) -> None:
        self._moved = moved
        self.wanted = True
        self.over = False
        self.values: list[T] = []
        self.error: Exception | None = None
        self.miss: ColdMiss | None = None
        self.has_read: Callable[[TopicsError | None], None] | None = None

    # --- the owner of the task, and its reader ---

    def done(self, result: T) -> None:
        self.values.append(result)
        self._end()

    def failed(self, error: Exception) -> None:
        self.error = error
        self._end()

    def cancelled(self) -> None:
        self._end()

    def fetch(self, miss: ColdMiss, then: Callable[[TopicsError | None], None]) -> None:
        self.miss, self.has_read = miss, then
        self._moved.notify_all()

    def _end(self) -> None:
        self.over = True
        self._moved.notify_all()


class Host:
    def __init__(
        self, path: str, settings: Settings | None, clock: Clock | None, on_progress: Callable[[float], None]
    ) -> None:
        self.lock = threading.Lock()
        # Something was published, expired, or ended: waiting threads look again.
        self.moved = threading.Condition(self.lock)
        self.closed = False
        self._failure: Exception | None = None
        self._news = threading.Event()
        self._clock = clock or SystemClock()
        self._timers = PolledTimers(self._clock, self._news.set)
        self.store = Store(
            path, settings, clock=self._clock, notify=self._news.set, wake=self._news.set, timers=self._timers
        )
        for progress in self.store.opening():
            on_progress(progress)
        self.settings = self.store.settings
        self.engine = self.store.engine
        self.runner = self.store.runner
        self.live = self.store.live
        self.reader = PatientReader(self.store.reader, self.store.deadlines)
        self.consuming = Consuming(self.engine, self._clock, 1000 * self.settings.visibility_timeout_secs)
        # What must end before the database closes; called with the lock held.
        self.at_close: dict[Callable[[], None], None] = {}
        self._housekeeper = threading.Thread(target=self._keep_house, name="topics-housekeeping", daemon=True)
        self._housekeeper.start()

    def close(self) -> None:
        """End all waiting, write everything, release the directory."""
        with self.lock:
            if self.closed:
                return
            for end in list(self.at_close):
                end()
            # Long polls end with what they have.
            self.store.expire_waits()
            self.closed = True
            self.moved.notify_all()
        self._news.set()
        self._housekeeper.join()
        with self.lock:
            self.store.close()

    def check_open(self) -> None:
        if self.closed:
            raise ShuttingDown("the database is closed")
        if self._failure is not None:
            raise StorageError(f"the database failed and must be opened again: {self._failure}")

    # --- running verbs ---

    def look(self, verb: Callable[[], T]) -> T:
        """Run a verb that decides at once; changes that it submits are written."""
        try:
            with self.lock:
                self.check_open()
                found = verb()
                self.end_turn()
                return found
        except TopicsError as error:
            raise copy(error) from None
        except (Busy, ColdMiss):
            return self.run(attempt(verb))

    def commit(self, verb: Callable[[], PendingChange]) -> PendingChange:
        """Run a verb that changes something, and wait until the change is as durable as required."""
        return self.finished(self.look(verb))

    def run(self, steps: Steps[T]) -> T:
        """Run a verb that may have to wait; returns its result."""
        outcome: Outcome[T] = Outcome(self.moved)
        try:
            with self.lock:
                self.check_open()
                task = self.runner.start(steps, outcome, outcome)
                self.end_turn()
                while not outcome.over:
                    if task is not None and (self.closed or self._failure is not None):
                        task.cancel()
                        self.check_open()
                    elif outcome.miss is not None:
                        self._read(outcome, outcome.miss)
                    else:
                        self.moved.wait()
            if outcome.error is not None:
                raise outcome.error
        except TopicsError as error:
            raise copy(error) from None
        return outcome.values[0]

    def fail(self, error: TopicsError) -> NoReturn:
        """Raise the error of a wait. Several threads may wait for the same change, so each raises its own copy."""
        raise copy(error)

    def finished(self, change: PendingChange) -> PendingChange:
        try:
            if not change.done:
                ended: list[PendingChange] = []
                with self.lock:
                    change.answer(ended.append)
                    while not ended:
                        self.check_open()
                        self.moved.wait()
                change = ended[0]
            if change.error is not None:
                raise change.error
        except TopicsError as error:
            raise copy(error) from None
        return change

    def wait_until(self, over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block the caller until `over()` or the database is closed; returns whether it was in time."""
        with self.lock:
            return self.moved.wait_for(lambda: self.closed or self._failure is not None or over(), timeout_s)

    def wait_synced(self, is_synced: Callable[[], bool]) -> None:
        """Wait until the log is synced up to the caller's position. The caller holds the lock."""
        while not is_synced():
            self.check_open()
            if read_only := self.store.commit_log.read_only:
                raise copy(read_only)
            self.moved.wait()

    def end_turn(self) -> None:
        """Write submitted changes; tasks that become ready are left to the housekeeping thread."""
        store = self.store
        store.flush()
        if store.has_work:
            self._news.set()

    def _read(self, outcome: Outcome[T], miss: ColdMiss) -> None:
        """Read what this thread's steps wait for; other threads may use the engine meanwhile."""
        cold, has_read = self.store.state.cold, outcome.has_read
        assert has_read is not None
        outcome.miss = outcome.has_read = None
        self.lock.release()
        try:
            found = cold.read(miss)
        finally:
            self.lock.acquire()
        if self.closed:
            return
        try:
            cold.take(miss, found)
        except TopicsError as error:
            has_read(error)
        else:
            has_read(None)
        self.end_turn()

    # --- the housekeeping thread ---

    def _keep_house(self) -> None:
        """One turn at a time, so that callers get the lock in between."""
        wait_s: float | None = None
        while not self.closed:
            self._news.wait(self._pause_s(wait_s))
            self._news.clear()
            with self.lock:
                if self.closed:
                    return
                try:
                    wait_s = self.store.turn()
                except Exception as error:
                    log.exception("housekeeping failed; the database accepts no more calls")
                    self._failure = error
                self.moved.notify_all()
            if self._failure is not None:
                return

    def _pause_s(self, wait_s: float | None) -> float:
        """The time until the next turn: as the last turn says, until the next deadline, or the usual interval."""
        pause_s = HOUSEKEEPING_S if wait_s is None else min(HOUSEKEEPING_S, wait_s)
        due_s = self._timers.due_s
        return pause_s if due_s is None else max(0.0, min(pause_s, due_s - self._timers.time()))

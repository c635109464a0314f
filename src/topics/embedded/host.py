"""Runs the engine for the threads of a program: one lock, one condition to wait on, one thread that keeps house.

    caller ─▶ lock ─▶ verb ─▶ flush ─▶ done? answer : wait ◀── notify ──┐
    housekeeping thread ─▶ lock ─▶ settle, checkpoint slice, routers, commits, deadlines, live readers

Whoever holds the lock owns the engine for that moment. The housekeeping thread is
what the event loop is to a server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from copy import copy
from typing import Final, NoReturn, TypeVar

from topics.api.live.following import Fetching
from topics.engine.core.deadlines import Deadlines
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.groups.verbs import Consuming
from topics.engine.live.trails import Live
from topics.engine.log.cold import ColdMiss
from topics.engine.opening.store import Store
from topics.engine.queues.cohorts import Cohorts
from topics.model.clock import Clock, SystemClock
from topics.model.errors import DamagedData, ShuttingDown, StorageError, TopicsError
from topics.model.settings import Settings
from topics.storage.worker import Job

T = TypeVar("T")

HOUSEKEEPING_S: Final = 0.05
log = logging.getLogger("topics.embedded")


class Alarm:
    """The one timer that the deadlines ask for at a time."""

    __slots__ = ("cancelled", "due_s", "ring")

    def __init__(self, due_s: float, ring: Callable[[], object]) -> None:
        self.due_s = due_s
        self.ring = ring
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Patience:
    """How long a call may wait: `over` when its time is up, or the database closes."""

    __slots__ = ("_deadline", "_host", "over")

    def __init__(self, host: Host, wait_ms: int) -> None:
        """The caller holds the lock, or will take it before the time can be up."""
        self._host = host
        self.over = False
        self._deadline = host.deadlines.add(wait_ms, self._expire)

    def _expire(self) -> None:
        self.over = True
        self._host.moved.notify_all()

    def leave(self) -> None:
        self._host.deadlines.remove(self._deadline)


class Host:
    def __init__(
        self, path: str, settings: Settings | None, clock: Clock | None, on_progress: Callable[[float], None]
    ) -> None:
        self.lock = threading.Lock()
        # Something was published, ran out, or came to an end: whoever waits looks again.
        self.moved = threading.Condition(self.lock)
        self.closed = False
        self._failure: Exception | None = None
        self._news = threading.Event()
        self._alarm: Alarm | None = None
        self._clock = clock or SystemClock()
        self.store = Store(path, settings, clock=self._clock, notify=self._news.set)
        for progress in self.store.opening():
            on_progress(progress)
        self.settings = self.store.settings
        self.engine = self.store.engine
        self.deadlines = Deadlines(self)
        self.cohorts = Cohorts(self.engine, self.deadlines, self, self.nudge)
        self.consuming = Consuming(self.engine, self._clock, 1000 * self.settings.visibility_timeout_secs)
        self.live = Live(self.engine, self._clock, self.nudge)
        self.fetching = Fetching(self.fetch)
        # What must come to an end before the database does; called with the lock held.
        self.at_close: dict[Callable[[], None], None] = {}
        self._housekeeper = threading.Thread(target=self._keep_house, name="topics-housekeeping", daemon=True)
        self._housekeeper.start()

    def close(self) -> None:
        """End all waiting, write everything down, let go of the directory."""
        with self.lock:
            if self.closed:
                return
            for end in list(self.at_close):
                end()
            self.store.commit_log.flush()
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
        """Run a verb, fetching from disk what it misses; what it has staged is written."""
        try:
            while True:
                with self.lock:
                    self.check_open()
                    try:
                        found = verb()
                        self.end_turn()
                        return found
                    except Busy as busy:
                        self._wait_done(busy.change)
                        continue
                    except ColdMiss as cold_miss:
                        miss = cold_miss
                self._fetch_now(miss)
        except TopicsError as error:
            raise copy(error) from None

    def commit(self, verb: Callable[[], PendingChange]) -> PendingChange:
        """Run a verb that changes something, and wait until that is as durable as it has to be."""
        return self.finished(self.look(verb))

    def commit_reading(self, verb: Callable[[], Generator[ColdMiss | None, None, PendingChange]]) -> PendingChange:
        """As `commit`, for a verb that says what it must read on the way."""
        try:
            while True:
                try:
                    with self.lock:
                        self.check_open()
                        finding = verb()
                    while True:
                        with self.lock:
                            self.check_open()
                            miss = next(finding)
                        if miss is not None:
                            self._fetch_now(miss)
                except StopIteration as end:
                    with self.lock:
                        self.end_turn()
                    return self.finished(end.value)
                except Busy as busy:
                    with self.lock:
                        self._wait_done(busy.change)
        except TopicsError as error:
            raise copy(error) from None

    def fail(self, error: TopicsError) -> NoReturn:
        """Raise what ended a wait. Others may wait for the same change: every thread raises a copy of its own."""
        raise copy(error)

    def finished(self, change: PendingChange) -> PendingChange:
        try:
            if not change.done:
                with self.lock:
                    self._wait_done(change)
            if change.error is not None:
                raise change.error
        except TopicsError as error:
            raise copy(error) from None
        return change

    def wait_until(self, over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block the caller until it is over or the database is closed; whether it was in time."""
        with self.lock:
            return self.moved.wait_for(lambda: self.closed or self._failure is not None or over(), timeout_s)

    def wait_synced(self, is_synced: Callable[[], bool]) -> None:
        """Until the log is synced to where somebody needs it. The caller holds the lock."""
        while not is_synced():
            self.check_open()
            if read_only := self.store.commit_log.read_only:
                raise copy(read_only)
            self.moved.wait()

    def end_turn(self) -> None:
        """Write what was staged; what that has made ready is for the housekeeping thread."""
        store = self.store
        store.commit_log.flush()
        if store.forwarder.pending or store.transactions.pending:
            self._news.set()

    def _wait_done(self, change: PendingChange) -> None:
        self.end_turn()
        while not change.done:
            self.check_open()
            self.moved.wait()

    # --- reading from disk ---

    def _fetch_now(self, miss: ColdMiss) -> None:
        cold = self.store.state.cold
        found = cold.read(miss)
        with self.lock:
            cold.take(miss, found)

    def fetch(self, miss: ColdMiss, then: Callable[[TopicsError | None], None]) -> None:
        """Read in the worker thread, for those who wait together."""
        cold = self.store.state.cold

        def arrived(job: Job[bytes | DamagedData | OSError]) -> None:
            try:
                cold.take(miss, job.result())
            except TopicsError as error:
                then(error)
            else:
                then(None)

        self.store.worker.submit(lambda: cold.read(miss), arrived)

    # --- time: what an event loop is to a server ---

    def time(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def call_at(self, when: float, callback: Callable[[], object], /) -> Alarm:
        self._alarm = Alarm(when, callback)
        self._news.set()
        return self._alarm

    def nudge(self) -> None:
        """There is something for the housekeeping thread."""
        self._news.set()

    def _keep_house(self) -> None:
        """A slice at a time, so that nobody waits for it."""
        while not self.closed:
            self._news.wait(self._pause_s())
            self._news.clear()
            with self.lock:
                if self.closed:
                    return
                try:
                    if self._step():
                        self._news.set()
                except Exception as error:
                    log.exception("housekeeping failed; the database takes no more calls")
                    self._failure = error
                self.moved.notify_all()
            if self._failure is not None:
                return

    def _pause_s(self) -> float:
        alarm = self._alarm
        if alarm is None or alarm.cancelled:
            return HOUSEKEEPING_S
        return max(0.0, min(HOUSEKEEPING_S, alarm.due_s - self.time()))

    def _step(self) -> bool:
        """Whether to come again at once."""
        store = self.store
        store.settle()
        more = store.step() | store.forwarder.step()
        if store.transactions.pending:
            more |= store.transactions.step()
        alarm = self._alarm
        if alarm is not None and not alarm.cancelled and alarm.due_s <= self.time():
            self._alarm = None
            alarm.ring()
        self.live.run()
        store.commit_log.flush()
        return more

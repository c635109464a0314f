"""Claimers that wait: gathered for a moment, until there is work, or for as long as their stream is open.

    claim, claim_jitter_ms > 0 ──┐
    claim with wait_ms, no job ──┼─▶ cohort of a queue ─▶ window over, topic moved, a lease or a rest ran out
    work stream with room ───────┘                        ─▶ one pass deals the jobs out over all of them

One waiter and one deadline for each queue that has somebody waiting; none for each claimer, none for each job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topics.engine.core.deadlines import Deadline, Deadlines
from topics.engine.core.engine import Engine
from topics.engine.core.pending import Busy
from topics.engine.log.cold import ColdMiss, Reader
from topics.engine.log.topic import Topic
from topics.engine.queues.claims import Claim, Grant
from topics.engine.queues.due import NEVER_MS
from topics.engine.queues.queue import Queue
from topics.model.errors import TopicNotFound, TopicsError

RETRY_MS = 1_000


class Claimer(Protocol):
    def claim(self) -> Claim | None:
        """What it would take now, if anything."""
        ...

    def granted(self, grant: Grant) -> bool:
        """It got this, maybe nothing; whether it goes on waiting."""
        ...

    def failed(self, error: TopicsError) -> bool:
        """The pass failed; whether it goes on waiting."""
        ...


class Cohort:
    """The claimers of one queue, in the order in which they are dealt to."""

    def __init__(self, cohorts: Cohorts, topic: Topic, queue: Queue) -> None:
        self._cohorts = cohorts
        self.topic = topic
        self.queue = queue
        self.members: dict[Claimer, None] = {}
        self._waiter = cohorts.engine.waiters.add(topic, self.moved)
        # When claimers that came together are served, and when the next lease or rest runs out.
        self._window: Deadline | None = None
        self._alarm: Deadline | None = None
        self._alarm_ms = NEVER_MS
        self._fetching = False

    def add(self, claimer: Claimer) -> None:
        self.members[claimer] = None
        if self.topic.config.claim_jitter_ms:
            self._open_window()
        self._arm()

    def discard(self, claimer: Claimer) -> None:
        self.members.pop(claimer, None)
        if not self.members:
            self._cohorts.dismiss(self)

    def moved(self) -> None:
        """There may be work, or room for it, or no queue any more."""
        if self.topic.config.claim_jitter_ms and self._exists:
            self._open_window()
        else:
            self.serve()

    def _open_window(self) -> None:
        if self._window is None:
            self._window = self._cohorts.deadlines.add(self.topic.config.claim_jitter_ms, self._close_window)

    def _close_window(self) -> None:
        self._window = None
        self.serve()
        self._cohorts.wake()

    @property
    def _exists(self) -> bool:
        return self._cohorts.engine.state.by_id.get(self.topic.id) is self.topic

    def serve(self) -> None:
        """One pass over everyone who would take something."""
        if not self._exists:
            self._fail(TopicNotFound(self.topic.name))
            return
        if self._fetching:
            return
        self.queue.advance(self._cohorts.engine.queues.now())
        asking = [(member, claim) for member in self.members if (claim := member.claim()) is not None]
        if not asking:
            self._arm()
            return
        queues = self._cohorts.engine.queues
        try:
            grants = queues.serve(self.topic, self.queue, [claim for _, claim in asking])
        except ColdMiss as miss:
            self._fetch(miss)
        except Busy as busy:
            busy.change.then(lambda _: self.moved())
        except TopicsError as error:
            self._fail(error)
            self._set_alarm(queues.now() + RETRY_MS)
        else:
            for (member, _), grant in zip(asking, grants, strict=True):
                if grant.change is not None:
                    self._cohorts.wake()
                if not member.granted(grant):
                    self.discard(member)
                elif grant.seqs:
                    # Whoever got something goes behind those who did not.
                    self.members.pop(member, None)
                    self.members[member] = None
            self._arm()

    def _fetch(self, miss: ColdMiss) -> None:
        self._fetching = True

        def arrived(error: TopicsError | None) -> None:
            self._fetching = False
            if error is not None:
                self._fail(error)
            else:
                self.serve()
            self._cohorts.wake()

        self._cohorts.reader.fetch(miss, arrived)

    def _fail(self, error: TopicsError) -> None:
        for member in list(self.members):
            if not member.failed(error):
                self.discard(member)

    # --- time ---

    def _arm(self) -> None:
        if self.members and self.queue.next_ms < NEVER_MS:
            self._set_alarm(self.queue.next_ms)

    def look_again_in(self, wait_ms: int) -> None:
        self._set_alarm(self._cohorts.engine.queues.now() + wait_ms)

    def _set_alarm(self, due_ms: int) -> None:
        if self._alarm is not None:
            if self._alarm_ms <= due_ms:
                return
            self._cohorts.deadlines.remove(self._alarm)
        self._alarm_ms = due_ms
        wait_ms = max(1, due_ms - self._cohorts.engine.queues.now())
        self._alarm = self._cohorts.deadlines.add(wait_ms, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_ms = None, NEVER_MS
        self.moved()
        self._cohorts.wake()

    def leave(self) -> None:
        """Nobody waits here any more. Every cycle is broken: collections are rare."""
        self._cohorts.engine.waiters.remove(self._waiter)
        self._waiter.wake = _nothing
        for deadline in (self._window, self._alarm):
            if deadline is not None:
                self._cohorts.deadlines.remove(deadline)
        self._window = self._alarm = None


def _nothing() -> None:
    """What a waiter that was removed does."""


class Cohorts:
    def __init__(self, engine: Engine, deadlines: Deadlines, reader: Reader, wake: Callable[[], None]) -> None:
        self.engine = engine
        self.deadlines = deadlines
        self.reader = reader
        self.wake = wake
        self._by_topic: dict[Topic, Cohort] = {}

    def __len__(self) -> int:
        return len(self._by_topic)

    def of(self, topic: Topic, queue: Queue) -> Cohort:
        cohort = self._by_topic.get(topic)
        if cohort is None:
            cohort = self._by_topic[topic] = Cohort(self, topic, queue)
        return cohort

    def dismiss(self, cohort: Cohort) -> None:
        if self._by_topic.get(cohort.topic) is cohort:
            del self._by_topic[cohort.topic]
            cohort.leave()

"""Claims, including those that wait: to share a pass with others, until there are jobs, or while a stream is open.

    claim, claim_jitter_ms > 0 ──┐
    claim with wait_ms, no job ──┼─▶ claimers of a queue ─▶ window over, topic moved, a lease or a rest expired
    work stream with room ───────┘                          ─▶ one pass deals the jobs out over all of them

One task and one registration for each queue that has claimers; none for each claimer, none for each job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from topics.engine.core.pending import Busy
from topics.engine.core.waiting.deadlines import Deadlines
from topics.engine.core.waiting.runner import News, Runner, Steps, Wait, attempt, published
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.topic import Topic
from topics.engine.log.waiters import Waiters
from topics.engine.queues.claims import Claim, Grant
from topics.engine.queues.due import NEVER_MS
from topics.engine.queues.queue import Queue
from topics.engine.queues.verbs import Queues
from topics.model.errors import Internal, TopicNotFound, TopicsError
from topics.model.requests.records import ClaimRequest

log = logging.getLogger("topics.engine")

WAIT_MS_MAX = 30_000
RETRY_MS = 1_000


class Claimer(Protocol):
    def claim(self) -> Claim | None:
        """What it would take now, if anything."""
        ...

    def granted(self, grant: Grant) -> bool:
        """It got these jobs, maybe none; whether it keeps waiting."""
        ...

    def failed(self, error: TopicsError) -> bool:
        """The pass failed; whether it keeps waiting."""
        ...


class WaitingClaim(News):
    """One claim among the claimers: set by the pass that gives it something, or when its time is up."""

    __slots__ = ("_claim", "_wait_ms", "error", "grant")

    def __init__(self, waiters: Waiters, deadlines: Deadlines, claim: Claim, wait_ms: int) -> None:
        super().__init__(waiters, deadlines, (), wait_ms or None)
        self._claim = claim
        # 0: it waits only for the window of its queue.
        self._wait_ms = wait_ms
        self.grant: Grant | None = None
        self.error: TopicsError | None = None

    def claim(self) -> Claim | None:
        return None if self.expired else self._claim

    def granted(self, grant: Grant) -> bool:
        if not grant.seqs and self._wait_ms:
            return True
        self.grant = grant
        self.set()
        return False

    def failed(self, error: TopicsError) -> bool:
        self.error = error
        self.set()
        return False


class Claimers:
    """Claimers that wait for jobs of one queue, in the order in which jobs are dealt to them."""

    def __init__(self, claims: Claims, topic: Topic, queue: Queue) -> None:
        self._claims = claims
        self.topic = topic
        self.queue = queue
        self.wanted = True
        self._members: dict[Claimer, None] = {}
        self._news = claims.runner.news([topic])
        # When to look again without an event: the armed time, and the one requested by a claimer or a failure.
        self._armed_ms = self._retry_ms = NEVER_MS
        self._task = claims.runner.start(self._serve(), self)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, claimer: Claimer) -> None:
        self._members[claimer] = None
        self.queue.claimers += 1
        if self.topic.config.claim_jitter_ms or self.queue.unfinished:
            self.moved()
        else:
            self._arm()

    def discard(self, claimer: Claimer) -> None:
        if claimer in self._members:
            del self._members[claimer]
            self.queue.claimers -= 1
        if not self._members:
            self._claims.dismiss(self)

    def moved(self) -> None:
        """There may be jobs, or room for them, or the queue may be gone."""
        self._news.set()

    def look_again_in(self, wait_ms: int) -> None:
        self._retry_ms = min(self._retry_ms, self._claims.queues.now() + wait_ms)
        self._arm()

    def detach(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # --- the owner of the task ---

    def done(self, result: None) -> None:
        """It ends only with the last claimer."""

    def failed(self, error: Exception) -> None:
        log.error("a pass over the claimers of %s failed", self.topic.name, exc_info=error)
        self._news.close()
        self._fail(Internal("a bug in the server, see its log"))
        self._claims.dismiss(self)

    def cancelled(self) -> None: ...

    # --- passes ---

    def _serve(self) -> Steps[None]:
        news = self._news
        try:
            while True:
                self._armed_ms = NEVER_MS
                news.look_again_in(None)
                self._arm()
                yield news
                jitter_ms = self.topic.config.claim_jitter_ms
                if jitter_ms and self._exists:
                    yield from self._claims.runner.pause(jitter_ms)
                yield from self._deal()
        finally:
            news.close()

    def _deal(self) -> Steps[None]:
        """One pass over all claimers that would take something."""
        self._retry_ms = NEVER_MS
        queues = self._claims.queues
        while True:
            if not self._exists:
                self._fail(TopicNotFound(self.topic.name))
                return
            self.queue.advance(queues.now())
            asking = [(member, claim) for member in self._members if (claim := member.claim()) is not None]
            if not asking:
                return
            try:
                now = queues.bring_up(self.topic, self.queue)
                grants = queues.serve(self.topic, self.queue, [claim for _, claim in asking], now)
            except Busy as busy:
                wait: Wait = busy.change
            except ColdMiss as miss:
                wait = miss
            except TopicsError as error:
                self._fail(error)
                self._retry_ms = queues.now() + RETRY_MS
                return
            else:
                self._grant(asking, grants)
                if not self.queue.unfinished:
                    return
                wait = None
            try:
                yield wait
            except TopicsError as error:
                self._fail(error)
                return

    def _grant(self, asking: list[tuple[Claimer, Claim]], grants: list[Grant]) -> None:
        for (member, _), grant in zip(asking, grants, strict=True):
            if not grant.seqs and self.queue.unfinished:
                # The next step of the same pass may find something for it.
                continue
            if not member.granted(grant):
                self.discard(member)
            elif grant.seqs and member in self._members:
                # A claimer that got something comes after those that did not.
                del self._members[member]
                self._members[member] = None

    @property
    def _exists(self) -> bool:
        return self._claims.exists(self.topic)

    def _fail(self, error: TopicsError) -> None:
        for member in list(self._members):
            if not member.failed(error):
                self.discard(member)

    def _arm(self) -> None:
        """Look again when the next lease, rest or job in flight expires."""
        due_ms = min(self.queue.next_ms, self._retry_ms, self._claims.queues.expires_ms(self.topic))
        if self._members and due_ms < self._armed_ms:
            self._armed_ms = due_ms
            self._news.look_again_in(max(1, due_ms - self._claims.queues.now()))


class AskedClaim(NamedTuple):
    """A claim on an existing queue, and its result; None: it has to wait."""

    topic: Topic
    queue: Queue
    claim: Claim
    grant: Grant | None


class Claims:
    """The claims of all queues."""

    def __init__(self, queues: Queues, runner: Runner, exists: Callable[[Topic], bool]) -> None:
        self.queues = queues
        self.runner = runner
        self.exists = exists
        self._by_topic: dict[Topic, Claimers] = {}

    def __len__(self) -> int:
        """Queues that have claimers."""
        return len(self._by_topic)

    def claim(
        self, name: str, request: ClaimRequest, admit: Callable[[Topic], None] | None = None
    ) -> Steps[tuple[Queue, Grant]]:
        """Lease up to `max` jobs, waiting for the first if requested; durable leases are in the log by then.

        `admit` may refuse, once the queue is known to exist.
        """
        asked = yield from attempt(partial(self.ask, name, request, admit))
        grant = asked.grant or (yield from self.wait(asked, request.wait_ms))
        if grant.change is not None:
            yield from published(grant.change)
        return asked.queue, grant

    def ask(self, name: str, request: ClaimRequest, admit: Callable[[Topic], None] | None) -> AskedClaim:
        """Decide a claim with the available jobs, or find that it has to wait. May raise Busy and ColdMiss."""
        queues = self.queues
        wanted, lease_ms = queues.check_claim(request)
        topic, queue, now = queues.find(name)
        if admit is not None:
            admit(topic)
        claim = Claim(request.node, wanted, lease_ms or topic.config.lease_ms)
        if not topic.config.claim_jitter_ms:
            grant = queues.serve_one(topic, queue, claim, now)
            if grant.seqs or not (request.wait_ms or queue.unfinished):
                return AskedClaim(topic, queue, claim, grant)
        return AskedClaim(topic, queue, claim, None)

    def wait(self, asked: AskedClaim, wait_ms: int) -> Steps[Grant]:
        """Wait for jobs, or for the window of the queue."""
        wait_ms = min(wait_ms, WAIT_MS_MAX)
        waiting = WaitingClaim(self.runner.waiters, self.runner.deadlines, asked.claim, wait_ms)
        claimers = self.claimers(asked.topic, asked.queue)
        claimers.add(waiting)
        try:
            yield waiting
        finally:
            claimers.discard(waiting)
            waiting.close()
        if waiting.error is not None:
            raise waiting.error
        return waiting.grant or Grant()

    def claimers(self, topic: Topic, queue: Queue) -> Claimers:
        claimers = self._by_topic.get(topic)
        if claimers is None:
            claimers = self._by_topic[topic] = Claimers(self, topic, queue)
        return claimers

    def dismiss(self, claimers: Claimers) -> None:
        """No claimer waits for jobs of this queue any more."""
        if self._by_topic.get(claimers.topic) is claimers:
            del self._by_topic[claimers.topic]
            claimers.detach()

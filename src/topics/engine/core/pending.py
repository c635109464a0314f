"""A pending change: decided, and not yet durable and visible."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from topics.engine.core.appended import DeferredBody
from topics.engine.core.op_table import Op
from topics.engine.log.deletion import Run
from topics.model.errors import NotReplicated, TopicsError

if TYPE_CHECKING:
    from topics.engine.core.in_flight import InFlight, Key
    from topics.engine.log.topic import Topic

# One change takes a few milliseconds to decide and to apply: this many runs, or this many jobs of a queue.
RUNS_PER_CHANGE = 500
JOBS_PER_CHANGE = 2_000
# Changes that wait for the same sync are applied together.
CHANGES_UNPUBLISHED_MAX = 4
# When to ask again about a write that waits for the bucket.
RETRY_AFTER_MS = 1_000

Callback = Callable[["PendingChange"], object]


class PendingChange:
    """The decision of a verb. `done` once it is published or failed (`error`); `then` runs a callback at that moment.

    Nobody abandons one: callers that retry a write may share one. A change that waits for the bucket may take for ever,
    and cannot be taken back: callers that wait only so long use `answer`.
    """

    __slots__ = (
        "_answers",
        "_callbacks",
        "_overdue",
        "awaits_bucket",
        "body",
        "count",
        "created",
        "deduped",
        "done",
        "error",
        "first_seq",
        "fsync_ms",
        "gated",
        "head_seq",
        "keys",
        "members",
        "op",
        "other_ids",
        "owner",
        "position",
        "reserved",
        "result",
        "routers_removed",
        "topic_id",
        "wal_append_ms",
        "written_ms",
    )

    def __init__(self, op: Op | None, topic_id: int, *, gated: bool) -> None:
        self.op = op
        self.topic_id = topic_id
        self.other_ids: tuple[int, ...] = ()
        self.gated = gated
        # Not published before the log is in the bucket up to its position; its bytes, until it is.
        self.awaits_bucket = False
        self.body: bytes | DeferredBody | None = None
        self.position = 0
        self.done = False
        self.error: TopicsError | None = None
        self._callbacks: list[Callback] | None = None
        self._answers: list[Callback] | None = None
        self._overdue: Overdue | None = None
        # its reservations, see InFlight
        self.owner: InFlight | None = None
        self.reserved: tuple[tuple[Topic | None, int, int, int, int], ...] = ()
        self.keys: dict[Key, PendingChange | None] | None = None
        self.members: tuple[tuple[Key, Collection[bytes]], ...] = ()
        # of an append
        self.first_seq = 0
        self.count = 0
        self.created = False
        self.deduped = False
        self.head_seq = 0
        # of the other verbs
        self.result: Any = None
        self.routers_removed: list[str] | None = None
        # how long it took
        self.wal_append_ms = 0.0
        self.fsync_ms = 0.0
        self.written_ms = 0.0

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def for_retries(self) -> PendingChange:
        """What a retry of this write waits for: all of them share it, as there may be one every second for hours."""
        if self._overdue is None:
            self._overdue = Overdue()
        echo = self._overdue.echo
        if echo is None:
            echo = self._overdue.echo = PendingChange(None, self.topic_id, gated=False)
            self.then(lambda done: done._repeat(echo))
            self.decides(echo)
        return echo

    def _repeat(self, echo: PendingChange) -> None:
        echo.first_seq, echo.count, echo.head_seq = self.first_seq, self.count, self.head_seq
        echo.fsync_ms, echo.result = self.fsync_ms, self.result
        echo.deduped = True
        echo.finish(self.error)

    def then(self, callback: Callback) -> None:
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def answer(self, callback: Callback) -> None:
        """As `then`, for a caller that is not kept waiting: it may be called before, with a change that has failed."""
        if self.done:
            callback(self)
        elif self._answers is None:
            self._answers = [callback]
        else:
            self._answers.append(callback)

    def decides(self, other: PendingChange) -> None:
        """Whoever waits for the other change waits for this one."""
        if not self.done:
            if self._overdue is None:
                self._overdue = Overdue()
            self._overdue.others.append(other)

    def grow_older(self, age_max: int, refusal: Callable[[], TopicsError]) -> None:
        """Called at an interval. Callers that have waited for `age_max` of them are refused; the change goes on."""
        if self._overdue is None:
            self._overdue = Overdue()
        overdue = self._overdue
        for other in overdue.others:
            other.grow_older(age_max, refusal)
        answers, self._answers = overdue.split(self._answers, age_max)
        for callback in answers:
            callback(failed(self.topic_id, refusal()))

    def finish(self, error: TopicsError | None = None) -> None:
        self.done = True
        self.error = error
        self.op = self.body = None
        if self.owner is not None:
            self.owner.let_go(self)
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)
        answers, self._answers = self._answers, None
        for callback in answers or ():
            callback(self)


class Overdue:
    """How long the callers of a change wait: counted only once it takes long, so that others cost nothing."""

    __slots__ = ("_age", "_since", "echo", "others")

    def __init__(self) -> None:
        self._age = 0
        # The age at which each answer was first seen, in their order.
        self._since: list[int] = []
        # Changes whose outcome is that of this one.
        self.others: list[PendingChange] = []
        # The one of them that retries wait for.
        self.echo: PendingChange | None = None

    def split(self, answers: list[Callback] | None, age_max: int) -> tuple[list[Callback], list[Callback] | None]:
        """Older by one: the answers that have waited too long, and the others."""
        if answers is None:
            self._since = []
            return [], None
        self._age += 1
        self._since += [self._age] * (len(answers) - len(self._since))
        late = bisect_right(self._since, self._age - age_max)
        del self._since[:late]
        return answers[:late], answers[late:]


def settled(topic_id: int, result: Any = None) -> PendingChange:
    """A change that is done: the state is already as requested."""
    change = PendingChange(None, topic_id, gated=False)
    change.result = result
    change.finish()
    return change


def failed(topic_id: int, error: TopicsError) -> PendingChange:
    """In place of a change that is not done yet: all that its caller gets to know."""
    change = PendingChange(None, topic_id, gated=False)
    change.finish(error)
    return change


def not_replicated(*, written: bool = True) -> NotReplicated:
    if written:
        message = (
            "the bucket has not taken the write in time: it is in the log of this server, and becomes visible when it "
            "is in the bucket; a retry with the same idempotency key waits for it"
        )
    else:
        message = "the bucket is away, and earlier writes wait for it; this attempt has written nothing"
    return NotReplicated(message, retry_after_ms=RETRY_AFTER_MS, written=written)


class Busy(Exception):
    """The verb depends on a change that is still pending: run it again when that is done."""

    def __init__(self, change: PendingChange) -> None:
        super().__init__("an earlier change of this topic is pending")
        self.change = change


class Deletions:
    """The changes of one delete: `last` is done after all others, and its result is the sum of theirs."""

    def __init__(self, *, of_queue: bool) -> None:
        self.last: PendingChange | None = None
        self._of_queue = of_queue
        self._unsubmitted: list[Run] = []
        self._seqs = 0
        self._unpublished: deque[PendingChange] = deque()
        self._records = self._bytes = 0
        self._error: TopicsError | None = None

    def collect(self, runs: list[Run]) -> None:
        self._unsubmitted += runs
        if self._of_queue:
            self._seqs += sum([run.seqs for run in runs])

    def piece(self) -> list[Run]:
        """Runs that make a change of their own, so that none takes long to apply; none, as long as there are few."""
        if len(self._unsubmitted) < RUNS_PER_CHANGE and self._seqs < JOBS_PER_CHANGE:
            return []
        return self.rest()

    def rest(self) -> list[Run]:
        runs, self._unsubmitted = self._unsubmitted, []
        self._seqs = 0
        return runs

    def add(self, change: PendingChange) -> None:
        self.last = change
        self._unpublished.append(change)
        change.then(self._count)

    def waits_for(self) -> PendingChange | None:
        """The change that must be published before there is another one."""
        while self._unpublished and self._unpublished[0].done:
            self._unpublished.popleft()
        return self._unpublished[0] if len(self._unpublished) >= CHANGES_UNPUBLISHED_MAX else None

    def check(self) -> None:
        """Raises why one of them failed: what it should have removed is still there."""
        if self._error is not None:
            raise self._error

    def _count(self, change: PendingChange) -> None:
        if change.error is not None:
            self._error = change.error
        else:
            records, size = change.result
            self._records += records
            self._bytes += size
            change.result = (self._records, self._bytes)

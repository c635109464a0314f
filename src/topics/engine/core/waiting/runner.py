"""One way to wait: a verb that may have to wait is a generator, and the runner resumes it when it can continue.

    steps yield ─┬─ a PendingChange ─▶ published, or failed                     ─┐
                 ├─ a ColdMiss      ─▶ read from disk; a failure is thrown in    ├─▶ ready ─▶ resumed in a later turn
                 ├─ a Signal        ─▶ a topic changed, time is up, any event    │
                 └─ None            ─▶ at once, after the other ready tasks     ─┘

Steps end with their result, or raise a TopicsError. A verb that decides without waiting stays a plain function: it
raises Busy or ColdMiss in the rare case that it cannot decide yet, and `attempt` runs it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mypy_extensions import mypyc_attr

from topics.engine.core.pending import Busy, PendingChange, not_replicated
from topics.engine.core.waiting.deadlines import Deadline, Deadlines
from topics.engine.log.on_disk.cold import ColdMiss, Reader
from topics.engine.log.waiters import Waiter, Waiters
from topics.model.errors import NotReplicated, TopicsError

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@mypyc_attr(allow_interpreted_subclasses=True)
class Signal:
    """An event for one task: it resumes the task that has yielded it, or the next task that does."""

    __slots__ = ("_is_set", "_task")

    def __init__(self) -> None:
        self._is_set = False
        self._task: Task[Any] | None = None

    def set(self) -> None:
        task, self._task = self._task, None
        if task is None:
            self._is_set = True
        else:
            task.resume()

    def wait(self, task: Task[Any]) -> None:
        """Resume this task when the signal is set; a signal that is set already is used up by it."""
        if self._is_set:
            self._is_set = False
            task.resume()
        else:
            self._task = task

    def detach(self) -> None:
        self._task = None


class News(Signal):
    """Set whenever one of the topics changes, and when the time is up: then it is `expired`. Closed by its owner."""

    __slots__ = ("_alarm", "_deadline", "_deadlines", "_registered", "_waiters", "expired")

    def __init__(self, waiters: Waiters, deadlines: Deadlines, topics: Iterable[Topic], wait_ms: int | None) -> None:
        super().__init__()
        self.expired = False
        self._waiters = waiters
        self._deadlines = deadlines
        self._registered: list[Waiter] = [waiters.add(topic, self.set) for topic in topics]
        self._deadline: Deadline | None = None if wait_ms is None else deadlines.add(wait_ms, self._expire)
        self._alarm: Deadline | None = None

    def _expire(self) -> None:
        self.expired = True
        self.set()

    def look_again_in(self, wait_ms: int | None) -> None:
        """Also set it at this time, instead of the one that was given before."""
        if self._alarm is not None:
            self._deadlines.remove(self._alarm)
        self._alarm = None if wait_ms is None else self._deadlines.add(wait_ms, self.set)

    def close(self) -> None:
        for waiter in self._registered:
            self._waiters.remove(waiter)
        for deadline in (self._deadline, self._alarm):
            if deadline is not None:
                self._deadlines.remove(deadline)
        # They refer back to this object, and collections are rare.
        self._registered, self._deadline, self._alarm = [], None, None


Wait = PendingChange | ColdMiss | Signal | None
Steps = Generator[Wait, None, T]


class Owner(Protocol[T_contra]):
    """The owner of a task."""

    @property
    def wanted(self) -> bool:
        """Whether the result still matters; if not, the task is cancelled instead of resumed."""
        ...

    def done(self, result: T_contra, /) -> None: ...

    def failed(self, error: Exception, /) -> None:
        """It raised a TopicsError; anything else is a bug."""
        ...

    def cancelled(self) -> None: ...


class Task(Generic[T]):
    """Steps that have to wait."""

    __slots__ = ("_cancelled", "_error", "_owner", "_reader", "_runner", "_running", "_signal", "_steps")

    def __init__(self, runner: Runner, steps: Steps[T], owner: Owner[T], reader: Reader | None) -> None:
        self._runner = runner
        self._reader = reader
        self._steps: Steps[T] | None = steps
        self._owner: Owner[T] | None = owner
        self._signal: Signal | None = None
        # the error that it is resumed with
        self._error: TopicsError | None = None
        self._running = False
        self._cancelled = False

    @property
    def over(self) -> bool:
        return self._steps is None

    def resume(self, _: object = None) -> None:
        if self._steps is not None:
            self._signal = None
            self._runner.make_ready(self)

    def cancel(self) -> None:
        """The result is not needed any more: the steps are closed, so that their clean-up runs."""
        if self._running:
            self._cancelled = True
            return
        steps, owner = self._end()
        if self._signal is not None:
            self._signal.detach()
            self._signal = None
        if steps is not None and owner is not None:
            steps.close()
            owner.cancelled()

    def wait_for(self, wait: Wait) -> None:
        if wait is None:
            self.resume()
        elif isinstance(wait, PendingChange):
            if self._runner.patient:
                wait.then(self.resume)
            else:
                wait.answer(self._changed)
        elif isinstance(wait, Signal):
            self._signal = wait
            wait.wait(self)
        else:
            self._read(wait)

    def _changed(self, change: PendingChange) -> None:
        """A change that was not done in time is replaced by one with the reason."""
        if isinstance(change.error, NotReplicated):
            self._error = change.error
        self.resume()

    def _read(self, miss: ColdMiss) -> None:
        reader = self._reader or self._runner.reader
        assert reader is not None, "nothing is cold before the store is open"
        reader.fetch(miss, self._has_read)

    def _has_read(self, error: TopicsError | None) -> None:
        self._error = error
        self.resume()

    def step(self) -> object:
        """Continue up to the next wait or the end; the owner, for measurements."""
        steps, owner = self._steps, self._owner
        if steps is None or owner is None:
            return None
        if not owner.wanted:
            self.cancel()
            return owner
        self._running = True
        error, self._error = self._error, None
        try:
            wait = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            self._end()
            owner.done(end.value)
        except Exception as failure:  # noqa: BLE001 - the owner tells a refusal from a bug
            self._end()
            owner.failed(failure)
        else:
            self._running = False
            if self._cancelled:
                self.cancel()
            else:
                self.wait_for(wait)
        return owner

    def _end(self) -> tuple[Steps[T] | None, Owner[T] | None]:
        """Break the references to the steps and their owner."""
        steps, owner = self._steps, self._owner
        self._steps = self._owner = None
        self._running = False
        return steps, owner


class Runner:
    """Tasks that can continue, in the order in which they became ready. `wake` requests a turn from the host.

    A `patient` one is for tasks without a caller: they wait for a change for as long as it takes.
    """

    def __init__(
        self,
        waiters: Waiters,
        deadlines: Deadlines,
        wake: Callable[[], None],
        clock_s: Callable[[], float] = perf_counter,
        *,
        patient: bool = False,
    ) -> None:
        self.patient = patient
        self.deadlines = deadlines
        self.waiters = waiters
        # Set when the store is open.
        self.reader: Reader | None = None
        # Called with each owner whose task continued, and how long that took in seconds.
        self.on_ran: Callable[[object, float], None] | None = None
        self._wake = wake
        self.clock_s = clock_s
        self._ready: deque[Task[Any]] = deque()

    @property
    def pending(self) -> bool:
        """Whether a task can continue now."""
        return bool(self._ready)

    def start(self, steps: Steps[T], owner: Owner[T], reader: Reader | None = None) -> Task[T] | None:
        """Run the steps as far as they go; a task only if they have to wait. `reader` reads from disk for them."""
        try:
            wait = next(steps)
        except StopIteration as end:
            owner.done(end.value)
            return None
        except Exception as failure:  # noqa: BLE001 - as in Task.step
            owner.failed(failure)
            return None
        task = Task(self, steps, owner, reader)
        task.wait_for(wait)
        return task

    def make_ready(self, task: Task[Any]) -> None:
        self._ready.append(task)
        self._wake()

    def run(self, until_s: float) -> bool:
        """Resume those that are ready now, each once; whether there was one before `until_s`.

        Tasks without time left, and those that become ready meanwhile, wait for the next run.
        """
        ready, self._ready = self._ready, deque()
        ran = False
        now_s = self.clock_s()
        while ready and now_s < until_s:
            began_s = now_s
            owner = ready.popleft().step()
            now_s = self.clock_s()
            if self.on_ran is not None and owner is not None:
                self.on_ran(owner, now_s - began_s)
            ran = True
        if ready:
            ready.extend(self._ready)
            self._ready = ready
            self._wake()
        return ran

    def news(self, topics: Iterable[Topic], wait_ms: int | None = None) -> News:
        """A signal for changes of these topics, and for the end of `wait_ms`; to be closed."""
        return News(self.waiters, self.deadlines, topics, wait_ms)

    def pause(self, wait_ms: int) -> Steps[None]:
        """Continue after that time."""
        news = self.news((), wait_ms)
        try:
            yield news
        finally:
            news.close()


def attempt(verb: Callable[[], T]) -> Steps[T]:
    """Run a verb that decides at once, again whenever it could not decide yet."""
    while True:
        try:
            return verb()
        except Busy as busy:
            wait: Wait = busy.change
        except ColdMiss as miss:
            wait = miss
        yield from before_verb(wait)


def before_verb(wait: Wait) -> Steps[None]:
    """Wait for what a verb needs to decide; it has written nothing if that is not done in time."""
    try:
        yield wait
    except NotReplicated:
        raise not_replicated(written=False) from None


def published(change: PendingChange) -> Steps[PendingChange]:
    """Wait until the change is as durable as required; raises the reason if it fails."""
    if not change.done:
        yield change
    if change.error is not None:
        raise change.error
    return change

"""Long work in short steps: generators that yield wherever the owner thread may do something else."""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import Thread
from typing import TypeVar

from topics.storage.worker import WorkerJob

T = TypeVar("T")
# No step between two yields takes more than about a millisecond.
Steps = Generator[None, None, T]

# How long an owner without other work sleeps between two looks at a thread.
PAUSE_S = 0.001


def at_once(steps: Steps[T]) -> T:
    """Run the work to its end; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def in_thread(fn: Callable[[], T], give_up: Callable[[], None] | None = None) -> Steps[T]:
    """Make a blocking call in a thread of its own. It must spend its time in calls that release the GIL.

    `give_up` is called if nobody wants the result any more, and should make the call end soon.
    """
    job = WorkerJob(fn, None)
    thread = Thread(target=job.run, name="topics-steps", daemon=True)
    thread.start()
    try:
        while not job.done:
            thread.join(PAUSE_S)
            yield
    except BaseException:
        if give_up is not None:
            give_up()
        raise
    finally:
        thread.join()
    return job.result()

"""Handlers of calls: run at once; one that has to wait continues as a task of the runner.

    handler replies, or a change it has submitted will       ─▶ nothing more to do
    handler returns steps                                    ─▶ a task, if they have to wait
    handler raises Busy or ColdMiss: it cannot decide yet    ─▶ run again, as a task, when it can

A handler that raises Busy or ColdMiss decides everything again when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.api.call import Call
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.runner import Runner, Steps, Wait, attempt, before_verb
from topics.engine.log.on_disk.cold import ColdMiss
from topics.model.errors import TopicsError


class Handlers:
    """Runs the handlers of calls; an error that they raise becomes the reply."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, call: Call) -> None:
        try:
            steps = call.bound.handler(call)
        except Busy as busy:
            steps = _run_after(busy.change, call)
        except ColdMiss as miss:
            steps = _run_after(miss, call)
        except Exception as error:  # noqa: BLE001 - a bug is answered, too
            call.failed(error)
            return
        if steps is not None:
            self._start(call, steps)

    def run_later(self, call: Call) -> None:
        """Run the handler when this tick has published its changes."""
        self._start(call, _run_after(None, call))

    def _start(self, call: Call, steps: Steps[None]) -> None:
        task = self._runner.start(steps, call)
        if task is not None:
            call.waits(task)


def _run_after(wait: Wait, call: Call) -> Steps[None]:
    yield from before_verb(wait)
    steps = yield from attempt(partial(call.bound.handler, call))
    if steps is not None:
        yield from steps


def answering(call: Call, answer: Callable[[Call, PendingChange], None]) -> Callable[[PendingChange], None]:
    """The callback of a submitted change: its failure, or a bug in `answer`, affects only this call."""

    def published(change: PendingChange) -> None:
        try:
            if change.error is not None:
                call.fail(change.error)
            else:
                answer(call, change)
        except TopicsError as error:
            call.fail(error)
        except Exception as bug:  # noqa: BLE001 - it must not reach the loop that publishes the others' changes
            call.fail_by_bug(bug)

    return published

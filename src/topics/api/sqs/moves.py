"""Message move tasks: dead letters on their way back, in the background, with their progress.

Tasks are kept in memory. After a restart the moved messages are moved, the others are where they were.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import Final

from topics.api.auth import Principal, Scope
from topics.api.sqs.errors import SqsError, invalid_value
from topics.api.sqs.exchange import Exchange
from topics.api.sqs.operations import Operation
from topics.api.sqs.requests import (
    CancelMessageMoveTask,
    ListMessageMoveTasks,
    Moved,
    MoveTaskEntry,
    MoveTaskList,
    StartMessageMoveTask,
    TaskHandle,
)
from topics.engine.core.waiting.runner import Runner, Steps, Task, attempt
from topics.engine.queues.operator.redrive import LIMIT_MAX
from topics.engine.queues.verbs import Queues
from topics.model.clock import Clock
from topics.model.errors import TopicsError
from topics.model.requests.records import RedriveRequest

log = logging.getLogger("topics.api")

RATE_MAX: Final = 500
# Tasks that are remembered: of one queue, and of all.
LISTED_MAX: Final = 10
REMEMBERED_MAX: Final = 1_000


class MoveTask:
    """One task, and the owner of its steps."""

    def __init__(self, source: str, destination: str | None, rate: int, principal: Principal, started_ts: int) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.source = source
        self.destination = destination
        self.rate = rate
        self.principal = principal
        self.started_ts = started_ts
        self.status = "RUNNING"
        self.reason = ""
        self.moved = 0
        self.to_move = 0
        self.task: Task[None] | None = None

    def run(self, queues: Queues, runner: Runner) -> Steps[None]:
        request = RedriveRequest(limit=LIMIT_MAX, rate_per_s=self.rate)
        more = True
        while more:
            driven = yield from queues.redriver.redrive_all(self.source, request, self._may_touch, to=self.destination)
            self.moved += driven.moved
            more = driven.more and driven.moved > 0
            if more and self.rate:
                yield from runner.pause(1000 * driven.moved // self.rate)

    def _may_touch(self, name: str) -> bool:
        return name.startswith(self.principal.prefixes)

    # --- the owner of the task ---

    @property
    def wanted(self) -> bool:
        return self.status == "RUNNING"

    def done(self, result: None) -> None:
        del result
        self.status = "COMPLETED"

    def failed(self, error: Exception) -> None:
        self.status = "FAILED"
        self.reason = error.message if isinstance(error, TopicsError) else "a bug in the server, see its log"
        if not isinstance(error, TopicsError):
            log.error("moving messages of %s failed", self.source, exc_info=error)

    def cancelled(self) -> None:
        self.status = "CANCELLED"


class MoveOperations:
    def __init__(self, queues: Queues, runner: Runner, clock: Clock) -> None:
        self._queues = queues
        self._runner = runner
        self._clock = clock
        self._tasks: deque[MoveTask] = deque(maxlen=REMEMBERED_MAX)

    def table(self) -> dict[str, Operation]:
        moving = Scope.WRITE | Scope.DELETE
        return {
            "StartMessageMoveTask": Operation(StartMessageMoveTask, self.start, moving),
            "ListMessageMoveTasks": Operation(ListMessageMoveTasks, self.list, Scope.READ),
            "CancelMessageMoveTask": Operation(CancelMessageMoveTask, self.cancel, moving),
        }

    def start(self, exchange: Exchange) -> Steps[TaskHandle]:
        params: StartMessageMoveTask = exchange.params
        source = yield from self._existing(exchange, params.source_arn, "SourceArn")
        destination = None
        if params.destination_arn is not None:
            destination = yield from self._existing(exchange, params.destination_arn, "DestinationArn")
            if destination == source:
                raise SqsError("InvalidParameterValue", "Source and destination of a move must be different queues.")
        rate = params.max_number_of_messages_per_second or 0
        if params.max_number_of_messages_per_second is not None and not 1 <= rate <= RATE_MAX:
            raise invalid_value(rate, "MaxNumberOfMessagesPerSecond", f"must be between 1 and {RATE_MAX}")
        if any(task.source == source and task.wanted for task in self._tasks):
            raise SqsError("UnsupportedOperation", "There is already a task running. Only one is allowed for a queue.")
        task = MoveTask(source, destination, rate, exchange.call.principal, self._clock.now_ms())
        task.to_move = self._queues.existing(source).ready
        self._tasks.append(task)
        task.task = self._runner.start(task.run(self._queues, self._runner), task)
        return TaskHandle(task.handle)

    def _existing(self, exchange: Exchange, arn: str, field: str) -> Steps[str]:
        name = exchange.name_of(arn, field)
        try:
            yield from attempt(lambda: self._queues.find(name))
        except TopicsError:
            raise SqsError("ResourceNotFoundException", f"The queue of {field} does not exist.") from None
        return name

    def list(self, exchange: Exchange) -> Steps[MoveTaskList]:
        """The newest first."""
        params: ListMessageMoveTasks = exchange.params
        limit = 1 if params.max_results is None else params.max_results
        if not 1 <= limit <= LISTED_MAX:
            raise invalid_value(limit, "MaxResults", f"must be between 1 and {LISTED_MAX}")
        source = yield from self._existing(exchange, params.source_arn, "SourceArn")
        found = [task for task in reversed(self._tasks) if task.source == source]
        return MoveTaskList([_entry(exchange, task) for task in found[:limit]])

    def cancel(self, exchange: Exchange) -> Steps[Moved]:
        params: CancelMessageMoveTask = exchange.params
        task = next((one for one in self._tasks if one.handle == params.task_handle and one.wanted), None)
        if task is None:
            raise SqsError("ResourceNotFoundException", "There is no running task with this handle.")
        exchange.allowed(task.source, "TaskHandle")
        if task.task is not None:
            task.task.cancel()
        return Moved(task.moved)
        yield


def _entry(exchange: Exchange, task: MoveTask) -> MoveTaskEntry:
    entry = MoveTaskEntry(
        status=task.status,
        source_arn=exchange.arn_of(task.source),
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        started_timestamp=task.started_ts,
    )
    if task.wanted:
        entry.task_handle = task.handle
    if task.destination is not None:
        entry.destination_arn = exchange.arn_of(task.destination)
    if task.rate:
        entry.max_number_of_messages_per_second = task.rate
    if task.reason:
        entry.failure_reason = task.reason
    return entry

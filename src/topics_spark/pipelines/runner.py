"""The runner: gets definitions from the server, leases them, runs one query for each, and reports their status.

every second    definitions ─▶ leases: our pipelines ─▶ start, restart, stop ─▶ status and progress ─▶ the server
in a thread     leases are extended, however long a query takes to start or to stop
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.client import (
    Client,
    ConnectionFailed,
    Forbidden,
    NotReady,
    Outgoing,
    Pipeline,
    PipelineNotFound,
    ShuttingDown,
    Timeout,
    TopicExistsIncompatible,
    TopicsError,
    Unauthorized,
)
from topics.model.requests.pipelines import PipelineRequest
from topics_spark.pipelines import building
from topics_spark.pipelines.assignment import Assignment, RunnerConfig
from topics_spark.pipelines.leases import Leases
from topics_spark.pipelines.pipeline_run import PipelineRun, brief

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from topics_spark.pipelines.jobs import JobQuery

log = logging.getLogger("topics_spark.pipelines")

PROGRESS: Final = "pipelines.progress"
PROGRESS_RECORDS_MAX: Final = 100_000
TURN_S: Final = 1.0
REPORT_S: Final = 5.0
# At least this often, even without news: a runner that is silent for longer counts as dead.
SIGN_OF_LIFE_S: Final = 20.0
UNREACHABLE: Final = (ConnectionFailed, Timeout, NotReady, ShuttingDown)


class Runner:
    """Owns the queries of one Spark application. `turn` is one round; `run` repeats it until stopped."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        config: RunnerConfig,
        name: str,
        only: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._client = client
        self._config = config
        self._name = name
        self._only = frozenset(only)
        self._clock = clock
        self._leases = Leases(client, name, clock)
        self.running: dict[str, PipelineRun] = {}
        self._reported: dict[str, tuple[float, dict[str, Any]]] = {}

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; then stop every query and release its lease."""
        # An existing topic keeps its configuration.
        with contextlib.suppress(TopicExistsIncompatible):
            self._client.create(PROGRESS, cap_records=PROGRESS_RECORDS_MAX)
        over = threading.Event()
        extending = threading.Thread(target=self._extend_leases, args=(over,), name="leases", daemon=True)
        extending.start()
        try:
            while not stop.is_set():
                self._try_turn()
                stop.wait(TURN_S)
        finally:
            log.info("stopping %d pipelines", len(self.running))
            self.drain()
            over.set()
            extending.join()

    def _try_turn(self) -> None:
        try:
            self.turn()
        except UNREACHABLE as error:
            log.warning("the server does not reply, the queries continue: %s", error.message)
            self._stop_lost(self._leases.expired())
        except (Unauthorized, Forbidden):
            raise
        except TopicsError as error:
            log.warning("the server refuses, trying again: %s", error.message)

    def _extend_leases(self, over: threading.Event) -> None:
        while not over.wait(TURN_S):
            self.extend_leases()

    def extend_leases(self) -> None:
        """Call it in a thread of its own: `turn` may take longer than a lease lasts."""
        try:
            self._leases.extend()
        except TopicsError as error:
            log.warning("no lease was extended: %s", error.message)

    def turn(self) -> None:
        defined = {found.pipeline: found for found in self._client.pipelines()}
        wanted = {name: found for name, found in defined.items() if self._wants(found)}
        self._stop_lost(self._leases.renew())
        for name in (self.running.keys() | self._leases.held.keys()) - wanted.keys():
            self._stop(name)
            self._leases.release(name, done=True)
            if name not in defined:
                self._config.forget_checkpoints(name)
        self._leases.acquire(wanted.keys())
        for name, held in self._leases.held.items():
            self._keep_up(wanted[name], held.fence)
        for running in self.running.values():
            alone = not any(other.begins for other in self.running.values())
            self._publish(running, running.poll(may_begin=alone))

    def _wants(self, found: Pipeline) -> bool:
        return found.definition.get("enabled") is not False and (not self._only or found.pipeline in self._only)

    def _keep_up(self, found: Pipeline, fence: int) -> None:
        """Run a query of the current definition."""
        running = self.running.get(found.pipeline)
        if running is not None and running.assignment.revision == found.revision:
            return
        if running is not None:
            log.info("pipeline %s has changed", found.pipeline)
            self._publish(running, running.stop())
        try:
            definition = msgspec.convert(found.definition, PipelineRequest)
        except msgspec.ValidationError as error:
            self._not_understood(found, error)
            return
        assignment = Assignment(found.pipeline, definition, found.revision, found.generation, fence)
        self.running[found.pipeline] = PipelineRun(assignment, self._start, self._clock)

    def _not_understood(self, found: Pipeline, error: msgspec.ValidationError) -> None:
        """The server is newer than this runner: another runner may know the definition."""
        self.running.pop(found.pipeline, None)
        status = {"state": "failed", "runner": self._name, "revision": found.revision}
        status["last_error"] = f"this runner is too old for the definition: {error}"
        if self._reported.get(found.pipeline, (0.0, {}))[1] != status:
            self._reported[found.pipeline] = self._clock(), status
            log.error("pipeline %s: %s", found.pipeline, status["last_error"])
            self._client.report_pipeline(found.pipeline, status)

    def _start(self, assignment: Assignment) -> StreamingQuery | JobQuery:
        log.info("starting pipeline %s, revision %d", assignment.name, assignment.revision)
        query = building.start(self._spark.newSession(), assignment, self._config, self._client)
        self._config.forget_checkpoints(assignment.name, assignment.generation)
        return query

    def _stop(self, name: str) -> None:
        running = self.running.pop(name, None)
        if running is not None:
            log.info("pipeline %s stops", name)
            self._publish(running, running.stop())
            self._reported.pop(name, None)

    def _stop_lost(self, lost: Collection[str]) -> None:
        """Stop pipelines whose leases are lost: another runner may have them by now."""
        for name in lost:
            log.warning("the lease of pipeline %s is lost", name)
            running = self.running.pop(name, None)
            if running is not None:
                running.stop()

    # --- reporting ---

    def _publish(self, running: PipelineRun, batches: list[dict[str, Any]]) -> None:
        name = running.assignment.name
        events = [Outgoing({"pipeline": name, "runner": self._name, **brief(batch)}, tag=name) for batch in batches]
        status = running.status(self._name)
        told_s, told = self._reported.get(name, (0.0, {}))
        changed = any(status[field] != told.get(field) for field in ("state", "last_error", "restarts"))
        if changed:
            told_of = {field: status[field] for field in ("state", "last_error", "restarts")}
            events.append(Outgoing({"pipeline": name, "runner": self._name, **told_of}, tag=name))
        if events:
            self._client.append_many(PROGRESS, events)
        silent_s = self._clock() - told_s
        if changed or silent_s >= SIGN_OF_LIFE_S or (status != told and silent_s >= REPORT_S):
            with contextlib.suppress(PipelineNotFound):
                self._client.report_pipeline(name, status)
            self._reported[name] = self._clock(), status

    def drain(self) -> None:
        """Stop everything, and release the leases, so that other runners can continue at once."""
        for name in self.running.keys() | self._leases.held.keys():
            try:
                self._stop(name)
                self._leases.release(name)
            except TopicsError as error:
                log.warning(
                    "pipeline %s is stopped, but its lease was not released and will expire: %s", name, error.message
                )

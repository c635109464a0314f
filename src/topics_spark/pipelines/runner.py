"""The runner: takes definitions from the server, leases them, keeps one query going for each, and tells how they fare.

every second    definitions ─▶ leases: what is ours ─▶ start, restart, stop ─▶ status and progress ─▶ the server
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.client import Client, ConnectionFailed, NotReady, Outgoing, Pipeline, ShuttingDown, Timeout, TopicsError
from topics.model.pipelines import PipelineWish
from topics_spark.pipelines import building
from topics_spark.pipelines.assignment import Assignment, Place
from topics_spark.pipelines.leases import Leases
from topics_spark.pipelines.running import Running, brief

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from topics_spark.pipelines.jobs import JobQuery

log = logging.getLogger("topics_spark.pipelines")

PROGRESS: Final = "pipelines.progress"
PROGRESS_RECORDS_MAX: Final = 100_000
TURN_S: Final = 1.0
REPORT_S: Final = 5.0
UNREACHABLE: Final = (ConnectionFailed, Timeout, NotReady, ShuttingDown)


class Runner:
    """Owns the queries of one Spark application. `turn` is one round; `run` repeats it until told to stop."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        place: Place,
        name: str,
        only: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._client = client
        self._place = place
        self._name = name
        self._only = frozenset(only)
        self._clock = clock
        self._leases = Leases(client, name, clock)
        self.running: dict[str, Running] = {}
        self._reported: dict[str, tuple[float, dict[str, Any]]] = {}

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; then every query ends and its lease goes back."""
        self._client.create(PROGRESS, cap_records=PROGRESS_RECORDS_MAX)
        try:
            while not stop.is_set():
                try:
                    self.turn()
                except UNREACHABLE as error:
                    log.warning("the server does not answer, the queries go on: %s", error.message)
                    self._stop_lost()
                stop.wait(TURN_S)
        finally:
            self.drain()

    def turn(self) -> None:
        wanted = {found.pipeline: found for found in self._client.pipelines() if self._wants(found)}
        self._stop_lost(self._leases.renew())
        for name in [name for name in self.running if name not in wanted]:
            self._stop(name)
            self._leases.release(name, done=True)
        self._leases.acquire(wanted.keys())
        for name, held in self._leases.held.items():
            self._keep_up(wanted[name], held.fence)
        for running in self.running.values():
            self._publish(running, running.poll())

    def _wants(self, found: Pipeline) -> bool:
        return found.definition.get("enabled") is not False and (not self._only or found.pipeline in self._only)

    def _keep_up(self, found: Pipeline, fence: int) -> None:
        """A query of the definition as it is now."""
        running = self.running.get(found.pipeline)
        if running is not None and running.assignment.revision == found.revision:
            return
        if running is not None:
            log.info("pipeline %s has changed", found.pipeline)
            running.stop()
        definition = msgspec.convert(found.definition, PipelineWish)
        assignment = Assignment(found.pipeline, definition, found.revision, found.generation, fence)
        self.running[found.pipeline] = Running(assignment, self._start, self._clock)

    def _start(self, assignment: Assignment) -> StreamingQuery | JobQuery:
        return building.start(self._spark.newSession(), assignment, self._place, self._client)

    def _stop(self, name: str) -> None:
        running = self.running.pop(name, None)
        if running is not None:
            running.stop()
            self._publish(running, [])
            self._reported.pop(name, None)

    def _stop_lost(self, lost: Collection[str] | None = None) -> None:
        """What is not ours any more must not go on: another runner may have it by now."""
        for name in self._leases.expired() if lost is None else lost:
            log.warning("pipeline %s is not ours any more", name)
            running = self.running.pop(name, None)
            if running is not None:
                running.stop()

    # --- telling ---

    def _publish(self, running: Running, batches: list[dict[str, Any]]) -> None:
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
        if changed or (status != told and self._clock() - told_s >= REPORT_S):
            self._reported[name] = self._clock(), status
            try:
                self._client.report_pipeline(name, status)
            except TopicsError as error:
                if error.code != "pipeline_not_found":
                    raise

    def drain(self) -> None:
        for name in list(self.running):
            try:
                self._stop(name)
                self._leases.release(name)
            except UNREACHABLE as error:
                log.warning("pipeline %s is stopped, and its lease runs out by itself: %s", name, error.message)

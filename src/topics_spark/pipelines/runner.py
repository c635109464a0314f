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
from itertools import islice
from pathlib import Path
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
from topics.model.requests.pipelines import POSITIONS_MAX, PipelineRequest
from topics_spark.options import Subscription
from topics_spark.pipelines import building
from topics_spark.pipelines.assignment import PROGRESS, Assignment, RunnerConfig
from topics_spark.pipelines.checkpoints.positions import positions
from topics_spark.pipelines.leases import Leases
from topics_spark.pipelines.operating.sharing import (
    MOVE_S,
    Fellows,
    Note,
    Shares,
    Work,
    holder_of,
    load_of,
    share,
)
from topics_spark.pipelines.pipeline_run import PipelineRun, brief
from topics_spark.pipelines.ready_made import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from topics_spark.pipelines.jobs import JobQuery

log = logging.getLogger("topics_spark.pipelines")

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
        self._spark_ui = ui_of(spark)
        self._leases = Leases(client, name, clock)
        self._fellows = Fellows(client, Note(name, cores_of(spark), sorted(self._only)))
        # A runner that has just started waits until the others are known.
        self._moved_s = clock()
        self.running: dict[str, PipelineRun] = {}
        self._reported: dict[str, tuple[float, dict[str, Any]]] = {}
        # the topics that match a pattern, and when they were listed
        self._listed: dict[str, tuple[float, list[str]]] = {}

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; then stop every query and release its lease."""
        # An existing topic keeps its configuration.
        with contextlib.suppress(TopicExistsIncompatible):
            self._client.create(PROGRESS, cap_records=PROGRESS_RECORDS_MAX)
        if self._spark_ui is not None:
            log.info("Spark's own pages are at %s", self._spark_ui)
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
        for name in defined.keys() - wanted.keys():
            if defined[name].status is None and (not self._only or name in self._only):
                self._report_paused(defined[name])
        shares = self._shares({name: found for name, found in defined.items() if is_enabled(found)})
        self._leases.acquire(wanted.keys(), shares.mine(self._name))
        self._give_away(shares)
        for name, held in self._leases.held.items():
            self._keep_up(wanted[name], held.fence)
        for running in self.running.values():
            alone = not any(other.begins for other in self.running.values())
            self._publish(running, running.poll(may_begin=alone))

    def _wants(self, found: Pipeline) -> bool:
        return is_enabled(found) and (not self._only or found.pipeline in self._only)

    def _shares(self, enabled: dict[str, Pipeline]) -> Shares:
        """Who should have what, by what all runners say about themselves and their pipelines."""
        alive = self._fellows.alive(self._clock())
        others = alive.keys() - {self._name}
        work = {
            name: Work(load_of(found), self._name if name in self._leases.held else holder_of(found, others))
            for name, found in enabled.items()
        }
        if any(each.holder is None for each in work.values()):
            alive = self._fellows.look()
        return share(work, alive)

    def _give_away(self, shares: Shares) -> None:
        """One pipeline to a runner that has less to do; it continues there from its checkpoint."""
        if shares.moving is None or self._clock() - self._moved_s < MOVE_S:
            return
        name, runner = shares.moving
        if shares.of[name] != self._name or name not in self._leases.held:
            return
        log.info("pipeline %s moves to runner %s, which has less to do", name, runner)
        self._moved_s = self._clock()
        self._stop(name)
        self._leases.release(name)

    def _keep_up(self, found: Pipeline, fence: int) -> None:
        """Run a query of the current definition."""
        running = self.running.get(found.pipeline)
        if running is not None and running.assignment.revision == found.revision:
            return
        if running is not None:
            running.note(logging.INFO, f"has changed, revision {found.revision}")
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
        query = building.start(self._spark.newSession(), assignment, self._config, self._client)
        self._config.forget_checkpoints(assignment.name, assignment.generation)
        return query

    def _stop(self, name: str) -> None:
        running = self.running.pop(name, None)
        if running is not None:
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
        status = {**running.status(self._name), "spark_ui": self._spark_ui}
        told_s, told = self._reported.get(name, (0.0, {}))
        changed = any(status[field] != told.get(field) for field in ("state", "last_error", "restarts"))
        if changed:
            told_of = {field: status[field] for field in ("state", "last_error", "restarts")}
            events.append(Outgoing({"pipeline": name, "runner": self._name, **told_of}, tag=name))
        if events:
            self._client.append_many(PROGRESS, events)
        silent_s = self._clock() - told_s
        if not changed and silent_s < REPORT_S:
            return
        status |= self._whereabouts(running.assignment)
        if changed or silent_s >= SIGN_OF_LIFE_S or status != told:
            with contextlib.suppress(PipelineNotFound):
                self._client.report_pipeline(name, status)
            self._reported[name] = self._clock(), status

    def _whereabouts(self, assignment: Assignment) -> dict[str, Any]:
        """Where it is in its topics, and where that is written; a job has no checkpoint."""
        definition = assignment.definition
        found: dict[str, Any] = dict(self._config.places(assignment))
        if definition.use is not None and BY_NAME[definition.use].job is not None:
            return {**found, "checkpoint": None}
        known = positions(Path(self._config.checkpoint(assignment)), definition, self._matching)
        return {**found, "positions": dict(islice(known.items(), POSITIONS_MAX))}

    def _matching(self, pattern: str) -> list[str]:
        """The topics that match; one that is new is found a little later."""
        known = self._listed.get(pattern)
        if known is not None and self._clock() - known[0] < SIGN_OF_LIFE_S:
            return known[1]
        subscription = Subscription(pattern=pattern)
        found = (item.topic for item in self._client.list(subscription.prefix))
        names = [name for name in found if subscription.matches(name)]
        self._listed[pattern] = self._clock(), names
        return names

    def _report_paused(self, found: Pipeline) -> None:
        """After a restart of the server, which does not keep reports: a paused pipeline has a lag as well."""
        with contextlib.suppress(msgspec.ValidationError, PipelineNotFound):
            definition = msgspec.convert(found.definition, PipelineRequest)
            assignment = Assignment(found.pipeline, definition, found.revision, found.generation, 0)
            if Path(self._config.checkpoint(assignment)).exists():
                status = {"state": "stopped", "runner": self._name, "revision": found.revision}
                self._client.report_pipeline(found.pipeline, {**status, **self._whereabouts(assignment)})

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
        # Otherwise the others notice it when it has been silent for some time.
        with contextlib.suppress(TopicsError):
            self._fellows.leave()


def is_enabled(found: Pipeline) -> bool:
    return found.definition.get("enabled") is not False


def cores_of(spark: SparkSession) -> int:
    """What its share of the work depends on: the tasks that Spark runs at once."""
    with contextlib.suppress(Exception):
        return max(1, int(spark.sparkContext.defaultParallelism))
    return 1


def ui_of(spark: SparkSession) -> str | None:
    """The address of Spark's web pages; None if there are none, or the session is a remote one."""
    with contextlib.suppress(Exception):
        return spark.sparkContext.uiWebUrl
    return None

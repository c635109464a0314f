"""Who runs what: leases, takeovers, changes and restarts, with queries that only pretend and a clock moved by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from topics import testing
from topics.client import Client, Fenced, Record
from topics.model.clock import ManualClock
from topics_spark.pipelines import building
from topics_spark.pipelines import runner as runner_module
from topics_spark.pipelines.assignment import Assignment, RunnerConfig, app_of
from topics_spark.pipelines.leases import LEASE_MS
from topics_spark.pipelines.runner import PROGRESS, Runner

COPY = {"sources": {"logs": {"topic": "logs"}}, "sql": "SELECT * FROM logs", "sink": {"topic": "copy"}}
CONFIG = RunnerConfig("/nowhere/state", "/nowhere/tables")


seconds = itertools.count()


class Told:
    def __init__(self, batch: int, rows: int, *, idle: bool = False) -> None:
        sources = [{"latestOffset": json.dumps({"logs": {"lag": 4, "seq": 9}})}]
        told = {"batchId": batch, "numInputRows": rows, "processedRowsPerSecond": 2.5 if rows else 0.0}
        told |= {"sources": sources, "durationMs": {"triggerExecution": 3} | ({} if idle else {"addBatch": 2})}
        told["timestamp"] = f"2026-01-01T00:00:{next(seconds):06}Z"
        self.json = json.dumps(told)


class Query:
    """The part of a StreamingQuery that a runner looks at."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.isActive = True
        self.error: BaseException | None = None
        self.recentProgress: list[Told] = []
        self.status = {"message": "Waiting for data to arrive"}

    def exception(self) -> BaseException | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def fail(self, message: str) -> None:
        self.error, self.isActive = RuntimeError(message), False


class Spark:
    def newSession(self) -> Spark:  # noqa: N802
        return self


class World:
    """A server in this process, and runners on one clock with it."""

    def __init__(self, engine: testing.Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.clock = clock
        self.client = engine.client()
        self.queries: list[Query] = []
        monkeypatch.setattr(building, "start", self._start)

    def _start(self, spark: Any, assignment: Assignment, config: RunnerConfig, client: Client) -> Query:
        query = Query(assignment)
        self.queries.append(query)
        return query

    def runner(self, name: str, *only: str) -> Runner:
        spark: Any = Spark()
        return Runner(spark, self.engine.client(), CONFIG, name, only, clock=lambda: self.clock.monotonic_ms() / 1000)

    def put(self, name: str, **changes: Any) -> None:
        self.client.put_pipeline(name, {**COPY, **changes})

    def told(self) -> list[Any]:
        return [record.data for record in self.client.read(PROGRESS) if isinstance(record, Record)]

    def active(self, name: str) -> list[Query]:
        return [query for query in self.queries if query.assignment.name == name and query.isActive]

    def later(self, seconds: float, *runners: Runner) -> None:
        """Time passes, and these runners live through it."""
        for _ in range(int(seconds)):
            self.engine.advance(1000)
            for runner in runners:
                runner.turn()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = ManualClock()
    with testing.engine(clock=clock) as engine:
        yield World(engine, clock, monkeypatch)


def test_a_definition_is_run_and_its_end_ends_it(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    runner.turn()
    runner.turn()
    (query,) = world.active("p")
    assert query.assignment.definition.sql == COPY["sql"]
    world.client.drop_pipeline("p")
    runner.turn()
    assert not world.active("p")
    assert world.client.state("pipelines.leases").count == 0


def test_only_the_named_pipelines_are_run(world: World) -> None:
    runner = world.runner("a", "mine")
    world.put("mine")
    world.put("other")
    world.put("resting", enabled=False)
    world.later(3, runner)
    assert [query.assignment.name for query in world.queries] == ["mine"]


def test_two_runners_never_run_the_same_pipeline(world: World) -> None:
    first, second = world.runner("a"), world.runner("b")
    for number in range(3):
        world.put(f"p{number}")
    world.later(60, first, second)
    assert len(world.queries) == 3
    assert all(len(world.active(f"p{number}")) == 1 for number in range(3))


def test_a_dead_runner_is_followed_by_another_with_a_higher_token(world: World) -> None:
    first, second = world.runner("a"), world.runner("b")
    world.put("p")
    world.later(3, first, second)
    (before,) = world.active("p")
    assert before.assignment.name in first.running
    world.later(LEASE_MS / 1000 + 2, second)
    after = world.queries[-1]
    assert after is not before
    assert after.assignment.fence > before.assignment.fence
    with pytest.raises(Fenced):
        world.client.stage(
            app_of("p"), before.assignment.version_base, "late", 0, [1], topic="t", fence=before.assignment.fence
        )
    first.turn()
    assert not before.isActive
    assert first.running == {}


def test_a_runner_that_is_told_to_stop_hands_over_at_once(world: World) -> None:
    first, second = world.runner("a"), world.runner("b")
    world.put("p")
    world.later(2, first, second)
    first.drain()
    world.later(2, second)
    (query,) = world.active("p")
    assert query.assignment.name in second.running


def test_a_runner_cut_off_from_the_server_stops_before_its_lease_is_over(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    world.engine.advance(LEASE_MS + 1)
    runner.turn()
    first, *later = [query for query in world.queries if query.assignment.name == "p"]
    assert not first.isActive
    assert len(later) <= 1


def test_a_change_starts_the_query_again(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    (before,) = world.active("p")
    world.put("p", trigger={"every": "5 seconds"})
    world.later(2, runner)
    (after,) = world.active("p")
    assert after is not before
    assert after.assignment.version_base == before.assignment.version_base
    world.put("p", sql="SELECT 1 FROM logs")
    world.later(2, runner)
    assert world.active("p")[0].assignment.version_base > after.assignment.version_base


def test_a_failure_is_told_and_tried_again_after_growing_pauses(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    for number in range(4):
        world.active("p")[0].fail(f"no {number}")
        runner.turn()
        status = world.client.pipeline("p").status
        assert status is not None
        assert (status["state"], status["restarts"], status["last_error"]) == ("restarting", number + 1, f"no {number}")
        waited = 0
        while not world.active("p"):
            world.later(1, runner)
            waited += 1
        assert waited >= 2**number
    told = world.told()
    assert [event["last_error"] for event in told if event.get("state") == "restarting"] == [
        f"no {number}" for number in range(4)
    ]


def test_batches_are_told_once_each_with_rate_and_lag(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    query = world.active("p")[0]
    query.recentProgress = [Told(0, 3), Told(1, 2)]
    runner.turn()
    query.recentProgress.append(Told(2, 1))
    world.later(6, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    assert (status["batch"], status["rows_total"], status["rows_per_second"], status["lag"]) == (2, 6, 2.5, 4)
    told = world.told()
    assert [event["batchId"] for event in told if "batchId" in event] == [0, 1, 2]


def test_a_number_heard_of_while_there_was_nothing_to_do_is_told_with_its_batch(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    query = world.active("p")[0]
    query.recentProgress = [Told(0, 3), Told(1, 0, idle=True)]
    world.later(6, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    assert (status["batch"], status["rows_per_second"]) == (0, 0.0)
    query.recentProgress.append(Told(1, 2))
    world.client.drop_pipeline("p")
    runner.turn()
    assert [event["batchId"] for event in world.told() if "batchId" in event] == [0, 1]


def test_queries_are_started_one_after_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = world.runner("a")
    for number in range(3):
        world.put(f"p{number}")

    def start(spark: Any, assignment: Assignment, config: RunnerConfig, client: Client) -> Query:
        query = Query(assignment)
        query.status = {"message": "Initializing sources"}
        world.queries.append(query)
        return query

    monkeypatch.setattr(building, "start", start)
    world.later(5, runner)
    assert len(world.queries) == 1
    world.queries[0].status = {"message": "Processing new data"}
    world.later(5, runner)
    assert len(world.queries) == 2
    world.later(20, runner)
    assert len(world.queries) == 3, "one that does not get on holds up the others for a while only"


def test_once_runs_to_its_end_and_not_again(world: World) -> None:
    runner = world.runner("a")
    world.put("p", trigger={"once": True})
    world.later(2, runner)
    world.active("p")[0].stop()
    world.later(30, runner)
    assert len(world.queries) == 1
    status = world.client.pipeline("p").status
    assert status is not None
    assert status["state"] == "idle"


def is_up(world: World, pipeline: str) -> bool:
    return f'topics_pipeline_up{{pipeline="{pipeline}"}} 1.0' in world.client.metrics()


def test_a_runner_without_news_says_that_it_lives_and_a_dead_one_is_noticed(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(120, runner)
    assert is_up(world, "p")
    world.later(61)
    assert not is_up(world, "p")


def test_leases_are_kept_while_a_query_takes_long_to_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = world.runner("a")
    world.put("slow")

    def start(spark: Any, assignment: Assignment, config: RunnerConfig, client: Client) -> Query:
        for _ in range(3 * LEASE_MS // 1000):
            world.engine.advance(1000)
            runner.extend_leases()
        return Query(assignment)

    monkeypatch.setattr(building, "start", start)
    runner.turn()
    runner.turn()
    assert list(runner.running) == ["slow"]
    assert world.runner("b").turn() is None
    assert list(runner.running) == ["slow"]


def test_a_definition_that_this_runner_is_too_old_for_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = world.runner("a")
    world.put("p")
    known = runner_module.PipelineRequest
    monkeypatch.setattr(runner_module, "PipelineRequest", OlderRequest)
    world.later(3, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    assert status["state"] == "failed"
    assert "sink" in status["last_error"]
    monkeypatch.setattr(runner_module, "PipelineRequest", known)
    world.later(3, runner)
    assert len(world.active("p")) == 1


class OlderRequest(msgspec.Struct, forbid_unknown_fields=True):
    sources: dict[str, Any]
    sql: str

"""Who runs what: leases, takeovers, changes and restarts, with queries that only pretend and a clock moved by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from topics import testing
from topics.client import Client, Fenced, Record
from topics.model.clock import ManualClock
from topics.model.requests.pipelines import LOG_LINES_MAX, LOG_MESSAGE_CHARS_MAX
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines import building, pipeline_run
from topics_spark.pipelines import runner as runner_module
from topics_spark.pipelines.assignment import Assignment, RunnerConfig, app_of
from topics_spark.pipelines.leases import LEASE_MS
from topics_spark.pipelines.runner import PROGRESS, Runner

COPY = {"sources": {"logs": {"topic": "logs"}}, "sql": "SELECT * FROM logs", "sink": {"topic": "copy"}}


seconds = itertools.count()


class Told:
    def __init__(self, batch: int, rows: int, *, idle: bool = False, late: int = 0) -> None:
        told = {"batchId": batch, "numInputRows": rows, "processedRowsPerSecond": 2.5 if rows else 0.0}
        told |= {
            "stateOperators": [{"numRowsDroppedByWatermark": late}],
            "durationMs": {"triggerExecution": 3} | ({} if idle else {"addBatch": 2}),
        }
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
    def __init__(self, cores: int) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=cores, uiWebUrl=None)

    def newSession(self) -> Spark:  # noqa: N802
        return self


class World:
    """A server in this process, and runners on one clock with it."""

    def __init__(
        self, engine: testing.Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, state: Path
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.client = engine.client()
        self.queries: list[Query] = []
        self.state = state
        monkeypatch.setattr(building, "start", self.start)

    def start(self, spark: Any, assignment: Assignment, config: RunnerConfig, client: Client) -> Query:
        query = Query(assignment)
        self.queries.append(query)
        return query

    def runner(self, name: str, *only: str, cores: int = 1) -> Runner:
        spark: Any = Spark(cores)
        config = RunnerConfig(str(self.state), "/nowhere/tables")
        return Runner(spark, self.engine.client(), config, name, only, clock=lambda: self.clock.monotonic_ms() / 1000)

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
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    with testing.engine(clock=clock) as engine:
        yield World(engine, clock, monkeypatch, tmp_path / "state")


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
    assert sorted(query.assignment.name for query in world.queries if query.isActive) == ["p0", "p1", "p2"]
    assert sorted((len(first.running), len(second.running))) == [1, 2], "one has moved"
    assert len(world.queries) == 4
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


def test_batches_are_told_once_each_with_rate_and_late_rows(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    query = world.active("p")[0]
    query.recentProgress = [Told(0, 3), Told(1, 2)]
    runner.turn()
    query.recentProgress.append(Told(2, 1, late=4))
    world.later(6, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    assert [status[field] for field in ("batch", "rows_total", "rows_per_second", "late_rows")] == [2, 6, 2.5, 4]
    told = [event for event in world.told() if "batchId" in event]
    assert [(event["batchId"], event.get("late_rows")) for event in told] == [(0, None), (1, None), (2, 4)]


def test_lag_grows_while_a_batch_runs_restarts_or_is_paused(world: World) -> None:
    def lag() -> int | None:
        return world.client.pipeline("p").lag

    runner = world.runner("a")
    world.put("p")
    world.client.append_many("logs", list(range(10)))
    world.later(6, runner)
    assert lag() == 10, "before its first batch"
    batch_done(world, 0, 8)
    world.later(6, runner)
    assert lag() == 2
    world.client.append_many("logs", list(range(3_000)))
    assert lag() == 3_002, "before the runner looks again"
    world.active("p")[0].fail("no paper")
    world.later(1, runner)
    assert lag() == 3_002
    world.put("p", enabled=False)
    world.later(6, runner)
    assert not world.active("p")
    assert lag() == 3_002
    status = world.client.pipeline("p").status
    assert status is not None
    assert status["last_error_ts"] > 0


def batch_done(world: World, number: int, seq: int) -> None:
    """What Spark leaves in the checkpoint of a finished batch, and of one that is planned."""
    generation = world.client.pipeline("p").generation
    epoch = world.client.state("logs").epoch
    for log, batch in (("offsets", number), ("commits", number), ("offsets", number + 1)):
        place = world.state / "p" / str(generation) / log / str(batch)
        place.parent.mkdir(parents=True, exist_ok=True)
        end = {"logs": {"epoch": epoch, "from": 0, "seq": seq if batch == number else 10}}
        place.write_text(f"v1\n{{}}\n-\n{json.dumps(end)}")


def test_the_end_of_its_log_is_told_with_a_pipeline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lines_max = 10
    monkeypatch.setattr(pipeline_run, "LOG_LINES_MAX", lines_max)
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    query = world.active("p")[0]
    query.recentProgress = [Told(7, 3)]
    runner.turn()
    query.fail("x" * 1_000)
    world.later(3, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    lines = [(line["level"], line["message"]) for line in status["log"]]
    assert lines[:2] == [("info", "starts, revision 1"), ("info", "batch 7: 3 rows in 0 ms")]
    assert lines[2][0] == "error"
    assert lines[2][1].startswith("failed: xxx")
    assert len(lines[2][1]) == LOG_MESSAGE_CHARS_MAX
    assert lines[3:] == [("info", "starts again in 1 s"), ("info", "starts, revision 1")]
    for _ in range(lines_max):
        world.active("p")[0].fail("again")
        world.later(61, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    assert len(status["log"]) == lines_max < LOG_LINES_MAX


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


def test_once_is_twice_on_a_spark_that_ends_after_one_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch may be one that is repeated after a crash: what came since would wait for the next time."""
    monkeypatch.setattr(pipeline_run, "LIMITED", False)
    runner = world.runner("a")
    world.put("p", trigger={"once": True})
    for runs in (1, 2):
        world.later(3, runner)
        assert len(world.queries) == runs
        world.active("p")[0].stop()
    world.later(30, runner)
    assert len(world.queries) == 2
    status = world.client.pipeline("p").status
    assert status is not None
    assert (status["state"], status.get("restarts", 0)) == ("idle", 0)


def test_what_needs_a_decision_is_not_tried_again_and_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = world.runner("a")
    world.put("p")

    def start(spark: Any, assignment: Assignment, config: RunnerConfig, client: Client) -> Query:
        raise NeedsDecision("no_checkpoint", "choose")

    monkeypatch.setattr(building, "start", start)
    world.later(40, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    assert [status[field] for field in ("state", "problem", "last_error")] == ["failed", "no_checkpoint", "choose"]
    assert status.get("restarts", 0) == 0
    assert not is_up(world, "p")
    assert status["checkpoint"].startswith(str(world.state))
    monkeypatch.setattr(building, "start", world.start)
    world.later(25, runner)
    status = world.client.pipeline("p").status
    assert status is not None
    assert (status["state"], status.get("problem")) == ("running", None)


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


def test_pipelines_are_shared_by_cores_and_come_back_from_a_runner_that_leaves(world: World) -> None:
    small, large = world.runner("small"), world.runner("large", cores=3)
    # Both are known to each other before there is anything to share.
    world.later(1, small, large)
    for number in range(4):
        world.put(f"p{number}")
    world.later(8, small, large)
    assert (len(small.running), len(large.running)) == (1, 3)
    large.drain()
    world.later(3, small)
    assert (len(small.running), len(large.running)) == (4, 0)
    assert sorted(query.assignment.name for query in world.queries if query.isActive) == ["p0", "p1", "p2", "p3"]


def test_a_restart_stops_the_query_and_starts_it_again_at_once(world: World) -> None:
    runner = world.runner("a")
    world.put("p")
    world.later(2, runner)
    world.queries[-1].fail("boom")
    world.later(1, runner)
    world.queries[-1].fail("again")
    generation = world.client.pipeline("p").generation
    world.client.restart_pipeline("p")
    world.later(2, runner)
    (query,) = world.active("p")
    assert (query.assignment.generation, query.assignment.revision > generation) == (generation, True)
    anew = world.client.restart_pipeline("p", anew=True)
    world.later(2, runner)
    (query,) = world.active("p")
    assert query.assignment.generation == anew.generation == anew.revision > generation

"""Operating pipelines on real Spark: backfills, tests in files, plans, checks of every ready-made, own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.spark.pipeline_world import World
from topics.model.errors import InvalidRequest
from topics_spark.pipelines import building, tables
from topics_spark.pipelines.checking import check_streaming
from topics_spark.pipelines.definition import load_cases, parse
from topics_spark.pipelines.operating import explaining
from topics_spark.pipelines.operating.backfill import Backfill, Span, check_backfill, run
from topics_spark.source.limits import LIMITED

PAGE = (Path(__file__).parents[2] / "docs" / "PIPELINES.md").read_text()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def backfilled(world: World, definition: dict[str, Any], span: Span, number: int = 0) -> int:
    request = parse(definition, world.name, "test")
    check_backfill(request, span)
    wanted = Backfill(world.name, request, 1, span, number)
    return run(world.spark.newSession(), world.client, world.config, wanted)


def test_a_backfill_adds_a_range_once_and_leaves_the_stream_alone(world: World) -> None:
    world.append("logs", *({"n": n} for n in range(1, 6)))
    bad = world.topic("bad")
    definition = {
        "sources": {"logs": world.source("logs", schema="n INT")},
        "sql": "SELECT n FROM logs",
        "sink": world.sink("copy"),
        "expect": {"small": {"condition": "n < 4", "otherwise": f"quarantine to {bad}"}},
    }
    world.run(definition)
    assert ([row["n"] for row in world.data("copy")], world.data("bad")) == ([1, 2, 3], [{"n": 4}, {"n": 5}])
    span = Span(from_seq=2, to_seq=4)
    assert backfilled(world, definition, span) == 3
    backfilled(world, definition, span)
    assert [row["n"] for row in world.data("copy")] == [1, 2, 3, 2, 3], "the second time adds nothing"
    backfilled(world, definition, span, 1)
    assert ([row["n"] for row in world.data("copy")][5:], world.data("bad")[2:]) == ([2, 3], [{"n": 4}] * 2)
    world.append("logs", {"n": 0})
    world.run(definition)
    assert [row["n"] for row in world.data("copy")][7:] == [0], "the stream continues where it was"


def test_a_backfill_of_a_table_by_time_is_listed_with_the_batches(world: World) -> None:
    world.append("logs", *({"n": n} for n in range(3)))
    definition = {
        "sources": {"logs": world.source("logs", schema="n INT")},
        "sql": "SELECT n FROM logs",
        "sink": {"table": world.name},
    }
    world.run(definition)
    record = world.read("logs")[0]
    assert backfilled(world, definition, Span(from_ms=record.ts, to_ms=record.ts + 600_000)) == 3
    assert backfilled(world, definition, Span(to_ms=record.ts)) == 0
    world.append("logs", {"n": 9})
    world.run(definition)
    files = tables.files(world.table(world.name))
    assert sorted(n for path in files for n in pyarrow.parquet.read_table(path)["n"].to_pylist()) == [
        0,
        0,
        1,
        1,
        2,
        2,
        9,
    ]


def test_a_backfill_that_makes_no_sense_is_refused(world: World) -> None:
    base = {"sources": {"v": {"topics": ["a", "b"]}}, "sql": "SELECT data FROM v", "sink": {"topic": "o"}}
    with pytest.raises(InvalidRequest, match="one topic"):
        check_backfill(parse(base, "p", "test"), Span(from_seq=1))
    with pytest.raises(InvalidRequest, match="restart --from sources"):
        check_backfill(parse({**base, "output_mode": "complete"}, "p", "test"), Span(from_ms=1))
    job = {"sources": {"v": {"topic": "a"}}, "use": "replay", "sink": {"topic": "o"}}
    with pytest.raises(InvalidRequest, match="is a job"):
        check_backfill(parse(job, "p", "test"), Span(from_ms=1))


TESTED = """
sql = '''
SELECT window.start AS minute, k.label, count(*) AS errors
FROM logs JOIN k ON k.level = logs.level
GROUP BY window(ts, '1 minute'), k.label
'''
[sources.logs]
topic = "logs"
schema = "level STRING, ms INT"
dead_letter = "misfits"
[sources.k]
table = "kinds"
[sink]
topic = "counts"
[expect]
some = { condition = "errors > 1", otherwise = "quarantine to few" }

[[tests]]
name = "counts by minute"
records.k = [{ data = { level = "error", label = "E" } }]
records.logs = [
  { data = { level = "error" }, ts = 2026-01-01T00:00:10Z },
  { data = { level = "error" }, ts = 2026-01-01T00:00:50Z, tag = "x" },
  { data = { level = "info" }, ts = 2026-01-01T00:00:50Z },
  { data = { level = "error" }, ts = 2026-01-01T00:01:10Z },
  { data = { level = "error", ms = "slow" }, ts = 2026-01-01T00:01:10Z },
]
rows = [{ minute = 2026-01-01T01:00:00+01:00, errors = 2.0 }]
rejected.few = [{ minute = "2026-01-01T00:01:00Z", label = "E", errors = 1 }]
rejected.misfits = [{ level = "error", ms = "slow" }]

[[tests]]
name = "is wrong"
records.k = [{ data = { level = "error", label = "E" } }]
records.logs = [{ data = { level = "error" }, ts = 2026-01-01T00:00:10Z }]
rows = [{ errors = 7 }]
rejected = {}
"""


def test_tests_in_a_file_pass_or_say_what_differs(world: World, tmp_path: Path) -> None:
    file = tmp_path / "counts.toml"
    file.write_text(TESTED)
    ((name, (definition, cases)),) = load_cases(file).items()
    first, second = (world.try_case(name, definition, case) for case in cases)
    assert first == []
    assert second == [
        'missing row: {"errors": 7}',
        'unexpected record in few: {"errors": 1, "label": "E", "minute": "2026-01-01T00:00:00+00:00"}',
    ]
    failing = replace_otherwise(TESTED)
    file.write_text(failing)
    ((name, (definition, cases)),) = load_cases(file).items()
    assert "expectation some is not met by the row" in world.try_case(name, definition, cases[0])[0]


def replace_otherwise(text: str) -> str:
    return text.replace("quarantine to few", "fail")


def test_the_worked_example_of_the_page_is_a_stream_and_passes_its_test(world: World, tmp_path: Path) -> None:
    example = PAGE.partition("## From dirty events")[2].partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "revenue.toml"
    file.write_text(example)
    ((name, (definition, (case,))),) = load_cases(file).items()
    check_streaming(world.spark.newSession(), name, definition, world.config)
    assert world.try_case(name, definition, case) == []


def ready_made(world: World) -> dict[str, dict[str, Any]]:
    logs = world.source("logs", schema="id STRING, n INT")
    out = world.sink("out")
    return {
        "aggregate": {"sources": {"v": logs}, "options": {"window": "1 minute", "sum": ["n"]}, "sink": out},
        "archive": {"sources": {"v": world.source("logs")}, "sink": {"table": "t"}},
        "audit": {
            "sources": {"a": world.source("logs"), "b": world.source("logs")},
            "options": {"original": "a", "copy": "b"},
            "sink": out,
        },
        "dead-letter-report": {"sources": {"v": world.source("logs")}, "sink": {"table": "r"}},
        "dedupe": {"sources": {"v": logs}, "options": {"key": ["id"]}, "sink": out},
        "join": {
            "sources": {"l": logs, "r": logs},
            "options": {"left": "l", "right": "r", "on": ["id"]},
            "sink": out,
        },
        "replay": {"sources": {"v": world.source("logs")}, "options": {"filter": "seq > 1"}, "sink": out},
        "sessionize": {"sources": {"v": logs}, "options": {"key": ["id"]}, "sink": out},
    }


def test_every_ready_made_is_checked_and_explained(world: World) -> None:
    world.append("logs", {"id": "a", "n": 1}, {"id": "b", "n": 2})
    found = {}
    for use, fields in ready_made(world).items():
        definition = parse({**fields, "use": use}, world.name, "test")
        check_streaming(world.spark.newSession(), world.name, definition, world.config)
        rows = building.build(world.spark.newSession(), definition, world.config, world.name, batch=True)
        found[use] = rows.count()
        assert dict(explaining.described(world.name, definition))["computes"].startswith(use)
        assert "Physical Plan" in explaining.plan(world.spark.newSession(), world.name, definition, world.config)
    assert found == {
        "aggregate": 1,
        "archive": 2,
        "audit": 1,
        "dead-letter-report": 1,
        "dedupe": 2,
        "join": 2,
        "replay": 1,
        "sessionize": 2,
    }


def test_a_pipeline_has_its_own_settings_and_a_checkpoint_keeps_its_state_store(world: World) -> None:
    world.append("logs", {"id": "a"}, {"id": "b"}, {"id": "a"})
    definition: dict[str, Any] = {
        "sources": {"v": world.source("logs", schema="id STRING")},
        "use": "dedupe",
        "options": {"key": ["id"]},
        "sink": world.sink("once"),
        "batch_records": 2,
        "spark": {"spark.sql.shuffle.partitions": 1, "spark.sql.ansi.enabled": False},
    }
    batches = world.run(definition)
    # Spark 4.1 does not let a source bound its batches.
    assert [batch["numInputRows"] for batch in batches if batch["numInputRows"]] == ([2, 1] if LIMITED else [3])
    state = batches[0]["stateOperators"][0]
    assert state["numShufflePartitions"] == 1
    assert "rocksdbPutCount" in str(state["customMetrics"]), "it is kept for a day"
    world.append("logs", {"id": "b"}, {"id": "c"})
    (again,) = [batch for batch in world.run({**definition, "state_store": "memory"}) if batch["numInputRows"]]
    assert "rocksdb" in str(again["stateOperators"][0]["customMetrics"])
    assert [row["id"] for row in world.data("once")] == ["a", "b", "c"]

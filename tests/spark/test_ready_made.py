"""Ready-made pipelines on real Spark and a real server: what each makes of real records."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.spark.bounds import needs_empty_batches
from tests.spark.pipeline_world import END_S_MAX, World
from topics.client import Fenced
from topics.model.errors import InvalidRequest
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines import building, tables
from topics_spark.pipelines.checkpoints.positions import positions
from topics_spark.pipelines.compaction import compact

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_sql_from_topic_to_topic_goes_on_where_it_was(world: World) -> None:
    world.append("logs", *({"level": level, "n": n} for n, level in enumerate(("error", "info", "error"))))
    definition = {
        "sources": {"logs": world.source("logs", schema="level STRING, n INT")},
        "sql": "SELECT level, n FROM logs WHERE level = 'error'",
        "sink": world.sink("errors", tag="level"),
    }
    world.run(definition)
    world.append("logs", {"level": "error", "n": 9})
    assignment = world.assignment(definition)
    checkpoint = Path(world.config.checkpoint(assignment))
    (position,) = positions(checkpoint, assignment.definition, lambda _: ()).values()
    assert position == {"epoch": world.client.state(world.topic("logs")).epoch, "seq": 3}
    world.run(definition)
    assert [(record.tag, record.data["n"]) for record in world.read("errors")] == [
        ("error", 0),
        ("error", 2),
        ("error", 9),
    ]


def test_another_state_directory_is_refused_and_drops_nothing_once_chosen(world: World, tmp_path: Path) -> None:
    definition = {
        "sources": {"logs": world.source("logs", schema="n INT")},
        "sql": "SELECT n FROM logs",
        "sink": world.sink("copy"),
    }
    for number in range(3):
        world.append("logs", {"n": number})
        world.run(definition)
    first = world.config
    world.config = replace(first, state_dir=str(tmp_path / "elsewhere"))
    world.append("logs", {"n": 3})
    with pytest.raises(NeedsDecision, match=str(tmp_path / "elsewhere")):
        world.run(definition)
    world.config = replace(world.config, start="end")
    world.run(definition)
    world.append("logs", {"n": 4})
    world.run(definition)
    assert [row["n"] for row in world.data("copy")] == [0, 1, 2, 4], "--from end leaves out what there was"
    world.config = replace(first, start="start")
    world.run(definition)
    assert [row["n"] for row in world.data("copy")][4:] == [0, 1, 2, 3, 4]


def test_update_mode_tells_every_change_of_a_count(world: World) -> None:
    definition = {
        "sources": {"logs": world.source("logs", schema="level STRING")},
        "sql": "SELECT level, count(*) AS n FROM logs GROUP BY level",
        "sink": world.sink("counts"),
        "output_mode": "update",
    }
    for _ in range(2):
        world.append("logs", {"level": "error"}, {"level": "error"})
        world.run(definition)
    assert world.data("counts") == [{"level": "error", "n": 2}, {"level": "error", "n": 4}]


def test_a_function_of_an_allowed_module(world: World) -> None:
    world.append("in", {"n": 1})
    definition = {
        "sources": {"numbers": world.source("in", schema="n INT")},
        "python": "tests.spark.functions:doubled",
        "sink": world.sink("out"),
    }
    world.run(definition)
    assert world.data("out") == [{"n": 2}]


@needs_empty_batches
def test_aggregate_counts_sums_and_percentiles_of_windows(world: World) -> None:
    events = [{"at": f"2026-01-01T00:0{minute}:30Z", "who": who, "ms": ms} for minute, who, ms in
              [(0, "a", 1), (0, "a", 3), (0, "b", 5), (1, "a", 7), (9, "z", 0)]]  # fmt: skip
    world.append("events", *events)
    definition = {
        "sources": {"events": world.source("events", schema="at TIMESTAMP, who STRING, ms INT")},
        "use": "aggregate",
        "options": {
            "window": "1 minute",
            "time": "at",
            "late": "1 minute",
            "key": ["who"],
            "sum": ["ms"],
            "percentiles": {"ms": [0.5]},
        },
        "sink": world.sink("windows"),
    }
    world.run(definition)
    world.append("events", {"at": "2026-01-01T00:00:10Z", "who": "late", "ms": 1}, {"at": "2026-01-01T01:00:00Z"})
    world.run(definition)
    found = {(row["window_start"][11:16], row["who"]): (row["count"], row["sum_ms"], row["p50_ms"])
             for row in world.data("windows")}  # fmt: skip
    assert found == {
        ("00:00", "a"): (2, 4, 1),
        ("00:00", "b"): (1, 5, 5),
        ("00:01", "a"): (1, 7, 7),
        ("00:09", "z"): (1, 0, 0),
    }


def test_dedupe_leaves_one_of_each_key(world: World) -> None:
    world.append("in", *({"id": number % 3, "n": number} for number in range(9)))
    definition = {
        "sources": {"events": world.source("in", schema="id INT, n INT")},
        "use": "dedupe",
        "options": {"key": ["id"]},
        "sink": world.sink("out"),
    }
    world.run(definition)
    world.append("in", {"id": 1, "n": 99}, {"id": 7, "n": 100})
    world.run(definition)
    assert sorted(row["id"] for row in world.data("out")) == [0, 1, 2, 7]


@needs_empty_batches
def test_sessions_end_when_nothing_comes_for_a_while(world: World) -> None:
    moments = [("a", "00:00:00"), ("a", "00:05:00"), ("b", "00:01:00"), ("a", "01:00:00"), ("z", "09:00:00")]
    world.append("clicks", *({"who": who, "at": f"2026-01-01T{at}Z"} for who, at in moments))
    definition = {
        "sources": {"clicks": world.source("clicks", schema="who STRING, at TIMESTAMP")},
        "use": "sessionize",
        "options": {"key": ["who"], "gap": "10 minutes", "time": "at"},
        "sink": world.sink("sessions"),
    }
    world.run(definition)
    found = sorted((row["who"], row["session_start"][11:19], row["count"]) for row in world.data("sessions"))
    assert found == [("a", "00:00:00", 2), ("a", "01:00:00", 1), ("b", "00:01:00", 1)]


def test_join_of_two_streams_and_of_a_stream_with_a_table(world: World) -> None:
    world.append("orders", {"id": 1, "what": "tea"}, {"id": 2, "what": "nut"})
    world.append("paid", {"id": 1, "cents": 250})
    sides = {
        "orders": world.source("orders", schema="id INT, what STRING"),
        "paid": world.source("paid", schema="id INT, cents INT"),
    }
    options = {"left": "orders", "right": "paid", "on": ["id"]}
    world.run({"sources": sides, "use": "join", "options": options, "sink": world.sink("both")})
    (row,) = world.data("both")
    assert (row["id"], row["what"], row["paid_cents"]) == (1, "tea", 250)
    sides["paid"]["static"] = True
    left = {**options, "how": "left"}
    world.run({"sources": sides, "use": "join", "options": left, "sink": world.sink("with-table")}, generation=2)
    assert {row["id"]: row.get("paid_cents") for row in world.data("with-table")} == {1: 250, 2: None}


def archive_of(world: World, *topics: str) -> dict[str, Any]:
    source = {"topics": [world.topic(topic) for topic in topics]}
    return {"sources": {"events": source}, "use": "archive", "sink": {"table": "kept"}}


def test_an_archive_is_read_by_everyone(world: World) -> None:
    world.append("a", *({"n": number} for number in range(50)), tag="t")
    world.append("b", {"n": 100})
    world.run(archive_of(world, "a", "b"))
    world.append("a", {"n": 50})
    world.run(archive_of(world, "a", "b"))
    found = tables.files(world.table("kept"))
    rows = [row for path in found for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()]
    by_topic = {
        name: sorted((row["seq"], row["data"]) for row in rows if row["topic"] == world.topic(name)) for name in "ab"
    }
    for name in "ab":
        assert by_topic[name] == [(record.seq, record.raw.decode()) for record in world.read(name)]
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    assert duckdb.sql(f"SELECT count(*), sum(seq) FROM read_parquet({found!r})").fetchall() == [(52, 51 * 52 // 2 + 1)]
    assert polars.read_parquet(found, hive_partitioning=False).height == 52
    assert world.spark.read.parquet(*found).where("data like '%100%'").count() == 1


def test_an_archive_without_a_sink_is_the_table_of_its_name(world: World) -> None:
    world.append("a", {"n": 1})
    world.run({"sources": {"a": world.source("a")}, "use": "archive"})
    assert sum(file.rows for file in tables.load(world.table(world.name)).files) == 1


def test_compaction_merges_files_and_leaves_out_what_was_deleted(world: World) -> None:
    for number in range(3):
        world.append("a", {"n": number}, {"n": number + 10}, tag=f"t{number}")
        world.run(archive_of(world, "a"))
    assert len(tables.files(world.table("kept"))) == 3
    world.client.delete(world.topic("a"), match="t1")
    done = compact(world.client, world.name, world.table("kept"))
    assert (done.files_before, done.files_after, done.rows_removed) == (3, 1, 2)
    (path,) = tables.files(world.table("kept"))
    assert pyarrow.parquet.ParquetFile(path).read()["seq"].to_pylist() == [1, 2, 5, 6]
    assert compact(world.client, world.name, world.table("kept")).rows_removed == 0


def test_compaction_keeps_what_retention_dropped_and_what_an_earlier_topic_had(world: World) -> None:
    world.client.create(world.topic("a"), cap_records=2)
    world.append("a", {"n": 1}, {"n": 2})
    world.run(archive_of(world, "a"))
    world.append("a", {"n": 3}, {"n": 4})
    assert compact(world.client, world.name, world.table("kept")).rows_removed == 0
    world.client.drop(world.topic("a"))
    world.append("a", {"n": 5})
    assert compact(world.client, world.name, world.table("kept")).rows_removed == 0


def test_a_table_takes_no_batch_of_a_runner_that_was_overtaken(world: World) -> None:
    world.append("a", {"n": 1})
    late = world.assignment(archive_of(world, "a"))
    world.run(archive_of(world, "a"))
    before = tables.load(world.table("kept"))
    sink = tables.TableSink(late, world.config, world.client)
    with pytest.raises(Fenced):
        sink.write(world.spark.createDataFrame([("x", 1)], "topic STRING, seq BIGINT"), 7)
    assert tables.project(world.client, world.name, world.table("kept")) == before


def test_a_batch_written_twice_counts_once(world: World) -> None:
    world.append("a", {"n": 1})
    sink = tables.TableSink(world.assignment(archive_of(world, "a")), world.config, world.client)
    for _ in range(2):
        sink.write(world.spark.createDataFrame([("x", 1)], "topic STRING, seq BIGINT"), 0)
    assert sum(file.rows for file in tables.load(world.table("kept")).files) == 1


def test_replay_of_a_topic_and_of_an_archive(world: World) -> None:
    world.append("a", *({"n": number} for number in range(20)), tag="t", meta={"k": 1})
    world.run(archive_of(world, "a"))
    options = {"from_seq": 5, "to_seq": 15, "filter": "get_json_object(data, '$.n') % 2 = 0"}
    source = {"sources": {"a": world.source("a")}}
    world.run({**source, "use": "replay", "options": options, "sink": world.sink("again")}, generation=2)
    world.run({**source, "use": "replay", "options": options, "sink": world.sink("again")}, generation=2)
    assert [(record.data["n"], record.tag, record.meta) for record in world.read("again")] == [
        (number, "t", {"k": 1}) for number in (6, 8, 10, 12, 14)
    ]
    world.run({"sources": {"a": {"table": "kept"}}, "use": "replay", "sink": world.sink("whole")}, generation=3)
    assert world.data("whole") == world.data("a")


def test_a_replay_of_several_topics_has_every_record_once_however_often_it_is_stopped(world: World) -> None:
    for number in range(4):
        world.append("a", {"a": number})
        world.append("b", {"b": number})
    world.run(archive_of(world, "a", "b"))
    source = {"sources": {"all": {"table": "kept"}}, "sink": world.sink("again"), "use": "replay"}
    definition = {**source, "options": {"rate": 5}, "trigger": {"once": True}}
    query = building.start(world.spark.newSession(), world.assignment(definition, 2), world.config, world.client)
    deadline_s = time.monotonic() + END_S_MAX
    while query.isActive and not query.recentProgress:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    query.stop()
    assert query.exception() is None
    world.run(definition, generation=2)
    world.run(definition, generation=2)
    # Several appends may share a millisecond: in it, the records of one topic come first.
    originals = [(record.ts, name, record.seq, record.data) for name in "ab" for record in world.read(name)]
    assert world.data("again") == [data for *_order, data in sorted(originals, key=lambda original: original[:3])]
    with pytest.raises(InvalidRequest, match="from_time"):
        world.run({**source, "options": {"from_seq": 2}}, generation=3)


def test_an_audit_of_several_topics_finds_a_lost_record_whose_seq_another_topic_has(world: World) -> None:
    world.append("a", *range(5))
    world.append("b", *range(5))
    sources: dict[str, Any] = {"events": {"topics": [world.topic("a"), world.topic("b")]}}
    lossy = f"SELECT * FROM events WHERE NOT (topic = '{world.topic('a')}' AND seq = 3)"
    world.run({"sources": sources, "sql": lossy, "sink": {"table": "kept"}})
    sources["archive"] = {"table": "kept"}
    options = {"original": "events", "copy": "archive"}
    world.run({"sources": sources, "use": "audit", "options": options, "sink": world.sink("report")}, generation=2)
    found = [(row["topic"], row["equal"], row.get("missing_numbers")) for row in world.data("report")]
    assert found == [(world.topic("a"), False, [3]), (world.topic("b"), True, None)]


def test_audit_finds_what_is_missing_and_what_differs(world: World) -> None:
    world.append("a", *({"n": number} for number in range(25)))
    world.run(archive_of(world, "a"))
    sources = {"topic": world.source("a"), "archive": {"table": "kept"}}
    options = {"original": "topic", "copy": "archive", "range_records": 10}
    world.run({"sources": sources, "use": "audit", "options": options, "sink": world.sink("report")}, generation=2)
    assert [(row["from_number"], row["original_count"], row["equal"]) for row in world.data("report")] == [
        (1, 10, True),
        (11, 10, True),
        (21, 5, True),
    ]
    world.append("copy", *({"n": number if number != 12 else -1} for number in range(24)))
    sources = {"topic": world.source("a"), "copy": world.source("copy")}
    options = {"original": "topic", "copy": "copy", "by": "rank", "range_records": 10}
    world.run({"sources": sources, "use": "audit", "options": options, "sink": world.sink("other")}, generation=3)
    assert [(row["equal"], row["missing_count"]) for row in world.data("other")] == [(True, 0), (False, 0), (False, 1)]


def test_the_dead_letter_report_tells_why_jobs_die(world: World) -> None:
    queue, letters = world.topic("jobs"), world.topic("dead")
    world.client.create(queue, type="queue", dead_letter=letters)
    world.append("jobs", *range(5))
    for number, job in enumerate(world.client.claim(queue, "w", 5)):
        world.client.nack(queue, job, "w", dead_letter=True, error="no paper" if number else "on fire")
    world.run({"sources": {"letters": {"topic": letters}}, "use": "dead-letter-report", "sink": {"table": "why"}})
    (path,) = tables.files(world.table("why"))
    rows = pyarrow.parquet.ParquetFile(path).read().to_pylist()
    assert [(row["queue"], row["reason"], row["jobs"]) for row in rows] == [
        (queue, "no paper", 4),
        (queue, "on fire", 1),
    ]
    assert json.loads(rows[0]["sample"]) in range(5)
    assert (world.table("why") / "report.png").read_bytes().startswith(b"\x89PNG")

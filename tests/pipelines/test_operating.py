"""Operating pipelines without Spark: lineage, history, shares of the work, tests in files, and the commands for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.terminal import Done, run
from tests.serving import serving
from topics.client import Pipeline
from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest, check_pipeline
from topics_spark.payloads.misfits import misfit
from topics_spark.pipelines.definition import load_cases, load_file
from topics_spark.pipelines.operating import graph
from topics_spark.pipelines.operating.backfill import Span
from topics_spark.pipelines.operating.sharing import IDLE_LOAD, Note, Work, holder_of, load_of, share
from topics_spark.pipelines.quality.trial import differences

COPY: dict[str, Any] = {"sources": {"v": {"topic": "a"}}, "sql": "SELECT 1 AS n FROM v", "sink": {"topic": "out"}}


def pipeline(name: str, definition: dict[str, Any] | None = None, **status: Any) -> Pipeline:
    return Pipeline(
        pipeline=name, definition=definition or COPY, revision=1, generation=1, updated_ts=0, status=status or None
    )


# --- lineage ---


LINEAGE = [
    pipeline("archive", {"sources": {"v": {"pattern": "o.*"}}, "use": "archive", "sink": {"table": "all"}}),
    pipeline(
        "copy",
        {
            **COPY,
            "expect": {"x": {"condition": "n > 0", "otherwise": "quarantine to bad"}},
            "sources": {"v": {"topic": "a", "schema": "n INT", "dead_letter": "misfits"}},
        },
    ),
    pipeline("report", {**COPY, "sources": {"t": {"table": "all"}, "v": {"topic": "b"}}, "sink": {"topic": "end"}}),
]


def test_lineage_follows_patterns_tables_and_what_is_rejected() -> None:
    drawn = {(edge.start.id, edge.end.id, edge.label) for edge in graph.edges(LINEAGE)}
    assert drawn == {
        ("pattern:o.*", "pipeline:archive", "v"),
        ("topic:out", "pattern:o.*", ""),
        ("pipeline:archive", "table:all", ""),
        ("topic:a", "pipeline:copy", "v"),
        ("pipeline:copy", "topic:out", ""),
        ("pipeline:copy", "topic:misfits", "rejected"),
        ("pipeline:copy", "topic:bad", "rejected"),
        ("table:all", "pipeline:report", "t"),
        ("topic:b", "pipeline:report", "v"),
        ("pipeline:report", "topic:end", ""),
    }


def test_lineage_of_one_pipeline_leaves_out_what_is_beside_it() -> None:
    around = graph.upstream_and_downstream(graph.edges(LINEAGE), "archive")
    ids = {edge.start.id for edge in around} | {edge.end.id for edge in around}
    assert {"topic:a", "pipeline:copy", "table:all", "topic:end"} <= ids
    assert "topic:b" not in ids
    assert "topic:misfits" not in ids


def test_lineage_is_drawn_in_three_languages() -> None:
    drawn = graph.edges([pipeline("odd", {**COPY, "sink": {"topic": 'q"uote'}})])
    assert '  "pipeline:odd" -> "topic:q\\"uote" [label=""]' in list(graph.as_dot(drawn))
    assert '  n2["q#quot;uote"]' in list(graph.as_mermaid(drawn))
    assert list(graph.as_text(drawn, {"odd": "running"})) == [
        "odd  running",
        "  ◀─ topic a as v",
        '  ─▶ topic q"uote',
    ]
    assert graph.as_json(drawn)["edges"][0] == {"from": "topic:a", "to": "pipeline:odd", "label": "v"}


# --- shares ---


def test_shares_follow_cores_and_load_and_what_a_runner_may_run() -> None:
    runners = {"a": Note("a", 1), "b": Note("b", 3), "c": Note("c", 8, only=["special"])}
    work = {f"p{n}": Work(1.0, None) for n in range(4)} | {"special": Work(5.0, None)}
    shares = share(work, runners)
    assert shares.of["special"] == "c"
    assert {runner: len(shares.mine(runner)) for runner in runners} == {"a": 1, "b": 3, "c": 1}
    assert shares.moving is None, "nothing moves while something is free"


def test_what_a_runner_has_stays_unless_a_move_helps() -> None:
    runners = {"a": Note("a", 1), "b": Note("b", 1)}
    held = {"busy": Work(1.1, "a"), "idle": Work(0.1, "a"), "other": Work(0.1, "b")}
    assert share(held, runners).moving == ("idle", "b")
    even = {"busy": Work(1.1, "a"), "idle": Work(0.1, "b"), "other": Work(0.1, "b")}
    assert share(even, runners).moving is None
    assert share(held, {"a": runners["a"]}).moving is None
    assert share(held, runners | {"b": Note("b", 1, only=["other"])}).moving is None


def test_a_load_is_the_part_of_the_time_in_which_batches_run() -> None:
    busy: dict[str, Any] = {"rows_per_second": 5.0, "progress": {"batchDuration": 500}}
    assert load_of(pipeline("p", **busy)) == pytest.approx(IDLE_LOAD + 0.5)
    assert load_of(pipeline("p", {**COPY, "trigger": {"every": "10 seconds"}}, **busy)) == pytest.approx(
        IDLE_LOAD + 0.05
    )
    assert load_of(pipeline("p", **{**busy, "rows_per_second": 0.0})) == load_of(pipeline("p")) == IDLE_LOAD
    assert holder_of(pipeline("p", runner="a", state="running"), {"a"}) == "a"
    assert holder_of(pipeline("p", runner="a", state="stopped"), {"a"}) is None
    assert holder_of(pipeline("p", runner="a", state="running"), {"b"}) is None


# --- settings of a pipeline ---


@pytest.mark.parametrize(
    ("changes", "store"),
    [
        ({}, "memory"),
        ({"state_retention": "2 hours"}, "rocksdb"),
        ({"state_retention": "2 hours", "state_store": "memory"}, "memory"),
        ({"sources": {"v": {"topic": "a", "watermark": {"column": "ts", "delay": "1 day"}}}}, "rocksdb"),
        ({"sql": None, "use": "dedupe", "options": {"key": ["id"]}}, "rocksdb"),
        ({"sql": None, "use": "dedupe", "options": {"key": ["id"], "horizon": "5 minutes"}}, "memory"),
    ],
)
def test_state_that_is_kept_for_long_is_in_rocksdb(changes: dict[str, Any], store: str) -> None:
    assert check_pipeline(msgspec.convert({**COPY, **changes}, PipelineRequest)).store() == store


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.catalog.x",
        "spark.sql.runSQLOnFiles",
        "spark.driver.memory",
        "spark.sql.adaptive.customCostEvaluatorClass",
        "spark.sql.streaming.stateStore.providerClass",
    ],
)
def test_a_definition_cannot_set_what_is_the_runners(name: str) -> None:
    with pytest.raises(InvalidRequest, match="only of its runner") as refused:
        check_pipeline(msgspec.convert({**COPY, "spark": {name: "x"}}, PipelineRequest))
    assert refused.value.detail["field"] == "spark"


# --- tests in files ---


def test_tests_are_in_the_file_and_not_in_the_definition(tmp_path: Path) -> None:
    file = tmp_path / "copy.json"
    case = {"name": "one", "records": {"v": [{"data": 1, "ts": "2026-01-01T00:00:00Z"}]}, "rows": [{"n": 1}]}
    file.write_text(json.dumps({**COPY, "tests": [case]}))
    ((definition, (found,)),) = load_cases(file).values()
    assert (definition, found.rows) == (load_file(file)["copy"], [{"n": 1}])
    file.write_text(json.dumps({**COPY, "tests": [{**case, "rows": None}]}))
    with pytest.raises(InvalidRequest, match="must expect rows"):
        load_cases(file)
    file.write_text(json.dumps({**COPY, "tests": [{**case, "rowz": []}]}))
    with pytest.raises(InvalidRequest, match="rowz"):
        load_cases(file)


def test_rows_are_compared_by_what_they_mean() -> None:
    wanted = [{"n": 1, "at": "2026-01-01T01:00:00+01:00", "gone": None}, {"n": 2, "at": None}]
    assert differences(wanted, [{"n": 2}, {"n": 1.0, "at": "2026-01-01T00:00:00.000Z", "more": 5}], "row") == []
    assert differences([{"n": 1}], [{"n": 2, "m": 1}], "row") == ['missing row: {"n": 1}', 'unexpected row: {"n": 2}']
    assert differences([], [{"n": 2}], "row") == ['unexpected row: {"n": 2}']
    assert len(differences([], [{"n": 2}] * 100, "row")) == 21


def test_a_range_is_an_option_of_the_source() -> None:
    source = msgspec.convert(COPY, PipelineRequest).sources["v"]
    assert Span(from_seq=5, to_seq=9).options(source) == {"startingOffsets": '{"a": 5}', "endingOffsets": '{"a": 10}'}
    assert Span(from_ms=5).options(source) == {"startingTimestamp": "5"}
    assert Span(to_ms=9).options(source) == {"startingOffsets": "earliest", "endingTimestamp": "9"}
    assert str(Span(from_seq=5)) != str(Span(from_ms=5))


# --- commands ---


def test_the_commands_do_what_they_say(tmp_path: Path) -> None:
    def topics(*arguments: str) -> Done:
        return run(server, "pipelines", *arguments)

    with serving(tmp_path / "data") as server:
        client = server.client()
        client.put("/v0/pipelines/p", COPY)
        assert "p is paused, revision 2" in topics("pause", "p").err
        assert "p is paused already, revision 2" in topics("pause", "p").err
        assert client.get("/v0/pipelines/p").json["definition"]["enabled"] is False
        assert "p runs, revision 3" in topics("resume", "p").err
        assert "p starts again from its checkpoint, revision 4" in topics("restart", "p").err
        refused = topics("restart", "p", "--from", "sources")
        assert (refused.code, "--yes" in refused.err) == (2, True), refused
        assert client.get("/v0/pipelines/p").json["generation"] == 1
        topics("restart", "p", "--from", "sources", "--yes")
        assert client.get("/v0/pipelines/p").json["generation"] == 5
        assert topics("pause", "nothing").code == 3
        assert "must both be seqs" in topics("backfill", "p", "--from", "5", "--to", "1h").err
        client.put("/v0/pipelines/whole", {**COPY, "sink": {"topic": "whole"}, "output_mode": "complete"})
        whole = topics("backfill", "whole", "--from", "2d", "--to", "2026-11-01T00:00Z")
        assert whole.code == 2, whole
        whole = topics("backfill", "whole", "--from", "2026-10-01T02:00+02:00", "--to", "1h")
        assert re.search(r"--from 2026-10-01T00:00:00.000Z --to 20\d\d-\S+Z\n.*--from sources", whole.err), whole
        assert "starting Spark" not in whole.err
        client.delete("/v0/pipelines/whole")
        assert "there are no tests" in topics("test", str(written(tmp_path))).err
        assert topics("graph").out == "p  no runner\n  ◀─ topic a as v\n  ─▶ topic out\n"
        told = {"pipeline": "p", "runner": "r", "batchId": 7, "numInputRows": 10, "batchDuration": 500}
        told |= {"processedRowsPerSecond": 20.0, "unmet": {"x": 2}}
        lines = [("p", told), ("p", {**told, "batchId": 8}), ("q", told)]
        records = [{"data": data, "tag": tag} for tag, data in lines]
        client.post("/v0/topics/pipelines.progress", {"records": records})
        picture = tmp_path / "p.svg"
        shown = topics("history", "p", "-o", "json", "--plot", str(picture))
        assert [json.loads(line)["batch"] for line in shown.out.splitlines()] == [7, 8], shown
        assert picture.read_text().startswith("<?xml")
        assert "must end in" in topics("history", "p", "--plot", "p.doc").err
        status = {"state": "running", "runner": "r", "batch": 8, "spark_ui": "http://host:4040"}
        client.post("/v0/pipelines/p/status", {**status, "progress": {"batchDuration": 1500}, "unmet": {"x": 2}})
        log = [{"ts": 1_795_000_000_000 + n, "level": "warning", "message": f"batch {n}: late"} for n in range(12)]
        client.post("/v0/pipelines/p/status", {**status, "unmet": {"x": 2, "y": 1}, "log": log})
        shown = topics("status", "p").out
        assert re.search(r"^unmet +x 2, y 1$", shown, re.MULTILINE), shown
        assert shown.endswith("  2026-11-18T11:06:40.011Z  warning  batch 11: late\n"), shown
        assert "batch 1: late" not in shown
        client.post("/v0/pipelines/p/status", {**status, "progress": {"batchDuration": 1500}, "unmet": {"x": 2}})
        seen = topics("watch", "--count", "1").out
        assert "1.5 s" in seen
        assert "http://host:4040" in seen
        explained = topics("explain", "p", "--no-plan").out
        assert "SELECT 1 AS n FROM v" in explained


def written(folder: Path) -> Path:
    file = folder / "copy.json"
    file.write_text(json.dumps(COPY))
    return file


def test_what_is_wrong_with_a_payload_is_said() -> None:
    from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

    schema = StructType([StructField("id", LongType()), StructField("tags", ArrayType(StringType()))])
    assert misfit(schema, '{"id": 1, "tags": "x"}') == 'tags must be array<string>, not "x"'
    assert misfit(schema, '{"id": 99999999999999999999}') == "id must be bigint, not 99999999999999999999"
    assert misfit(schema, '"nonsense"') == '"nonsense" is not an object'
    assert len(misfit(schema, '"' + "x" * 500 + '"')) < 120

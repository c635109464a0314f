"""Definitions from files: TOML, YAML and JSON say the same, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines import building
from topics_spark.pipelines.assignment import Assignment
from topics_spark.pipelines.definition import load_file, parse
from topics_spark.pipelines.delivery import left_out

TOML = """
sql = "SELECT count(*) FROM logs"
[sources.logs]
topic = "logs"
[sink]
topic = "counts"
"""
YAML = """
sql: SELECT count(*) FROM logs
sources: {logs: {topic: logs}}
sink: {topic: counts}
"""
JSON = '{"sql":"SELECT count(*) FROM logs","sources":{"logs":{"topic":"logs"}},"sink":{"topic":"counts"}}'


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_three_ways_to_write_the_same(tmp_path: Path) -> None:
    files = [("a.toml", TOML), ("b.yaml", YAML), ("c.json", JSON)]
    loaded = [load_file(written(tmp_path / name, text)) for name, text in files]
    assert [list(pipelines) for pipelines in loaded] == [["a"], ["b"], ["c"]]
    assert loaded[0]["a"] == loaded[1]["b"] == loaded[2]["c"]


def test_many_pipelines_in_one_file(tmp_path: Path) -> None:
    text = f'{{"pipelines":{{"one":{JSON},"two":{JSON}}}}}'
    assert list(load_file(written(tmp_path / "all.json", text))) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", TOML.replace("[sink]", "[sunk]"), "unknown field `sunk`"),
        ("a.toml", TOML.replace('topic = "logs"', 'topic = "a/b"'), "sources.logs.topic"),
        ("a.toml", "sql = ", "a.toml"),
        ("a.json", "[]", "must be a table of fields"),
        ("a.txt", "", "must end in one of"),
        ("bad name.json", JSON, "pipeline must be"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        load_file(written(tmp_path / name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        load_file(tmp_path / "absent.toml")


def fed(pattern: str, **sink: str) -> dict[str, Any]:
    return {"sources": {"v": {"pattern": pattern}}, "sql": "SELECT data FROM v", "sink": sink or {"topic": "app.out"}}


@pytest.mark.parametrize(
    "definition",
    [fed("app.*"), fed(".*"), fed("(in|app.out)"), fed(".*", table="all"), fed(r"pipelines\.manifest.*", table="all")],
)
def test_a_pattern_that_matches_what_the_pipeline_writes_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"sources\.v\.pattern matches") as refused:
        parse(definition, "p", "test")
    assert refused.value.detail["field"] == "sources.v.pattern"


@pytest.mark.parametrize(
    "definition",
    [fed("app.in.*"), fed(r"(?!app\.out$|pipelines\.).*"), fed(r"(?!pipelines\.).*", table="all"), fed("out")],
)
def test_a_pattern_for_everything_else_is_taken(definition: dict[str, Any]) -> None:
    request = parse(definition, "p", "test")
    building.check_loop(Assignment("p", request, 1, 1, 0))


def test_a_static_view_of_the_own_output_feeds_nothing() -> None:
    definition = fed("app.*")
    definition["sources"] = {"v": {"topic": "in"}, "known": {"topic": "app.out", "static": True}}
    parse(definition, "p", "test")


def test_a_runner_does_not_start_a_loop_that_was_defined_over_http() -> None:
    request = msgspec.convert(fed("app.*"), PipelineRequest)
    with pytest.raises(NeedsDecision) as refused:
        building.check_loop(Assignment("p", request, 1, 1, 0))
    assert refused.value.problem == "feeds_itself"


def test_columns_beside_data_are_named() -> None:
    assert left_out(["data", "n", "tag", "topic", "kind"], "kind") == ["n"]
    assert left_out(["n", "tag"], None) == []

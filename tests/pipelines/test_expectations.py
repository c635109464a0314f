"""Expectations in definitions: what is accepted, what is refused and why, and what a change of them does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from topics.engine.pipelines.meaning import plan_of
from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest, check_pipeline
from topics_spark.pipelines import delivery
from topics_spark.pipelines.assignment import Assignment, RunnerConfig
from topics_spark.pipelines.definition import parse
from topics_spark.pipelines.pipeline_run import brief, counted_once, problem_of, unmet_of, words_of

SOURCE: dict[str, Any] = {"topic": "a", "schema": "n BIGINT"}
BASE: dict[str, Any] = {"sources": {"v": SOURCE}, "sql": "SELECT n FROM v", "sink": {"topic": "out"}}


def definition(**changes: Any) -> PipelineRequest:
    return check_pipeline(msgspec.convert({**BASE, **changes}, PipelineRequest))


def source(**more: Any) -> dict[str, Any]:
    return {"sources": {"v": {**SOURCE, **more}}}


def test_a_condition_alone_warns_and_a_topic_is_read_from_the_words() -> None:
    expect = {
        "known": "n IS NOT NULL",
        "low": {"condition": "n < 9", "otherwise": "drop"},
        "high": {"condition": "n > 0", "otherwise": "quarantine to bad.rows"},
    }
    request = definition(expect=expect, **source(dead_letter="misfits", expect={"x": expect["high"]}))
    assert request.rejects() == [
        ("misfits", "sources.v.dead_letter"),
        ("bad.rows", "sources.v.expect.x"),
        ("bad.rows", "expect.high"),
    ]
    assert request.judges()
    assert not definition().judges()


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"expect": {"a b": "n > 0"}}, "expect", "letters, digits"),
        (
            {"expect": {"a": {"condition": "n > 0", "otherwise": "explode"}}},
            "expect.a.otherwise",
            '"quarantine to TOPIC"',
        ),
        ({"expect": {"a": {"condition": "n > 0", "otherwise": "quarantine to a/b"}}}, "expect.a.otherwise", "must be"),
        ({"expect": {"a": {"condition": "n > 0", "otherwise": "quarantine to a"}}}, "expect.a", "feed itself"),
        ({"expect": {f"a{n}": "n > 0" for n in range(65)}}, "expect", "at most 64"),
        (source(dead_letter="a"), "sources.v.dead_letter", "feed itself"),
        (source(dead_letter="b", schema=None), "sources.v.dead_letter", "needs sources.v.schema"),
        (source(dead_letter="b", static=True), "sources.v", "for streams"),
        ({"use": "archive", "sql": None, "sources": {"v": {"topic": "a", "expect": {"x": "1"}}}}, None, ""),
        ({"use": "replay", "sql": None, "expect": {"x": "1"}}, "use", "is a job"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str | None, said: str) -> None:
    if field is None:
        definition(**changes)
        return
    with pytest.raises(InvalidRequest, match=said) as refused:
        definition(**changes)
    assert refused.value.detail["field"] == field


def test_a_pattern_that_matches_the_quarantine_is_refused() -> None:
    pattern = {"sources": {"v": {"pattern": "bad.*"}}}
    expect = {"x": {"condition": "n > 0", "otherwise": "quarantine to bad.rows"}}
    with pytest.raises(InvalidRequest, match=r"sources\.v\.pattern matches bad\.rows"):
        parse({**BASE, **pattern, "expect": expect}, "p", "test")


def test_expectations_change_without_starting_again() -> None:
    judged = definition(expect={"x": "n > 0"}, **source(dead_letter="misfits", expect={"y": "n > 1"}))
    assert plan_of(definition(), judged).effect == "continues"
    assert plan_of(judged, definition()).changed == ["sources", "expect"]


def test_counts_of_a_batch_come_from_what_spark_has_observed() -> None:
    batch = {
        "numInputRows": 3,
        "observedMetrics": {
            "topics.expect": {"a": 2, "b": 0},
            "topics.expect.v": {"v.dead_letter": 1},
            "own": {"c": 9},
        },
    }
    assert unmet_of(batch) == brief(batch)["unmet"] == {"a": 2, "v.dead_letter": 1}
    assert "unmet" not in brief({"numInputRows": 3})


def test_an_expectation_that_fails_is_a_problem_of_its_operator() -> None:
    story = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted. [USER_RAISED_EXCEPTION] "
        'expectation x is not met by the row {"n":"a. b"}. SQLSTATE: P0001\n\tat org.apache'
    )
    words = words_of(RuntimeError(story))
    assert words == 'expectation x is not met by the row {"n":"a. b"}'
    assert problem_of(RuntimeError(story), words) == "expectation_failed"
    assert problem_of(RuntimeError("other"), "other") is None


def test_a_record_that_three_readers_have_read_is_one_row() -> None:
    """Spark reports them as one source, or, if they have begun at different times, as several."""
    start = {"a": {"epoch": 1, "seq": 2}}
    end = {"a": {"epoch": 1, "seq": 10}, "b": {"epoch": 2, "from": 4, "seq": 5}}
    shared = {"description": "topics", "startOffset": start, "endOffset": end, "numInputRows": 27}
    apart = {"description": "topics", "endOffset": {"c": {"epoch": 1, "from": 0, "seq": 7}}, "numInputRows": 5}
    batch = {"numInputRows": 37, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 74.0}
    told = counted_once({**batch, "sources": [shared, apart, apart]})
    assert (told["numInputRows"], told["processedRowsPerSecond"], told["inputRowsPerSecond"]) == (14, 28.0, 0.0)
    files = {"description": "files", "startOffset": None, "endOffset": {"logOffset": 3}, "numInputRows": 37}
    for other in (batch, {**batch, "sources": [files]}, {**batch, "sources": []}, {"batchId": 1}):
        assert counted_once(other) == other


def test_an_error_of_spark_ends_where_its_plan_begins() -> None:
    story = "[UNRESOLVED_COLUMN] A column `x` cannot be resolved. SQLSTATE: 42703; line 2 pos 8;\n'Project ['x]\n+- R\n"
    assert words_of(RuntimeError(story)) == story.partition(";\n")[0]
    for state in ("", " SQLSTATE: 0A000"):
        story = f"Sorting is not supported on streaming DataFrames.{state};\nSort [n#1 ASC], true\n+- ~Project [n#1]\n"
        assert words_of(RuntimeError(story)) == story.partition(";\n")[0]


def test_a_batch_that_rejects_nothing_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def write(_assignment: Any, _options: Any, _records: Any, batch_id: int) -> None:
        written.append(batch_id)

    monkeypatch.setattr(delivery, "write_records", write)
    client: Any = SimpleNamespace(take_fence=lambda _app: 1)
    sink = delivery.RejectSink(Assignment("p", definition(), 1, 1, 1), RunnerConfig("", ""), client)
    for batch_id, is_empty in enumerate((True, False, True)):
        records: Any = SimpleNamespace(isEmpty=lambda is_empty=is_empty: is_empty)
        sink.write(records, batch_id)
    assert written == [1]

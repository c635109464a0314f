"""Changes of definitions: what means the same, and what a checkpoint survives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.engine.pipelines.meaning import plan_of, tokens
from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest

BASE: dict[str, Any] = {
    "sources": {"v": {"topic": "a", "schema": "n INT, s STRING"}},
    "sql": "SELECT n, 'a  b' FROM v WHERE n<5",
    "sink": {"topic": "out"},
}
AGGREGATE: dict[str, Any] = {
    "sources": {"v": {"topic": "a"}},
    "use": "aggregate",
    "options": {"window": "1 minute"},
    "sink": {"topic": "out"},
}


def definition(base: dict[str, Any], **changes: Any) -> PipelineRequest:
    return msgspec.convert({**base, **changes}, PipelineRequest)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (BASE, {"sql": "SELECT  n,\n\t'a  b'\nFROM v -- all\nWHERE n < 5 ;"}),
        (BASE, {"sql": "/* why */ SELECT n, 'a  b' FROM v WHERE n<5"}),
        (
            BASE,
            {"sources": {"v": {"topics": ["a"], "schema": "n  INT,s STRING", "static": False, "start": "earliest"}}},
        ),
        (BASE, {"output_mode": "append", "description": "x", "trigger": {"once": True}, "enabled": False}),
        (AGGREGATE, {"options": {"window": "1 minute", "key": [], "late": "10 minutes"}}),
    ],
)
def test_the_same_in_other_words_continues(base: dict[str, Any], changes: dict[str, Any]) -> None:
    plan = plan_of(definition(base), definition(base, **changes))
    assert (plan.effect, set(plan.changed)) == ("continues", set(changes))


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (BASE, {"sql": "SELECT n, 'a b' FROM v WHERE n<5"}),
        (BASE, {"sql": "SELECT N, 'a  b' FROM v WHERE n<5"}),
        (BASE, {"sql": "SELECT n, 'a  b' FROM v WHERE n<5 -- '\n OR true -- '"}),
        (BASE, {"sql": "SELECT /*+ COALESCE(1) */ n, 'a  b' FROM v WHERE n<5"}),
        (BASE, {"sources": {"v": {"topic": "a", "schema": "n INT, s STRING", "start": "latest"}}}),
        (BASE, {"output_mode": "update"}),
        (BASE, {"sink": {"topic": "other"}}),
        (AGGREGATE, {"options": {"window": "2 minutes"}}),
    ],
)
def test_another_meaning_starts_again(base: dict[str, Any], changes: dict[str, Any]) -> None:
    assert plan_of(definition(base), definition(base, **changes)).effect == "starts_again"
    assert plan_of(definition(base), definition(base, **changes), keep_checkpoint=True).effect == "continues"


def test_a_raw_string_is_compared_as_it_stands() -> None:
    assert tokens(r"SELECT r'\', ' ' FROM v") != tokens(r"SELECT r'\', '  ' FROM v")


@pytest.mark.parametrize(
    "sources",
    [
        {"w": {"topic": "a"}},
        {"v": {"topic": "a"}, "w": {"topic": "b"}},
        {"v": {"topic": "b"}},
        {"v": {"topic": "a", "static": True}},
        {"v": {"pattern": "a"}},
    ],
)
def test_a_checkpoint_that_cannot_fit_is_not_kept(sources: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="keep_checkpoint"):
        plan_of(definition(BASE), definition(BASE, sources=sources), keep_checkpoint=True)


def test_a_topic_more_keeps_the_checkpoint() -> None:
    more = definition(BASE, sources={"v": {"topics": ["a", "b"]}})
    assert plan_of(definition(BASE), more, keep_checkpoint=True).effect == "continues"

"""Expectations on real Spark: what is counted, dropped, set aside and refused; a repeated batch adds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.serving import serving
from tests.spark.pipeline_world import World
from tests.spark.runner_process import running, until
from topics.client import Client, Record, TopicNotFound
from topics_spark.pipelines import tables
from topics_spark.pipelines.pipeline_run import counted_once, problem_of, unmet_of, words_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SCHEMA = "id BIGINT, total DOUBLE, at TIMESTAMP"
EXPECT = {
    "known": "id IS NOT NULL",
    "cheap": {"condition": "total < 1000", "otherwise": "drop"},
}


def orders(world: World) -> None:
    at = "2026-01-01T00:00:10Z"
    world.append(
        "orders",
        {"id": 1, "total": 5.0, "at": at},
        {"id": None, "total": 6.0, "at": at},
        {"id": 3, "total": 5000.0, "at": at},
        {"id": 4, "total": -1.0, "at": at},
        {"id": 5, "at": at},
        {"id": 6, "total": 7.0, "at": "2999-01-01T00:00:00Z"},
        tag="eu",
    )
    world.append("orders", {"id": "x", "total": 1}, "nonsense", [1], {"id": 10, "total": 1.5, "at": at, "more": 1})


def observed(world: World, definition: dict[str, Any]) -> dict[str, int]:
    """Run it to its end; what did not meet expectations in all batches."""
    return {name: rows for batch in world.run(definition) for name, rows in unmet_of(batch).items()}


def meta(record: Record) -> dict[str, Any]:
    assert record.meta is not None
    return record.meta


def source(world: World, **more: Any) -> dict[str, Any]:
    return {"orders": world.source("orders", schema=SCHEMA, **more)}


def test_rows_are_counted_dropped_and_set_aside_in_one_transaction(world: World) -> None:
    orders(world)
    positive = {"condition": "total > 0 -- NULL is not", "otherwise": f"quarantine to {world.topic('bad')}"}
    definition = {
        "sources": source(world, dead_letter=world.topic("misfits")),
        "sql": "SELECT id, total FROM orders",
        "sink": world.sink("out", tag="id"),
        "expect": {**EXPECT, "positive": positive},
    }
    batches = world.run(definition)
    found = {name: rows for batch in batches for name, rows in unmet_of(batch).items()}
    assert found == {"known": 1, "cheap": 2, "positive": 2, "orders.dead_letter": 3}
    assert sum(counted_once(batch)["numInputRows"] for batch in batches) == 10
    assert [(row.tag, row.data) for row in world.read("out")] == [
        ("1", {"id": 1, "total": 5.0}),
        (None, {"total": 6.0}),
        ("6", {"id": 6, "total": 7.0}),
        ("10", {"id": 10, "total": 1.5}),
    ]
    bad = [(row.data, meta(row)["expectations"]) for row in world.read("bad")]
    assert bad == [({"id": 4, "total": -1.0}, ["positive"]), ({"id": 5}, ["cheap", "positive"])]
    misfits = world.read("misfits")
    assert [row.data for row in misfits] == [{"id": "x", "total": 1}, "nonsense", [1]]
    assert [(meta(row)["seq"], meta(row)["topic"], meta(row)["pipeline"]) for row in misfits] == [
        (seq, world.topic("orders"), world.name) for seq in (7, 8, 9)
    ]
    assert [meta(row)["reason"] for row in misfits] == [
        'id must be bigint, not "x"',
        '"nonsense" is not an object',
        "[1] is not an object",
    ]
    # Of one commit, which is one time in each topic.
    assert [len({row.ts for row in world.read(name)}) for name in ("out", "bad", "misfits")] == [1, 1, 1]


def test_a_wrong_time_is_set_aside_before_it_moves_the_watermark(world: World) -> None:
    orders(world)
    sane = {"condition": "at < TIMESTAMP '2027-01-01'", "otherwise": f"quarantine to {world.topic('future')}"}
    definition = {
        "sources": source(world, expect={"sane": sane}, watermark={"column": "at", "delay": "1 minute"}),
        "sql": "SELECT window.start AS minute, count(*) AS n FROM orders GROUP BY window(at, '1 minute')",
        "output_mode": "update",
        "sink": world.sink("counts"),
    }
    assert observed(world, definition) == {"orders.sane": 4}
    world.append("orders", {"id": 11, "total": 1.0, "at": "2026-01-01T00:00:20Z"})
    observed(world, definition)
    assert [row["n"] for row in world.data("counts")] == [6, 7]
    aside = world.read("future")
    assert aside[0].data["id"] == 6
    assert [row.data for row in aside[1:]] == [{"id": "x", "total": 1}, "nonsense", [1]]
    assert (aside[0].tag, meta(aside[0])["seq"], meta(aside[0])["expectations"]) == ("eu", 6, ["orders.sane"])


def test_a_row_that_must_not_exist_stops_the_pipeline_and_nothing_is_committed(world: World) -> None:
    orders(world)
    definition = {
        "sources": source(world),
        "sql": "SELECT id, total FROM orders",
        "sink": world.sink("strict"),
        "expect": {"positive": {"condition": "total > 0", "otherwise": "fail"}},
    }
    with pytest.raises(Exception, match="expectation positive is not met by the row") as failed:
        world.run(definition)
    words = words_of(failed.value)
    assert words == 'expectation positive is not met by the row {"id":4,"total":-1.0}'
    assert problem_of(failed.value, words) == "expectation_failed"
    with pytest.raises(Exception, match=r"topic_not_found|does not exist"):
        world.read("strict")


def test_a_batch_of_a_table_that_is_repeated_rejects_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders(world)
    positive = {"condition": "total > 0", "otherwise": f"quarantine to {world.topic('aside')}"}
    definition = {
        "sources": source(world, dead_letter=world.topic("aside")),
        "sql": "SELECT id, total FROM orders",
        "sink": {"table": world.name},
        "expect": {**EXPECT, "positive": positive},
    }

    def crash(self: Any, rows: Any, batch_id: int) -> None:
        raise RuntimeError("the power is gone")

    with monkeypatch.context() as broken:
        broken.setattr(tables.TableSink, "write", crash)
        with pytest.raises(Exception, match="the power is gone"):
            world.run(definition)
    assert len(world.read("aside")) == 5
    found = observed(world, definition)
    assert found == {"known": 1, "cheap": 2, "positive": 2, "orders.dead_letter": 3}
    assert len(world.read("aside")) == 5
    files = tables.files(world.table(world.name))
    rows = [row for path in files for row in pyarrow.parquet.read_table(path).to_pylist()]
    assert sorted(row["id"] or 0 for row in rows) == [0, 1, 6, 10]


@pytest.mark.parametrize(
    "condition", ["id IN (SELECT value FROM text.`/etc/passwd`)", "reflect('java.lang.System', 'exit') = 1", "1) --"]
)
def test_a_condition_reaches_nothing_but_its_row(world: World, condition: str) -> None:
    orders(world)
    definition = {"sources": source(world), "sql": "SELECT id FROM orders", "sink": world.sink("out")}
    with pytest.raises(Exception, match=r"expect\.nosy|PARSE_SYNTAX_ERROR"):
        world.run({**definition, "expect": {"nosy": condition}})


class Sifted:
    """What a pipeline has made of numbers: even ones in a table, odd ones and misfits in topics."""

    def __init__(self, client: Client, home: Path) -> None:
        self._client = client
        self._table = home / "tables" / "even"

    def even(self) -> list[int]:
        return sorted(
            n for path in tables.files(self._table) for n in pyarrow.parquet.read_table(path)["n"].to_pylist()
        )

    def topic(self, name: str) -> list[Any]:
        try:
            return [record.data for record in self._client.read(name) if isinstance(record, Record)]
        except TopicNotFound:
            return []


@pytest.mark.crash
@pytest.mark.timeout(2700)
def test_killed_runners_reject_every_row_once(tmp_path: Path) -> None:
    """In front of a table, where rows and rejected ones have transactions of their own: kill -9 at any moment."""
    numbers = range(1_500)
    with serving(tmp_path / "data") as server, Client(f"http://127.0.0.1:{server.port}") as client:
        sifted = Sifted(client, tmp_path)
        client.append_many("numbers", [n if n % 10 == 5 else {"n": n} for n in numbers])
        odd = {"condition": "n % 2 = 0", "otherwise": "quarantine to odd"}
        source = {"topic": "numbers", "schema": "n BIGINT", "dead_letter": "misfits"}
        client.put_pipeline(
            "sift",
            {
                "sources": {"v": source},
                "sql": "SELECT n FROM v",
                "expect": {"even": odd},
                "sink": {"table": "even"},
                "trigger": {"every": "100 milliseconds"},
                "batch_records": 250,
            },
        )
        for at_least in (1, 300):
            with running(server.port, tmp_path) as runner:
                until(lambda at_least=at_least: len(sifted.topic("odd")) >= at_least, lambda: runner.log)
                runner.kill()
        with running(server.port, tmp_path) as runner:
            until(lambda: len(sifted.even()) >= 750, lambda: runner.log)
            assert runner.terminate() == 0
        assert sifted.even() == [n for n in numbers if n % 2 == 0]
        assert sorted(row["n"] for row in sifted.topic("odd")) == [n for n in numbers if n % 2 and n % 10 != 5]
        assert sorted(sifted.topic("misfits")) == [n for n in numbers if n % 10 == 5]

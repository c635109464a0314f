"""Topics as tables: real Spark reads a real server, and every row is accounted for."""

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, parse_json, variant_get

from tests.serving import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

Load = Callable[..., DataFrame]


def seqs(rows: DataFrame) -> list[int]:
    return sorted(row.seq for row in rows.select("seq").collect())


def test_a_topic_is_a_table(load: Load, client: Client, topic: str) -> None:
    client.post(
        f"/v0/topics/{topic}",
        {
            "node": "shop",
            "records": [{"data": {"id": 1}, "tag": "a", "meta": {"x": [1]}}, {"data": "é\n"}, {"data": None}],
        },
    )
    rows = load(subscribe=topic).orderBy("seq").collect()
    assert [row.asDict() for row in rows] == [
        {
            "topic": topic,
            "seq": record["$seq"],
            "ts": datetime.fromtimestamp(record["$ts"] / 1000),  # noqa: DTZ006
            "node": "shop",
            "tag": record.get("$tag"),
            "data": text,
            "meta": None if "meta" not in record else json.dumps(record["meta"]),
        }
        for record, text in zip(
            client.diff(topic, include_tags=True)["records"], ['{"id": 1}', '"\\u00e9\\n"', "null"], strict=True
        )
    ]


def test_records_of_every_shape_arrive_as_they_were_sent(load: Load, client: Client, topic: str) -> None:
    sent = [
        {"data": data, "tag": tag, "meta": meta, "node": node}
        for data in [0, -1.5, "x" * 3000, [], {}, {"data": 1, "$seq": 9, "meta": {}}, '\\"\n{"tombstone":', None, True]
        for tag, meta, node in [("a", None, None), (None, {"k": "v"}, "n1"), ("b", {"data": ',"meta":'}, "n2")]
    ]
    for start in range(0, len(sent), 5):
        client.post(
            f"/v0/topics/{topic}",
            {
                "records": [
                    {k: v for k, v in each.items() if k == "data" or v is not None} for each in sent[start : start + 5]
                ]
            },
        )
    rows = load(subscribe=topic, minPartitions=3).orderBy("seq").collect()
    found = [
        {
            "data": json.loads(row.data),
            "tag": row.tag,
            "meta": json.loads(row.meta) if row.meta else None,
            "node": row.node,
        }
        for row in rows
    ]
    assert found == sent


def test_many_topics_are_one_table(load: Load, client: Client, topic: str) -> None:
    for name, count in (("a", 3), ("b", 5), ("other", 7)):
        client.append(f"{topic}-{name}", *range(count))
    client.append(f"{topic}-a:p2", "partition")
    counts = load(subscribePattern=f"{topic}-(a|b)").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {f"{topic}-a": 3, f"{topic}-b": 5}
    assert load(subscribe=f"{topic}-a, {topic}-b").count() == 8
    assert load(assign=json.dumps({f"{topic}-a": [0, 2], f"{topic}-b": [0]})).count() == 9
    assert load(subscribePattern=f"{topic}-none").count() == 0


def test_a_topic_is_split_into_as_many_tasks_as_asked_and_none_reads_twice(
    load: Load, client: Client, topic: str
) -> None:
    for _ in range(4):
        client.append(topic, *range(2_500))
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 11})
    split = load(subscribe=topic, minPartitions=7)
    assert split.rdd.getNumPartitions() == 7
    assert seqs(split) == list(range(11, 10_001))
    assert load(subscribe=topic, maxRecordsPerPartition=1000).rdd.getNumPartitions() == 10
    assert load(subscribe=topic).rdd.getNumPartitions() == 1


def test_ranges_are_options(load: Load, client: Client, topic: str) -> None:
    """Kafka's meaning: the first offset to read, and the first to leave out."""
    client.append(topic, *range(20))
    assert seqs(load(subscribe=topic, startingOffsets=json.dumps({topic: 5}))) == list(range(5, 21))
    assert seqs(load(subscribe=topic, endingOffsets=json.dumps({topic: 5}))) == [1, 2, 3, 4]
    both = load(subscribe=topic, startingOffsets=json.dumps({topic: -2}), endingOffsets=json.dumps({topic: -1}))
    assert seqs(both) == list(range(1, 21))
    assert seqs(load(subscribe=topic, endingOffsets=json.dumps({topic: 1000}))) == list(range(1, 21))


def test_times_are_options(load: Load, client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    time.sleep(0.02)
    client.append(topic, 3, 4)
    first, second = (client.diff(topic)["records"][at]["$ts"] for at in (0, 2))
    assert second > first
    assert seqs(load(subscribe=topic, startingTimestamp=second)) == [3, 4]
    assert seqs(load(subscribe=topic, endingTimestamp=second)) == [1, 2]
    assert seqs(load(subscribe=topic, startingTimestamp=second + 100_000)) == []
    assert seqs(load(subscribe=topic, startingOffsetsByTimestamp=json.dumps({topic: first}))) == [1, 2, 3, 4]
    assert seqs(load(subscribe=topic, endingOffsetsByTimestamp=json.dumps({topic: second}))) == [1, 2]


def test_columns_tags_and_nodes_are_options(load: Load, client: Client, topic: str) -> None:
    client.post(
        f"/v0/topics/{topic}",
        {
            "records": [
                {"data": n, "tag": tag, "node": node}
                for n, tag, node in [(1, "a-1", "x"), (2, "b-1", "y"), (3, "a-2", "z")]
            ]
        },
    )
    client.append(topic, 4)
    assert load(subscribe=topic, columns="data,seq").columns == ["data", "seq"]
    assert load(subscribe=topic, includeTags="false", includeMeta="false").columns == [
        "topic",
        "seq",
        "ts",
        "node",
        "data",
    ]
    assert seqs(load(subscribe=topic, tagPrefix="a-")) == [1, 3]
    assert [row.seq for row in load(subscribe=topic, tagPrefix="b", columns="seq").collect()] == [2]
    assert seqs(load(subscribe=topic, node="x")) == [2, 3, 4]
    assert seqs(load(subscribe=topic, node="x,z")) == [2, 4]
    assert [row.topic for row in load(subscribe=topic, columns="topic").collect()] == [topic] * 4
    assert load(subscribe=topic).count() == 4


def test_filters_of_two_actions_on_one_table_do_not_mix(load: Load, client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    table = load(subscribe=topic)
    assert seqs(table.where("seq <= 3").union(table.where("seq > 8"))) == [1, 2, 3, 9, 10]


def test_rows_can_be_given_a_schema_of_their_own(load: Load, client: Client, topic: str) -> None:
    client.append(topic, {"id": 1, "name": "x"})
    rows = load("seq BIGINT, data STRUCT<id: INT>", subscribe=topic).collect()
    assert [row.asDict(recursive=True) for row in rows] == [{"seq": 1, "data": {"id": 1}}]
    with pytest.raises(PySparkException, match="no column 'colour'"):
        load("colour STRING", subscribe=topic).collect()
    with pytest.raises(PySparkException, match="is bigint, not string"):
        load("seq STRING", subscribe=topic).collect()


@pytest.fixture
def mixed(client: Client, topic: str) -> str:
    client.append(topic, {"id": 1, "who": {"name": "x"}}, {"id": "two"}, "three", None, {"id": 5, "extra": True})
    return topic


def test_permissive_keeps_what_fits_and_shows_the_rest(load: Load, mixed: str) -> None:
    rows = load(subscribe=mixed, schema="id INT, who STRUCT<name: STRING>").orderBy("seq").collect()
    assert [(row.data and row.data.asDict(recursive=True), row._corrupt) for row in rows] == [
        ({"id": 1, "who": {"name": "x"}}, None),
        ({"id": None, "who": None}, '{"id": "two"}'),
        (None, '"three"'),
        (None, None),
        ({"id": 5, "who": None}, None),
    ]


def test_dropmalformed_leaves_misfits_out(load: Load, mixed: str) -> None:
    rows = load(subscribe=mixed, schema="id INT", mode="DROPMALFORMED")
    assert "_corrupt" not in rows.columns
    assert seqs(rows) == [1, 4, 5]


def test_failfast_fails_with_the_record(load: Load, mixed: str) -> None:
    with pytest.raises(PySparkException, match=f"record 2 of topic '{mixed}' does not fit"):
        load(subscribe=mixed, schema="id INT", mode="FAILFAST").collect()


def test_a_schema_is_inferred(load: Load, client: Client, topic: str) -> None:
    client.append(topic, {"id": 1, "price": 1}, {"id": 2, "price": 2.5, "tags": ["a"]})
    rows = load(subscribe=topic, inferSchema="true").orderBy("seq")
    assert rows.schema["data"].dataType.simpleString() == "struct<id:bigint,price:double,tags:array<string>>"
    assert [tuple(row.data) for row in rows.collect()] == [(1, 1.0, None), (2, 2.5, ["a"])]
    client.append(f"{topic}-plain", 1)
    with pytest.raises(PySparkException, match="found no payload that is an object"):
        load(subscribe=f"{topic}-plain", inferSchema="true")


def test_payloads_become_variants(load: Load, client: Client, topic: str) -> None:
    client.append(topic, {"a": {"b": 7}})
    table = load(subscribe=topic).select(parse_json(col("data")).alias("v"))
    assert table.select(variant_get("v", "$.a.b", "int")).first() == (7,)


def test_lost_records_fail_the_query_or_are_left_out(load: Load, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    client.append(topic, *range(8))
    assert seqs(load(subscribe=topic)) == [4, 5, 6, 7, 8], "earliest is the first existing record"
    asked = {"subscribe": topic, "startingOffsets": json.dumps({topic: 2})}
    with pytest.raises(PySparkException, match=r"lost about 2 records from seq 2 to 3 \(cap\)"):
        load(**asked).collect()
    assert seqs(load(**asked, failOnDataLoss="false")) == [4, 5, 6, 7, 8]


def test_a_table_is_a_snapshot(load: Load, client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    table = load(subscribe=topic)
    assert table.count() == 3
    client.append(topic, 4)
    assert table.count() == 3
    assert load(subscribe=topic).count() == 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "never-made"}, "'never-made', which does not exist"),
        ({"subscribe": "x", "startingOffsets": "latest"}, "cannot be latest in a batch"),
        ({"subscribe": "x", "endingOffsets": "earliest"}, "cannot be earliest in a batch"),
        ({"subscribe": "x", "nonsense": "1"}, "`nonsense` is not an option"),
        ({}, "exactly one of"),
    ],
)
def test_a_wrong_option_is_named(load: Load, options: dict[str, str], complaint: str) -> None:
    with pytest.raises((PySparkException, AnalysisException), match=complaint):
        load(**options).collect()


def test_a_wrong_key_is_told_and_not_shown(spark: SparkSession, at: dict[str, Any], client: Client, topic: str) -> None:
    client.append(topic, 1)
    wrong = spark.read.format("topics").options(**{**at, "key": "wrong-0816"}, subscribe=topic).load()
    with pytest.raises(PySparkException, match=r"(?i)\bkey\b") as told:
        wrong.collect()
    assert "wrong-0816" not in str(told.value)


def test_a_topic_is_a_temporary_view_and_no_table(
    spark: SparkSession, at: dict[str, Any], client: Client, topic: str
) -> None:
    client.append(topic, {"n": 1}, {"n": 2})
    told = {**at, "subscribe": topic, "schema": "n INT"}
    options = ", ".join(f"{name} '{value}'" for name, value in told.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v_{topic} USING topics OPTIONS ({options})")
    assert [row.n for row in spark.sql(f"SELECT data.n FROM v_{topic} ORDER BY seq").collect()] == [1, 2]
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING topics"):
        spark.sql(f"CREATE TABLE t_{topic} USING topics OPTIONS ({options})")

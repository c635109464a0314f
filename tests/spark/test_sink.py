"""The sink, batch and stream: what is written, under which version, and that nothing is written twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from tests.serving import Client, serving
from tests.spark.bounds import RUNS_TO_THE_END, bounded
from tests.spark.conftest import FORMATS, SECRET
from topics_spark.errors import OptionError, ServerFailed
from topics_spark.sink.data_sink import BatchWriter, SinkOptions
from topics_spark.source.limits import LIMITED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

Options = dict[str, Any]
TEXTS = StructType([StructField("data", StringType())])


@pytest.fixture
def save(at: Options) -> Callable[..., None]:
    """A batch: `save(rows, topic="orders")`."""

    def save(rows: DataFrame, **options: Any) -> None:
        rows.write.format("topics").mode("append").options(**at, **options).save()

    return save


@pytest.fixture
def run(at: Options, tmp_path: Path) -> Callable[..., StreamingQuery]:
    """A stream into the sink, to the end of what there is; the checkpoint stays between calls."""

    def run(rows: DataFrame, mode: str = "append", checkpoint: str = "checkpoint", **options: Any) -> StreamingQuery:
        query = (
            rows.writeStream.format("topics")
            .outputMode(mode)
            .options(**at, **options)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(400)
        return query

    return run


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(str(value),) for value in values], "data STRING").coalesce(1)


def apps(client: Client, prefix: str) -> dict[str, Any]:
    found = client.get(f"/v0/txns?page_size=1000&prefix={prefix}").json["apps"]
    return {app["app"]: app for app in found}


# --- options ---


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "t"}, "`subscribe` is not an option of this sink"),
        ({"stringData": "yaml"}, "`stringData` must be json .* or text, not 'yaml'"),
        ({"txnVersion": "-1"}, "`txnVersion` must be a whole number from 0"),
        ({"txnNumber": "x"}, "`txnNumber` must be a whole number"),
        ({"txnFence": "x"}, "`txnFence` must be a whole number"),
    ],
)
def test_options_are_checked(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        SinkOptions.parse(options)


def test_options_show_no_key() -> None:
    assert SECRET not in repr(SinkOptions.parse({"key": SECRET, "topic": "t"}))


# --- a batch ---


def test_rows_of_many_tasks_become_records_at_once(
    spark: SparkSession, client: Client, topic: str, save: Callable[..., None]
) -> None:
    rows = spark.range(0, 5_000, numPartitions=4).selectExpr(
        "named_struct('id', id, 'even', id % 2 = 0) AS data",
        "concat('k', id % 3) AS tag",
        "IF(id % 2 = 0, 'n1', NULL) AS node",
        "map('part', id % 4) AS meta",
    )
    save(rows, topic=topic)
    records = client.diff(topic, limit=1000, include_tags=True, include_meta=True)["records"]
    assert client.state(topic)["head_seq"] == 5_000
    assert len({record["$ts"] for record in records}) == 1
    for record in records:
        number = record["data"]["id"]
        assert record["data"] == {"id": number, "even": number % 2 == 0}
        assert record["$tag"] == f"k{number % 3}"
        assert record.get("$node") == ("n1" if number % 2 == 0 else None)
        assert record["meta"] == {"part": number % 4}
    assert not apps(client, f"{topic}:spark:write:"), "a finished write leaves no app"


def test_save_names_the_topic_and_a_column_names_one_for_each_row(
    spark: SparkSession, client: Client, topic: str, at: Options, save: Callable[..., None]
) -> None:
    numbers(spark, 1).write.format("topics").mode("append").options(**at).save(topic)
    assert client.payloads(topic) == [1]
    mixed = spark.createDataFrame([("1", f"{topic}-a"), ("2", f"{topic}-b")], "data STRING, topic STRING").coalesce(1)
    save(mixed)
    assert (client.payloads(f"{topic}-a"), client.payloads(f"{topic}-b")) == ([1], [2])
    save(mixed, topic=topic)
    assert client.payloads(topic) == [1, 1, 2]


def test_strings_are_json_or_text_as_asked(
    spark: SparkSession, client: Client, topic: str, save: Callable[..., None]
) -> None:
    words = spark.createDataFrame([('say "hi"',)], "data STRING")
    with pytest.raises(PySparkException, match="which is not valid JSON"):
        save(words, topic=topic)
    assert client.get(f"/v0/topics/{topic}?touch=false").status == 404
    save(words, topic=topic, stringData="text")
    assert client.payloads(topic) == ['say "hi"']


def test_a_variant_is_written_as_the_json_it_holds(
    spark: SparkSession, client: Client, topic: str, save: Callable[..., None]
) -> None:
    save(spark.sql("""SELECT parse_json('{"a":[1,null]}') AS data"""), topic=topic)
    assert client.payloads(topic) == [{"a": [1, None]}]


def test_what_cannot_be_written_is_refused_before_any_task(
    spark: SparkSession, client: Client, topic: str, at: Options, save: Callable[..., None]
) -> None:
    for rows, options, complaint in (
        (spark.range(1), {"topic": topic}, "not 'id': put it into `data`"),
        (numbers(spark, 1), {}, "needs the option `topic`"),
        (numbers(spark, 1), {"topic": topic, "txnApp": "a"}, "must be given together"),
        (numbers(spark, 1), {"topic": topic, "txnFence": "x"}, "whole number"),
    ):
        with pytest.raises(PySparkException) as caught:
            save(rows, **options)
        assert complaint in str(caught.value)
        assert SECRET not in str(caught.value)
    with pytest.raises(PySparkException, match="cannot be overwrite for a topic"):
        numbers(spark, 1).write.format("topics").mode("overwrite").options(**at, topic=topic).save()


def test_a_version_of_an_app_is_written_once(
    spark: SparkSession, client: Client, topic: str, save: Callable[..., None]
) -> None:
    # Delta claims the other name for itself in a session that has its jars.
    name = "txnNumber" if "delta" in FORMATS else "txnVersion"
    for version, value in ((5, 1), (5, 2), (4, 3), (6, 4)):
        save(numbers(spark, value), topic=topic, txnApp=f"nightly-{topic}", **{name: version})
    assert client.payloads(topic) == [1, 4]
    assert client.get(f"/v0/txns/nightly-{topic}").json["version"] == 6


def test_a_server_that_takes_less_at_a_time_gets_less(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path / "small", max_batch_records=100) as server:
        rows = spark.range(0, 950, numPartitions=1).selectExpr("CAST(id AS STRING) AS data")
        rows.write.format("topics").mode("append").option("url", f"http://127.0.0.1:{server.port}").save("t")
        assert server.client().payloads("t", limit=1000) == list(range(950))


def test_a_task_that_fails_once_after_staging_adds_nothing(
    client: Client, topic: str, at: Options, tmp_path: Path
) -> None:
    batch = pa.RecordBatch.from_pydict({"data": ["1", "2"]})
    options = SinkOptions.parse({**at, "topic": topic, "txnApp": f"retry-{topic}", "txnVersion": "1"})
    writer = BatchWriter(TEXTS, options)
    lost = writer.write(iter([batch]))
    winner = writer.write(iter([batch]))
    assert len(client.get(f"/v0/txns/retry-{topic}").json["stages"]) == 2
    writer.commit([winner])
    writer.commit([winner])
    with pytest.raises(ServerFailed, match="not these stages"):
        writer.commit([lost, winner])
    assert client.payloads(topic) == [1, 2]
    assert client.get(f"/v0/txns/retry-{topic}").json["stages"] == []


def test_an_aborted_write_leaves_no_stage(client: Client, topic: str, at: Options) -> None:
    options = SinkOptions.parse({**at, "topic": topic, "txnApp": f"abort-{topic}", "txnVersion": "1"})
    writer = BatchWriter(TEXTS, options)
    writer.abort([writer.write(iter([pa.RecordBatch.from_pydict({"data": ["1"]})])), None])
    assert client.get(f"/v0/txns/abort-{topic}").json["stages"] == []


# --- a stream ---


def test_a_stream_goes_on_where_it_was_and_takes_a_token_for_each_run(
    client: Client, topic: str, stream: Callable[..., DataFrame], run: Callable[..., StreamingQuery]
) -> None:
    client.append(topic, *range(10))
    rows = stream(startingOffsets="earliest", subscribe=topic, **bounded(4)).select("data", "tag")
    query = run(rows, topic=f"{topic}-out")
    assert client.payloads(f"{topic}-out") == list(range(10))
    app = f"{topic}-out:spark:{query.id}"
    assert apps(client, app)[app]["fence"] == 1
    assert apps(client, app)[app]["version"] == (2 if LIMITED else 0)
    client.append(topic, 10, 11)
    run(rows, topic=f"{topic}-out")
    assert client.payloads(f"{topic}-out") == list(range(12))
    assert apps(client, app)[app]["fence"] == 2


def test_a_batch_that_runs_again_adds_nothing(
    client: Client, topic: str, stream: Callable[..., DataFrame], run: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    rows = stream(startingOffsets="earliest", subscribe=topic).select("data")
    for first in (0, 3):
        client.append(topic, *range(first, first + 3))
        run(rows, topic=f"{topic}-out")
    # As if the driver had died after the server's reply and before Spark recorded it.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    client.append(topic, 6)
    for _ in range(RUNS_TO_THE_END):
        run(rows, topic=f"{topic}-out")
    assert client.payloads(f"{topic}-out") == list(range(7))


def test_a_batch_that_version_0_1_committed_under_its_own_name_is_not_written_again(
    client: Client, topic: str, stream: Callable[..., DataFrame], run: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    client.append(topic, 0)
    rows = stream(startingOffsets="earliest", subscribe=topic).select("data")
    query = run(rows, topic=f"{topic}-out")
    app, earlier = f"{topic}-out:spark:{query.id}", f"spark:{query.id}:{topic}-out"
    assert client.delete(f"/v0/txns/{app}").status == 200
    assert client.post(f"/v0/txns/{earlier}/0/commit", {}).status == 200
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
    client.append(topic, 1)
    for _ in range(RUNS_TO_THE_END):
        run(rows, topic=f"{topic}-out")
    assert client.payloads(f"{topic}-out") == [0, 1]


def test_a_batch_without_rows_takes_no_version(
    client: Client, topic: str, stream: Callable[..., DataFrame], run: Callable[..., StreamingQuery]
) -> None:
    """However far it is above the one before: the first batch of a new generation of a pipeline may be empty."""
    client.append(topic, 1)
    rows = stream(startingOffsets="earliest", subscribe=topic).select("data")
    run(rows.where("false"), topic=f"{topic}-out", txnApp=f"own-{topic}", txnVersionBase=7 << 32)
    assert client.get(f"/v0/txns/own-{topic}").json["version"] is None
    client.append(topic, 2)
    run(rows, topic=f"{topic}-out", txnApp=f"own-{topic}", txnVersionBase=7 << 32)
    assert client.payloads(f"{topic}-out") == [2]


def test_a_key_limited_to_its_topics_writes_batches_and_streams(
    spark: SparkSession, tmp_path: Path, stream: Callable[..., DataFrame], client: Client, topic: str
) -> None:
    with serving(tmp_path / "data", api_keys="root,tenant:rw+d:tenant-") as server:
        at = {"url": f"http://127.0.0.1:{server.port}", "key": "tenant"}
        numbers(spark, 1).write.format("topics").mode("append").options(**at).save("tenant-out")
        client.append(topic, 2)
        query = (
            stream(startingOffsets="earliest", subscribe=topic)
            .select("data")
            .writeStream.format("topics")
            .options(**at, topic="tenant-out", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(400)
        assert query.exception() is None
        assert server.client("tenant").payloads("tenant-out") == [1, 2]
        mixed = spark.createDataFrame([("3", "tenant-out")], "data STRING, topic STRING")
        with pytest.raises(PySparkException, match="cannot stage the rows"):
            mixed.write.format("topics").mode("append").options(**at).save()
        mixed.write.format("topics").mode("append").options(**at, sinkName="tenant-rows").save()
        assert server.client("tenant").payloads("tenant-out") == [1, 2, 3]


def test_a_run_that_was_displaced_is_kept_out(
    client: Client, topic: str, stream: Callable[..., DataFrame], run: Callable[..., StreamingQuery]
) -> None:
    client.append(topic, 1)
    rows = stream(startingOffsets="earliest", subscribe=topic).select("data")
    query = run(rows, topic=f"{topic}-out")
    app = f"{topic}-out:spark:{query.id}"
    again = client.post(f"/v0/txns/{app}/fence", {"owner": str(query.runId)})
    assert again.json["fence"] == 1, "the owner is the run"
    client.post(f"/v0/txns/{app}/fence", {"owner": "its successor"})
    assert client.post(f"/v0/txns/{app}/fence", {"owner": str(query.runId)}).code == "fenced"
    zombie = client.post(f"/v0/txns/{app}/1/commit", {"stages": [], "fence": 1})
    assert zombie.code == "fenced"
    client.append(topic, 2)
    with pytest.raises(PySparkException, match="has taken over"):
        run(rows, topic=f"{topic}-out", txnFence=1)
    run(rows, topic=f"{topic}-out")
    assert client.payloads(f"{topic}-out") == [1, 2]


def test_an_app_of_one_s_own_with_versions_above_a_base(
    client: Client, topic: str, stream: Callable[..., DataFrame], run: Callable[..., StreamingQuery]
) -> None:
    client.append(topic, 1)
    rows = stream(startingOffsets="earliest", subscribe=topic).select("data")
    run(rows, topic=f"{topic}-out", txnApp=f"own-{topic}", txnVersionBase=100)
    assert client.get(f"/v0/txns/own-{topic}").json["version"] == 100
    with pytest.raises(PySparkException, match="cannot be given for a stream"):
        run(rows, checkpoint="other", topic=f"{topic}-out", txnVersion=1)


def test_results_that_change_are_appended_as_they_are_now(
    client: Client,
    topic: str,
    stream: Callable[..., DataFrame],
    run: Callable[..., StreamingQuery],
    save: Callable[..., None],
    tmp_path: Path,
) -> None:
    counts = stream(startingOffsets="earliest", subscribe=topic).groupBy("tag").count()
    rows = counts.selectExpr("map(tag, count) AS data")
    client.post(f"/v0/topics/{topic}", {"records": [{"data": 0, "tag": "a"}, {"data": 0, "tag": "a"}]})
    run(rows, mode="complete", topic=f"{topic}-out")
    client.post(f"/v0/topics/{topic}", {"records": [{"data": 0, "tag": "a"}]})
    run(rows, mode="complete", topic=f"{topic}-out")
    assert client.payloads(f"{topic}-out") == [{"a": 2}, {"a": 3}]
    # Spark keeps sinks written in Python out of this mode; inside foreachBatch there is no such rule.
    with pytest.raises(PySparkException, match="does not support Update mode"):
        run(rows, mode="update", checkpoint="update", topic=f"{topic}-out")
    each_batch(rows, tmp_path / "each", lambda batch: save(batch, topic=f"{topic}-updates"), mode="update")
    assert client.payloads(f"{topic}-updates") == [{"a": 3}]


# --- foreachBatch ---


def each_batch(
    rows: DataFrame, checkpoint: Path, write: Callable[[DataFrame], None], mode: str = "append"
) -> StreamingQuery:
    query = (
        rows.writeStream.foreachBatch(lambda batch, _number: write(batch))
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(400)
    return query


def test_writes_inside_foreach_batch_are_once_each_without_an_option(
    client: Client, topic: str, stream: Callable[..., DataFrame], save: Callable[..., None], tmp_path: Path
) -> None:
    client.append(topic, 1, 2)
    failing = [True]

    def write(batch: DataFrame) -> None:
        save(batch.select("data"), topic=f"{topic}-x")
        if failing.pop():
            raise RuntimeError("between two writes")
        save(batch.select("data"), topic=f"{topic}-y")

    rows = stream(startingOffsets="earliest", subscribe=topic)
    with pytest.raises(PySparkException, match="between two writes"):
        each_batch(rows, tmp_path / "c", write)
    assert client.payloads(f"{topic}-x") == [1, 2]
    failing.append(False)
    each_batch(rows, tmp_path / "c", write)
    assert client.payloads(f"{topic}-x") == [1, 2]
    assert client.payloads(f"{topic}-y") == [1, 2]


def test_two_writes_of_one_name_in_a_batch_are_refused_rather_than_lost(
    client: Client, topic: str, stream: Callable[..., DataFrame], save: Callable[..., None], tmp_path: Path
) -> None:
    client.append(topic, 1)
    rows = stream(startingOffsets="earliest", subscribe=topic)

    def twice(batch: DataFrame, *names: dict[str, str]) -> None:
        for name in names:
            save(batch.select("data"), topic=f"{topic}-out", **name)

    with pytest.raises(PySparkException, match="option `sinkName` must be given"):
        each_batch(rows, tmp_path / "one", lambda batch: twice(batch, {}, {}))
    assert client.payloads(f"{topic}-out") == [1]
    each_batch(rows, tmp_path / "two", lambda batch: twice(batch, {"sinkName": "a"}, {"sinkName": "b"}))
    assert client.payloads(f"{topic}-out") == [1, 1, 1]

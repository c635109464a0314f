"""Topics as streams: admission, restarts, new and vanished topics, and the reported progress."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.serving import Client
from tests.spark.bounds import needs_bounds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

Stream = Callable[..., DataFrame]
Drained = Callable[..., list[Any]]


def seqs(rows: list[Any]) -> list[int]:
    return sorted(row.seq for row in rows)


def ends(progress: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(each.sources[0].endOffset) for each in progress]


def test_what_is_there_is_read_once_and_a_restart_goes_on(
    stream: Stream, drained: Drained, client: Client, topic: str
) -> None:
    client.append(topic, *range(5))
    source = stream(subscribe=topic, startingOffsets="earliest")
    assert seqs(drained(source)) == [1, 2, 3, 4, 5]
    assert drained(source) == []
    client.append(topic, *range(3))
    assert seqs(drained(source)) == [6, 7, 8]


def test_a_new_query_starts_at_the_end_and_stays_there_however_long_it_is_stopped(
    stream: Stream, drained: Drained, client: Client, topic: str
) -> None:
    client.append(topic, 1, 2)
    source = stream(subscribe=topic)
    assert drained(source) == []
    client.append(topic, 3, 4)
    assert seqs(drained(source)) == [3, 4], "the start was pinned by the first, empty batch"


def test_a_stream_starts_where_requested(stream: Stream, drained: Drained, client: Client, topic: str) -> None:
    client.append(topic, *range(9))
    assert seqs(drained(stream(subscribe=topic, startingOffsets=json.dumps({topic: 8})), "a")) == [8, 9]
    stamp = client.diff(topic)["records"][0]["$ts"]
    assert seqs(drained(stream(subscribe=topic, startingTimestamp=stamp), "b")) == list(range(1, 10))
    assert drained(stream(subscribe=topic, startingTimestamp=stamp + 10**7), "c") == []


@needs_bounds
def test_batches_keep_the_limit_and_share_it_by_what_each_topic_has(
    stream: Stream, drained: Drained, client: Client, topic: str
) -> None:
    client.append(f"{topic}-a", *range(90))
    client.append(f"{topic}-b", *range(10))
    progress: list[Any] = []
    source = stream(subscribePattern=f"{topic}-.*", startingOffsets="earliest", maxOffsetsPerTrigger=40)
    rows = drained(source, progress=progress)
    assert [each.numInputRows for each in progress if each.numInputRows] == [40, 40, 20]
    assert {name: at["seq"] for name, at in ends(progress)[0].items()} == {f"{topic}-a": 36, f"{topic}-b": 4}
    assert sorted((row.topic, row.seq) for row in rows) == [
        *((f"{topic}-a", seq) for seq in range(1, 91)),
        *((f"{topic}-b", seq) for seq in range(1, 11)),
    ]


@needs_bounds
def test_the_progress_tells_the_lag_of_every_topic(
    stream: Stream, drained: Drained, client: Client, topic: str
) -> None:
    client.append(topic, *range(10))
    progress: list[Any] = []
    drained(stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4), progress=progress)
    told = [json.loads(each.sources[0].latestOffset)[topic] for each in progress]
    assert [(each["seq"], each["lag"]) for each in told[:3]] == [(10, 6), (10, 2), (10, 0)]


def test_a_batch_is_split_into_tasks(stream: Stream, drained: Drained, client: Client, topic: str) -> None:
    client.append(topic, *range(100))
    source = stream(subscribe=topic, startingOffsets="earliest", minPartitions=5).selectExpr(
        "seq", "spark_partition_id() AS task"
    )
    rows = drained(source)
    assert seqs(rows) == list(range(1, 101))
    assert {row.task for row in rows} == set(range(5))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., "Running"]]:
    started: list[Running] = []

    def start(rows: DataFrame, checkpoint: str = "running") -> Running:
        query = Running(rows, tmp_path / checkpoint)
        started.append(query)
        return query

    yield start
    for each in started:
        each.query.stop()


class Running:
    """A query that keeps running, whose batches can be waited for."""

    def __init__(self, rows: DataFrame, checkpoint: Path) -> None:
        self._seen: list[Any] = []
        self._news = threading.Condition()
        self.query: StreamingQuery = (
            rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint)).start()
        )

    def _take(self, batch: DataFrame, _batch_id: int) -> None:
        rows = batch.collect()
        with self._news:
            self._seen += rows
            self._news.notify_all()

    def wait(self, count: int) -> list[Any]:
        with self._news:
            assert self._news.wait_for(lambda: len(self._seen) >= count, timeout=300), self.query.exception()
            return list(self._seen)

    def failure(self) -> str:
        with pytest.raises(StreamingQueryException) as failed:
            self.query.awaitTermination(300)
        return str(failed.value)


def test_topics_that_come_to_match_are_read_from_their_first_record(
    stream: Stream, running: Callable[..., Running], client: Client, topic: str
) -> None:
    client.append(f"{topic}-a", "before")
    query = running(stream(subscribePattern=f"{topic}-.*"))
    query.query.processAllAvailable()
    client.append(f"{topic}-a", "a")
    client.append(f"{topic}-b", "b1", "b2")
    rows = query.wait(3)
    assert sorted((row.topic, row.seq) for row in rows) == [(f"{topic}-a", 2), (f"{topic}-b", 1), (f"{topic}-b", 2)]


def test_a_stream_waits_for_a_topic_that_does_not_exist_yet(
    stream: Stream, running: Callable[..., Running], client: Client, topic: str
) -> None:
    query = running(stream(subscribe=topic))
    query.query.processAllAvailable()
    client.append(topic, 1, 2)
    assert seqs(query.wait(2)) == [1, 2]


def test_a_topic_made_anew_fails_the_stream_or_is_read_from_its_beginning(
    stream: Stream, running: Callable[..., Running], client: Client, topic: str
) -> None:
    client.append(topic, *range(5))
    strict = running(stream(subscribe=topic, startingOffsets="earliest"), "strict")
    lenient = running(stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false"), "lenient")
    for query in (strict, lenient):
        assert seqs(query.wait(5)) == [1, 2, 3, 4, 5]
    client.delete(f"/v0/topics/{topic}")
    client.append(topic, "a", "b", "c", "d", "e", "f", "g")
    assert "failOnDataLoss" in strict.failure()
    assert [json.loads(row.data) for row in lenient.wait(12)[5:]] == ["a", "b", "c", "d", "e", "f", "g"]


def test_a_restart_finds_that_a_topic_was_made_anew_in_the_meantime(
    stream: Stream, drained: Drained, client: Client, topic: str
) -> None:
    client.append(topic, *range(3))
    assert len(drained(stream(subscribe=topic, startingOffsets="earliest"))) == 3
    client.delete(f"/v0/topics/{topic}")
    client.append(topic, *range(8))
    with pytest.raises(StreamingQueryException, match="created again"):
        drained(stream(subscribe=topic, startingOffsets="earliest"))
    lenient = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert seqs(drained(lenient)) == list(range(1, 9))


def test_a_deleted_topic_fails_the_stream_or_is_forgotten(
    stream: Stream, drained: Drained, client: Client, topic: str
) -> None:
    for name in ("a", "b"):
        client.append(f"{topic}-{name}", 1)
    options = {"subscribePattern": f"{topic}-.*", "startingOffsets": "earliest"}
    assert len(drained(stream(**options))) == 2
    client.delete(f"/v0/topics/{topic}-a")
    client.append(f"{topic}-b", 2)
    with pytest.raises(StreamingQueryException, match=f"{topic}-a' was deleted"):
        drained(stream(**options))
    assert [(row.topic, row.seq) for row in drained(stream(**options, failOnDataLoss="false"))] == [(f"{topic}-b", 2)]
    client.append(f"{topic}-a", "again")
    assert [row.topic for row in drained(stream(**options))] == [f"{topic}-a"]


def test_records_lost_while_the_stream_was_away_fail_it_or_are_left_out(
    stream: Stream, drained: Drained, client: Client, topic: str
) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 4})
    client.append(topic, 1, 2)
    assert len(drained(stream(subscribe=topic, startingOffsets="earliest"))) == 2
    client.append(topic, *range(8))
    with pytest.raises(StreamingQueryException, match="from seq 3 to 6"):
        drained(stream(subscribe=topic, startingOffsets="earliest"))
    assert seqs(drained(stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false"))) == [7, 8, 9, 10]


@needs_bounds
def test_a_minimum_is_waited_for_but_not_for_ever(
    stream: Stream, running: Callable[..., Running], client: Client, topic: str
) -> None:
    client.append(topic, 1)
    query = running(stream(subscribe=topic, minOffsetsPerTrigger=10, maxTriggerDelay="1h"))
    query.query.processAllAvailable()
    client.append(topic, *range(9))
    client.append(topic, "tenth")
    assert len(query.wait(10)) == 10
    impatient = running(stream(subscribe=topic, minOffsetsPerTrigger=10, maxTriggerDelay="200ms"), "impatient")
    impatient.query.processAllAvailable()
    client.append(topic, "alone")
    assert len(impatient.wait(1)) == 1


def test_an_inferred_schema_is_kept_beside_the_checkpoint(
    stream: Stream, drained: Drained, client: Client, topic: str, tmp_path: Path
) -> None:
    client.append(topic, {"id": 1})
    options = {"subscribe": topic, "startingOffsets": "earliest", "inferSchema": "true"}
    with pytest.raises(PySparkException, match="needs `schemaLocation`"):
        drained(stream(**options), "elsewhere")
    kept = {**options, "schemaLocation": str(tmp_path / "checkpoint")}
    assert [row.data.id for row in drained(stream(**kept))] == [1]
    client.append(topic, {"id": 2, "later": "x"})
    again = stream(**kept)
    assert again.schema["data"].dataType.simpleString() == "struct<id:bigint>"
    assert [row.data.id for row in drained(again)] == [2]


def test_misfits_of_a_stream_follow_the_mode(stream: Stream, drained: Drained, client: Client, topic: str) -> None:
    client.append(topic, {"id": 1}, {"id": "x"})
    options = {"subscribe": topic, "startingOffsets": "earliest", "schema": "id INT"}
    assert [row._corrupt for row in drained(stream(**options), "a")] == [None, '{"id": "x"}']
    assert seqs(drained(stream(**options, mode="DROPMALFORMED"), "b")) == [1]
    with pytest.raises(StreamingQueryException, match="record 2 of topic"):
        drained(stream(**options, mode="FAILFAST"), "c")


def test_an_end_has_no_place_in_a_stream(stream: Stream, drained: Drained, client: Client, topic: str) -> None:
    client.append(topic, 1)
    with pytest.raises((PySparkException, StreamingQueryException), match="endingOffsets"):
        drained(stream(subscribe=topic, endingOffsets="latest"))

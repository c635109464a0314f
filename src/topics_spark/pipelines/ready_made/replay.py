"""Replay: a range of topics, or of their archive, into a topic, in order, once, at the given rate.

chunk of records ─▶ one transaction: the records, and where each topic is after them ─▶ the next run continues there

Records of several topics come in the order of their times. A position is a time and a seq: an archive also has
the records of an earlier topic of the same name, whose seqs began at 1, too.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from pyspark.sql.functions import broadcast, col, lit, to_timestamp, unix_micros

from topics.client import Record, TopicExistsIncompatible, TopicNotFound
from topics.model.errors import InvalidRequest
from topics.model.requests.ready_made import ReplayOptions
from topics_spark.pipelines.guard import check_sql
from topics_spark.pipelines.sources import read_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from topics.client import Client
    from topics_spark.pipelines.jobs import Work

CHUNK_RECORDS: Final = 5_000
CHUNKS_PER_SECOND: Final = 5
COLUMNS: Final = ("topic", "seq", "ts_us", "data", "tag", "node", "meta")
POSITIONS_KEPT: Final = 100


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The last record of a topic that was replayed: its time in µs since 1970, and its seq."""

    ts_us: int
    seq: int


class Reached(msgspec.Struct):
    """How far a replay is with a version."""

    version: int
    positions: dict[str, Position]


def run(work: Work, options: ReplayOptions) -> None:
    sink = work.assignment.definition.sink
    if sink is None or sink.topic is None:
        raise InvalidRequest("sink.topic must name the topic for the records", field="sink.topic")
    (view,) = read_views(work.spark, work.assignment.definition, work.config, batch=True).values()
    rows, reached = _continued(work, _chosen(work.spark, view, options).withColumn("ts_us", unix_micros("ts")))
    with contextlib.suppress(TopicExistsIncompatible):
        work.client.create(positions_topic(work.assignment.name), cap_records=POSITIONS_KEPT)
    started_s, sent = time.monotonic(), 0
    for chunk in _chunks(rows.select(*COLUMNS).orderBy("ts_us", "topic", "seq").toLocalIterator(), options.rate):
        reached = moved(reached, chunk)
        _send(work, sink.topic, chunk, reached)
        sent += len(chunk)
        work.done(len(chunk))
        pause_s = sent / options.rate - (time.monotonic() - started_s) if options.rate else 0.0
        if work.stopping.wait(max(0.0, pause_s)):
            return


def preview(views: dict[str, DataFrame], options: ReplayOptions) -> DataFrame:
    """The records that it would replay, in their order."""
    (view,) = views.values()
    rows = _chosen(view.sparkSession, view, options).withColumn("ts_us", unix_micros("ts"))
    return rows.select(*COLUMNS).orderBy("ts_us", "topic", "seq").drop("ts_us")


# --- positions ---


def _continued(work: Work, rows: DataFrame) -> tuple[DataFrame, Reached]:
    """What is left to replay, and where it begins."""
    assignment = work.assignment
    committed = work.client.txn(assignment.app).version
    if committed is None or committed < assignment.version_base:
        return rows, Reached(assignment.version_base - 1, {})
    reached = last_reached(work.client, assignment.name, committed)
    if reached is None:
        # By an earlier version of this program, which knew one topic and committed under its seqs.
        return rows.where(col("seq") > lit(committed - assignment.version_base)), Reached(committed, {})
    return after(work.spark, rows, reached.positions), reached


def positions_topic(pipeline: str) -> str:
    return f"pipelines.positions.{pipeline}"


def last_reached(client: Client, pipeline: str, committed: int) -> Reached | None:
    """What the transaction of that version says."""
    topic = positions_topic(pipeline)
    with contextlib.suppress(TopicNotFound):
        head_seq = client.state(topic, touch=False).head_seq
        for record in client.read(topic, max(0, head_seq - 1)):
            if isinstance(record, Record):
                found = msgspec.json.decode(record.raw, type=Reached)
                return found if found.version == committed else None
    return None


def after(spark: SparkSession, rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Each topic continues on its own, so that nothing is missed that was archived after records of other topics."""
    reached = cast("Any", spark).createDataFrame(
        [(topic, position.ts_us, position.seq) for topic, position in positions.items()],
        "topic STRING, reached_us BIGINT, reached_seq BIGINT",
    )
    later = (col("ts_us") > col("reached_us")) | (
        (col("ts_us") == col("reached_us")) & (col("seq") > col("reached_seq"))
    )
    return rows.join(broadcast(reached), "topic", "left").where(col("reached_us").isNull() | later)


def moved(reached: Reached, chunk: list[Any]) -> Reached:
    positions = dict(reached.positions)
    for row in chunk:
        positions[row["topic"]] = Position(int(row["ts_us"]), int(row["seq"]))
    return Reached(reached.version + 1, positions)


# --- records ---


def _chosen(spark: SparkSession, rows: DataFrame, options: ReplayOptions) -> DataFrame:
    if options.from_seq or options.to_seq is not None:
        _check_one_topic(rows)
    rows = rows.where(col("seq") > lit(options.from_seq))
    if options.to_seq is not None:
        rows = rows.where(col("seq") <= lit(options.to_seq))
    if options.from_time is not None:
        rows = rows.where(col("ts") >= to_timestamp(lit(options.from_time)))
    if options.to_time is not None:
        rows = rows.where(col("ts") < to_timestamp(lit(options.to_time)))
    if options.filter is not None:
        sql = f"SELECT * FROM events WHERE ({options.filter})"
        check_sql(spark, sql, ("events",), "options.filter")
        rows.createOrReplaceTempView("events")
        rows = spark.sql(sql)
    return rows


def _check_one_topic(rows: DataFrame) -> None:
    found = [row["topic"] for row in rows.select("topic").distinct().limit(2).collect()]
    if len(found) > 1:
        raise InvalidRequest(
            f"options.from_seq and to_seq are for one topic, but the source has {' and '.join(sorted(found))}: "
            "use from_time and to_time",
            field="options.from_seq",
        )


def _chunks(rows: Iterator[Any], rate: int) -> Iterator[list[Any]]:
    size = min(CHUNK_RECORDS, max(1, rate // CHUNKS_PER_SECOND)) if rate else CHUNK_RECORDS
    chunk: list[Any] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _send(work: Work, topic: str, chunk: list[Any], reached: Reached) -> None:
    """The records and their positions in one transaction: both or neither."""
    app, fence, client = work.assignment.app, work.assignment.fence, work.client
    stages = [uuid.uuid4().hex, uuid.uuid4().hex]
    position = msgspec.json.encode([{"data": reached}])
    client.stage(app, reached.version, stages[0], 0, _json(chunk), topic=topic, fence=fence)
    client.stage(app, reached.version, stages[1], 0, position, topic=positions_topic(work.assignment.name), fence=fence)
    client.commit_txn(app, reached.version, stages, fence=fence)


def _json(chunk: list[Any]) -> bytes:
    records: list[dict[str, Any]] = []
    for row in chunk:
        record: dict[str, Any] = {"data": msgspec.Raw(row["data"].encode())}
        record.update({name: row[name] for name in ("tag", "node") if row[name] is not None})
        if row["meta"] is not None:
            record["meta"] = msgspec.Raw(row["meta"].encode())
        records.append(record)
    return msgspec.json.encode(records)

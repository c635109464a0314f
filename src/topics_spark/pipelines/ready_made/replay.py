"""Replay: a range of a topic, or of its archive, into a topic, in order, once, at the given rate.

chunk of records ─▶ one transaction; its version is the seq of its last record, so the next run knows where to continue
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.functions import col, lit, to_timestamp

from topics.model.errors import InvalidRequest
from topics.model.requests.ready_made import ReplayOptions
from topics_spark.pipelines.assignment import GENERATION_SHIFT
from topics_spark.pipelines.guard import check_sql
from topics_spark.pipelines.sources import read_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from topics_spark.pipelines.jobs import Work

CHUNK_RECORDS: Final = 5_000
CHUNKS_PER_SECOND: Final = 5
COLUMNS: Final = ("seq", "data", "tag", "node", "meta")


def run(work: Work, options: ReplayOptions) -> None:
    assignment = work.assignment
    sink = assignment.definition.sink
    if sink is None or sink.topic is None:
        raise InvalidRequest("sink.topic must name the topic for the records", field="sink.topic")
    (view,) = read_views(work.spark, assignment.definition, work.config, batch=True).values()
    committed = work.client.txn(assignment.app).version
    behind = 0 if committed is None else max(0, committed - assignment.version_base)
    chosen = _chosen(work, view, options).where(col("seq") > lit(behind)).select(*COLUMNS).orderBy("seq")
    started_s, sent = time.monotonic(), 0
    for chunk in _chunks(chosen.toLocalIterator(), options.rate):
        _send(work, sink.topic, chunk)
        sent += len(chunk)
        work.done(len(chunk))
        pause_s = sent / options.rate - (time.monotonic() - started_s) if options.rate else 0.0
        if work.stopping.wait(max(0.0, pause_s)):
            return


def _chosen(work: Work, rows: DataFrame, options: ReplayOptions) -> DataFrame:
    rows = rows.where(col("seq") > lit(options.from_seq))
    if options.to_seq is not None:
        rows = rows.where(col("seq") <= lit(options.to_seq))
    if options.from_time is not None:
        rows = rows.where(col("ts") >= to_timestamp(lit(options.from_time)))
    if options.to_time is not None:
        rows = rows.where(col("ts") < to_timestamp(lit(options.to_time)))
    if options.filter is not None:
        sql = f"SELECT * FROM events WHERE ({options.filter})"
        check_sql(work.spark, sql, ("events",), "options.filter")
        rows.createOrReplaceTempView("events")
        rows = work.spark.sql(sql)
    return rows


def _chunks(rows: Iterator[Any], rate: int) -> Iterator[list[Any]]:
    size = min(CHUNK_RECORDS, max(1, rate // CHUNKS_PER_SECOND)) if rate else CHUNK_RECORDS
    chunk: list[Any] = []
    for row in rows:
        if chunk and row["seq"] <= chunk[-1]["seq"]:
            raise InvalidRequest("sources: a replay reads one topic, or the archive of one", field="sources")
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _send(work: Work, topic: str, chunk: list[Any]) -> None:
    assignment, client, stage = work.assignment, work.client, uuid.uuid4().hex
    last_seq = int(chunk[-1]["seq"])
    if last_seq >> GENERATION_SHIFT:
        raise InvalidRequest(f"seq {last_seq} is above the maximum for a replay, 2^{GENERATION_SHIFT}", field="sources")
    version = assignment.version_base + last_seq
    client.stage(assignment.app, version, stage, 0, _json(chunk), topic=topic, fence=assignment.fence)
    client.commit_txn(assignment.app, version, [stage], fence=assignment.fence)


def _json(chunk: list[Any]) -> bytes:
    records: list[dict[str, Any]] = []
    for row in chunk:
        record: dict[str, Any] = {"data": msgspec.Raw(row["data"].encode())}
        record.update({name: row[name] for name in ("tag", "node") if row[name] is not None})
        if row["meta"] is not None:
            record["meta"] = msgspec.Raw(row["meta"].encode())
        records.append(record)
    return msgspec.json.encode(records)

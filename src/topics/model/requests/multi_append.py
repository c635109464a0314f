"""Appends to several topics at once: the body of the request, its limits, and what its idempotency key covers."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from topics.model.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.model.names import check_topic_name
from topics.model.requests.batch import BATCH_BYTES_MAX, BatchLimits, Draft, check_batch
from topics.model.requests.config import ConfigRequest, resolve
from topics.model.requests.records import AppendRequest, RecordRequest

MULTI_TOPICS_MAX = 1_000
# Records that are checked at once, in whole topics.
CHECKED_PER_STEP = 2_000


class TopicBatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The part for one topic; the fields are those of an append to it alone."""

    records: Annotated[list[RecordRequest], Meta(extra_json_schema={"minItems": 1})]
    node: str | None = None
    create: bool | None = True
    config: ConfigRequest | None = None


class MultiAppendRequest(msgspec.Struct, forbid_unknown_fields=True):
    topics: Annotated[
        dict[str, TopicBatchRequest], Meta(extra_json_schema={"minProperties": 1, "maxProperties": MULTI_TOPICS_MAX})
    ]
    idempotency_key: str | None = None
    disable_backpressure: bool | None = False


class TopicBatch:
    """A checked batch for one topic; `bare` if its records have only data. Many records are drafted ahead."""

    __slots__ = ("bare", "draft", "name", "request")

    def __init__(self, name: str, request: AppendRequest, *, bare: bool) -> None:
        self.name = name
        self.request = request
        self.bare = bare
        self.draft: Draft | None = None


def check_multi_append(request: MultiAppendRequest, limits: BatchLimits) -> list[TopicBatch]:
    """Check the limits that do not depend on the topics; the batches, by name."""
    checking = checking_multi_append(request, limits)
    while True:
        try:
            next(checking)
        except StopIteration as end:
            return cast("list[TopicBatch]", end.value)


def checking_multi_append(
    request: MultiAppendRequest, limits: BatchLimits, *, metas_checked: bool = False
) -> Generator[None, None, list[TopicBatch]]:
    """The same for many records; pauses after each millisecond or so of work."""
    if not request.topics:
        raise InvalidRequest("topics must name at least one topic", field="topics")
    if len(request.topics) > MULTI_TOPICS_MAX:
        raise BatchTooLarge(
            f"topics names {len(request.topics)} topics; at most {MULTI_TOPICS_MAX} fit one write, split it",
            field="topics",
            max=MULTI_TOPICS_MAX,
        )
    records = sum(len(part.records) for part in request.topics.values())
    if records > limits.max_batch_records:
        raise BatchTooLarge(
            f"topics hold {records} records; at most {limits.max_batch_records} fit one write, split it",
            field="topics",
            max=limits.max_batch_records,
        )
    batches: list[TopicBatch] = []
    size = unpaused = 0
    for name in sorted(request.topics):
        check_topic_name(name, "topics")
        part = request.topics[name]
        append = AppendRequest(part.records, part.node, request.idempotency_key, part.create, part.config)
        try:
            bare = check_batch(append, limits, metas_checked=metas_checked)
        except (InvalidRequest, RecordTooLarge) as error:
            raise within(name, error) from None
        try:
            if part.config is not None:
                resolve(part.config, name)
        except InvalidRequest as error:
            raise within(f"{name}.config", error) from None
        batches.append(TopicBatch(name, append, bare=bare))
        size += sum([len(record.data) for record in part.records])
        unpaused += len(part.records)
        if unpaused >= CHECKED_PER_STEP:
            unpaused = 0
            yield
    if size > BATCH_BYTES_MAX:
        raise BatchTooLarge(
            f"topics hold {size} bytes; at most {BATCH_BYTES_MAX} fit one write, split it",
            field="topics",
            max=BATCH_BYTES_MAX,
        )
    return batches


def within(place: str, error: TopicsError) -> TopicsError:
    """The same error, with the topic in its field."""
    if error.detail["field"] == "idempotency_key":
        return error
    detail = {**error.detail, "field": f"topics.{place}.{error.detail['field']}"}
    return type(error)(f"topics.{place}.{error.message}", detail=detail)


def multi_digest(key: str, names: Iterable[str]) -> bytes:
    """A digest of an idempotency key together with the topics it was used for, 16 bytes."""
    text = msgspec.msgpack.encode([key, sorted(names)])
    return hashlib.blake2b(text, digest_size=16, person=b"topics-multi").digest()

"""Requests of transactions: bodies, and the names and bounds of apps, stages and parts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from topics.model.errors import InvalidRequest
from topics.model.requests.batch import utf8_bytes
from topics.model.requests.config import U64
from topics.model.requests.records import RecordRequest

APP_BYTES_MAX = 256
STAGE_CHARS_MAX = 128
OWNER_CHARS_MAX = 128
# How many owners of tokens an app remembers.
OWNERS_MAX = 16
VERSION_MAX = 2**63 - 1
# Topics that one transaction writes to, and stages that one commit names.
TXN_TOPICS_MAX = 1_000
COMMIT_STAGES_MAX = 10_000
PARTS_MAX = 100_000
# How far a commit without stages may raise the version of its app.
EMPTY_RAISE_MAX = 1_000_000
# Stands for the stages of a commit by version 0.1, which did not store them.
UNKNOWN_STAGES = b""


class StageRecord(RecordRequest, gc=False):
    """A record of a transaction; without a `topic` it goes to the topic of its part."""

    topic: str | None = None


class StageRequest(msgspec.Struct, forbid_unknown_fields=True):
    stage: str
    records: Annotated[list[StageRecord], Meta(extra_json_schema={"minItems": 1})]
    part: U64 = 0
    fence: U64 | None = None
    topic: str | None = None
    node: str | None = None


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True):
    stages: list[str] = []
    fence: U64 | None = None
    create: bool = True


class AbortRequest(msgspec.Struct, forbid_unknown_fields=True):
    stages: list[str] = []
    fence: U64 | None = None


class FenceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An `owner` that asks again gets the same token; an owner that was displaced gets no further token."""

    owner: str | None = None


def check_app_name(app: str) -> None:
    if not 1 <= utf8_bytes(app, "app") <= APP_BYTES_MAX or not app.isprintable() or "/" in app:
        raise InvalidRequest(f"app must be 1 to {APP_BYTES_MAX} bytes, printable and without a slash", field="app")


def check_version(version: int) -> None:
    if not 0 <= version <= VERSION_MAX:
        raise InvalidRequest(f"version must be 0 to {VERSION_MAX}", field="version")


def check_empty_raise(version: int, before: int) -> None:
    """A mistyped version in a commit without records must not mark all versions below it as done."""
    if version > before + EMPTY_RAISE_MAX:
        raise InvalidRequest(
            f"version {version} is more than {EMPTY_RAISE_MAX} above {before}; that is allowed only with stages",
            field="version",
            max=before + EMPTY_RAISE_MAX,
        )


def check_stage_names(stages: list[str]) -> None:
    if len(stages) > COMMIT_STAGES_MAX:
        raise InvalidRequest(
            f"stages names {len(stages)}; at most {COMMIT_STAGES_MAX} fit one transaction, put more records into each",
            field="stages",
        )
    for index, stage in enumerate(stages):
        check_stage_name(stage, f"stages[{index}]")
    if len(set(stages)) != len(stages):
        raise InvalidRequest("stages names a stage twice", field="stages")


def stages_digest(stages: Collection[str]) -> bytes:
    """A digest of these stages, in any order, 16 bytes."""
    named = msgspec.msgpack.encode(sorted(stages))
    return hashlib.blake2b(named, digest_size=16, person=b"topics-stages").digest()


def check_stage_name(stage: str, field: str) -> None:
    utf8_bytes(stage, field)
    if not 1 <= len(stage) <= STAGE_CHARS_MAX:
        raise InvalidRequest(f"{field} must have 1 to {STAGE_CHARS_MAX} characters", field=field)


def check_owner(owner: str) -> None:
    utf8_bytes(owner, "owner")
    if not 1 <= len(owner) <= OWNER_CHARS_MAX:
        raise InvalidRequest(f"owner must have 1 to {OWNER_CHARS_MAX} characters", field="owner")

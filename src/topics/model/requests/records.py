"""Request bodies: decoded envelopes whose payloads stay the client's own bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from topics.model.errors import InvalidRequest
from topics.model.names import check_topic_name
from topics.model.requests.config import U64, U64_MAX, ConfigRequest
from topics.model.requests.mistakes import BODY, lone_surrogate, mistake, nested_too_deeply, not_json
from topics.model.requests.nesting import TooDeep, decode_limited

W = TypeVar("W")

DIFF_LIMIT_DEFAULT = 256
JOB_GROUP_SIZE_MAX = 1_000_000
NODES_MAX = 64
DIFF_BYTES_DEFAULT = 1024 * 1024


# Checked where it is used: the error then names the record.
JobPriority = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 9})]
JobGroupSize = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 1_000_000})]
RawObject = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]


class JobGroupRequest(msgspec.Struct, gc=False, frozen=True, forbid_unknown_fields=True):
    """The job group that a job belongs to: once `size` of its jobs have ended, a record about them goes to `notify`."""

    name: str
    size: JobGroupSize
    notify: str


class GroupColumn(NamedTuple):
    """The job groups of a batch, and for each of its jobs the number of its group among them, from 1 on; 0: none."""

    groups: list[JobGroupRequest]
    numbers: array[int]


class RecordRequest(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """One record to append. `data` and `meta` are not parsed."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: RawObject | UnsetType = UNSET
    # of a job
    delay_ms: U64 = 0
    unique_key: str | None = None
    job_priority: JobPriority = 0
    group: JobGroupRequest | None = None


class AppendRequest(msgspec.Struct, forbid_unknown_fields=True):
    records: Annotated[list[RecordRequest], Meta(extra_json_schema={"minItems": 1})]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = True
    config: ConfigRequest | None = None
    disable_backpressure: bool | None = False


class DiffRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A `limit` or `max_batch_bytes` of 0 means the default."""

    from_seq: U64 = 0
    limit: U64 = DIFF_LIMIT_DEFAULT
    node: str | list[str] | None = None
    include_tags: bool | None = False
    include_meta: bool | None = True
    wait_ms: U64 = 0
    max_batch_bytes: U64 = DIFF_BYTES_DEFAULT
    from_ts: Annotated[int, Meta(ge=0)] | UnsetType = UNSET

    def nodes(self, bytes_max: int) -> frozenset[str]:
        return node_set(self.node, bytes_max)


def node_set(node: str | list[str] | None, bytes_max: int) -> frozenset[str]:
    """The nodes whose records are left out: one or several, each within the limit for nodes."""
    if node is None:
        return frozenset()
    nodes = frozenset((node,) if isinstance(node, str) else node)
    if len(nodes) > NODES_MAX:
        raise InvalidRequest(f"node must name at most {NODES_MAX} nodes", field="node", max=NODES_MAX)
    if any(len(_utf8(each, "node")) > bytes_max for each in nodes):
        raise InvalidRequest(f"node: a node must be at most {bytes_max} bytes", field="node", max=bytes_max)
    return nodes


class DeleteRequest(msgspec.Struct, forbid_unknown_fields=True):
    before_seq: U64 | UnsetType = UNSET
    match: str | list[str] | None = None
    dry_run: bool | None = False


Seqs = Annotated[list[U64], Meta(extra_json_schema={"minItems": 1, "maxItems": 1000})]


class ClaimRequest(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    max: U64 = 1
    lease_ms: Annotated[U64 | UnsetType, Meta(description="Absent: the queue's lease_ms.")] = UNSET
    wait_ms: U64 = 0


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`result` is that of the only job, `results` has one for each of `seqs`; null is none. They are not parsed."""

    node: str
    seqs: Seqs
    lease_ids: list[str] | None = None
    result: Raw | UnsetType = UNSET
    results: list[Raw] | None = None


class NackRequest(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    seqs: Seqs
    lease_ids: list[str] | None = None
    delay_ms: Annotated[U64 | UnsetType, Meta(description="Absent: by retry_backoff, or 0.")] = UNSET
    dead_letter: bool | None = False
    error: str | None = None


class ExtendRequest(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    seqs: Seqs
    lease_ms: U64
    lease_ids: list[str] | None = None
    progress: Annotated[Raw | UnsetType, Meta(description="How far the jobs are, as the worker sees it.")] = UNSET


class RedriveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters are moved back: those whose tag matches, at most `limit`, `rate_per_s` of them per second."""

    match: str | list[str] | None = None
    limit: U64 = 0
    rate_per_s: U64 = 0
    dry_run: bool | None = False


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Pausing and resuming take no fields."""


class TagMatch(msgspec.Struct, frozen=True):
    """A tag equal to `tag`, or starting with it if `prefix`."""

    tag: bytes
    prefix: bool

    def __call__(self, tag: bytes) -> bool:
        return tag.startswith(self.tag) if self.prefix else tag == self.tag


def parse_match(match: str | list[str], field: str = "match") -> TagMatch:
    """`"x"` and `["tag","Eq","x"]` are equality; `["tag","Glob","x*"]` is a literal prefix."""
    if isinstance(match, str):
        return TagMatch(_utf8(match, field), prefix=False)
    if len(match) != 3 or match[0] != "tag":
        raise InvalidRequest(f'{field} must be a string or ["tag", "Eq" | "Glob", pattern]', field=field)
    _, op, pattern = match
    if op == "Eq":
        return TagMatch(_utf8(pattern, field), prefix=False)
    if op != "Glob":
        raise InvalidRequest(f"{field}: the operators are Eq and Glob, not {op!r}", field=field)
    if not pattern.endswith("*") or "*" in pattern[:-1]:
        raise InvalidRequest(f"{field}: a Glob must be a literal prefix followed by a single *", field=field)
    return TagMatch(_utf8(pattern[:-1], field), prefix=True)


def _utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise lone_surrogate(field, field) from None


def check_group(group: JobGroupRequest, field: str) -> None:
    check_topic_name(group.name, f"{field}.name")
    check_topic_name(group.notify, f"{field}.notify")
    if not 1 <= group.size <= JOB_GROUP_SIZE_MAX:
        field = f"{field}.size"
        raise InvalidRequest(f"{field} must be 1 to {JOB_GROUP_SIZE_MAX}, not {group.size}", field=field)


def group_column(given: list[JobGroupRequest | None]) -> GroupColumn | None:
    if given.count(None) == len(given):
        return None
    numbers: dict[JobGroupRequest, int] = {}
    column = array("I", [0 if group is None else numbers.setdefault(group, len(numbers) + 1) for group in given])
    return GroupColumn(list(numbers), column)


def check_u64(value: int, field: str) -> int:
    if value > U64_MAX:
        raise InvalidRequest(f"{field} must be at most {U64_MAX}", field=field)
    return value


def decode_body(
    decoder: msgspec.json.Decoder[W],
    body: bytes,
    decode: Callable[[msgspec.json.Decoder[W], bytes], W] = decode_limited,
) -> W:
    """Decode a request body; errors name the field. `Raw` parts may contain invalid UTF-8, so it is checked here."""
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"body is not valid UTF-8 at byte {error.start}", field=BODY) from None
    try:
        return decode(decoder, body)
    except msgspec.ValidationError as error:
        raise mistake(error, decoder.type) from None
    except msgspec.DecodeError as error:
        raise not_json(body, error) from None
    except TooDeep as error:
        raise nested_too_deeply(error.field or BODY) from None


append_decoder = msgspec.json.Decoder(AppendRequest)

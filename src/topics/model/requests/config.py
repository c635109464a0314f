"""Topic configuration: the request, and the resolved configuration."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.model.errors import InvalidRequest
from topics.model.names import check_topic_name

U64_MAX = 2**64 - 1
PRIORITY_BOUND = 1_000
LEASE_MS_MIN, LEASE_MS_MAX = 100, 86_400_000
CLAIM_JITTER_MS_MAX = 5_000
DELAY_MS_MAX = 86_400_000
KEEP_RESULTS_MS_MAX = 30 * 86_400_000
BACKOFF_FACTOR_MAX = 100.0
JOBS_LIMIT_MAX = 1_000_000_000
# Once in twelve days.
RATE_MIN, RATE_MAX = 0.000_001, 1_000_000.0
SQS_BYTES_MAX = 64 * 1024

# Decoded without an upper bound, so that larger values can be clamped; the others are checked where they are used.
U64 = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
JobsLimit = Annotated[int, Meta(ge=1, le=JOBS_LIMIT_MAX)]
RateLimit = Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]
LimitName = Literal["max_in_flight", "max_in_flight_per_tag", "rate_per_s", "rate_per_s_per_tag"]
TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync", "replicated"]
# Neither shown nor acknowledged before they are as durable as promised: on this disk, in the bucket.
GATED: Final[frozenset[Durability]] = frozenset(("fsync", "replicated"))


class RetryBackoff(msgspec.Struct, frozen=True):
    """How long a job waits after a failed delivery: `initial_ms`, times `factor` for each further delivery.

    `jitter` is the share by which the wait may be shorter, so that jobs that failed together are retried apart.
    """

    initial_ms: U64 = 1_000
    factor: float = 2.0
    max_ms: U64 = 60_000
    jitter: float = 0.0

    def rest_ms(self, deliveries: int, spread: float) -> int:
        """The wait after the `deliveries`th delivery; `spread` (0 … 1) chooses a point within the jitter."""
        steps = min(max(0, deliveries - 1), 64)
        rest = min(float(self.max_ms), self.initial_ms * self.factor**steps)
        return int(rest * (1 - self.jitter * spread))


class BackoffRequest(RetryBackoff, frozen=True, forbid_unknown_fields=True):
    """A backoff as a request states it."""


class SqsQueue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What SQS clients have set and a topic has no field for: attributes by their names there, and tags."""

    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    modified_ts: int = 0


class SqsRequest(SqsQueue, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The same as a request states it."""


class ConfigRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration as a request states it: every field optional, `null` means absent except for numbers."""

    type: Annotated[TopicType | None, Meta(description="Absent: unchanged, or log for a new topic.")] = None
    ttl_ms: U64 = 0
    cap_records: U64 = 0
    cap_bytes: U64 = 0
    discard: Discard | None = "old"
    durable: bool | None = False
    durability: Annotated[Durability | None, Meta(description="Absent: fsync if durable, disk if not.")] = None
    priority: int | None = None
    auto_priority: bool | None = True
    auto_create: bool | None = True
    idempotency_window_ms: U64 = 120_000
    dedupe_node: bool | None = True
    lease_ms: U64 = 30_000
    claim_jitter_ms: U64 = 0
    max_deliveries: U64 = 0
    dead_letter: str | None = None
    leases_durable: bool | None = False
    retry_backoff: BackoffRequest | None = None
    keep_results_ms: Annotated[U64 | UnsetType, Meta(description="Absent: 0, no results are kept.")] = UNSET
    max_in_flight: Annotated[JobsLimit | None, Meta(description="The most jobs that are leased at once.")] = None
    max_in_flight_per_tag: Annotated[JobsLimit | None, Meta(description="The same for the jobs of each tag.")] = None
    rate_per_s: Annotated[RateLimit | None, Meta(description="The most jobs that are claimed per second.")] = None
    burst: Annotated[JobsLimit | None, Meta(description="Claimed at once after a pause; null: rate_per_s.")] = None
    rate_per_s_per_tag: Annotated[RateLimit | None, Meta(description="The same for the jobs of each tag.")] = None
    burst_per_tag: JobsLimit | None = None
    sqs: Annotated[SqsRequest | None, Meta(description="Set by SQS clients.")] = None


class ConfigPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a configuration to change. `null` resets an optional field and is refused for the others."""

    type: TopicType | UnsetType = UNSET
    ttl_ms: U64 | UnsetType = UNSET
    cap_records: U64 | UnsetType = UNSET
    cap_bytes: U64 | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durable: Annotated[bool | UnsetType, Meta(description="Used only if durability is absent.")] = UNSET
    durability: Durability | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: U64 | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: U64 | UnsetType = UNSET
    claim_jitter_ms: U64 | UnsetType = UNSET
    max_deliveries: U64 | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    retry_backoff: BackoffRequest | UnsetType | None = UNSET
    keep_results_ms: U64 | UnsetType = UNSET
    max_in_flight: JobsLimit | UnsetType | None = UNSET
    max_in_flight_per_tag: JobsLimit | UnsetType | None = UNSET
    rate_per_s: RateLimit | UnsetType | None = UNSET
    burst: JobsLimit | UnsetType | None = UNSET
    rate_per_s_per_tag: RateLimit | UnsetType | None = UNSET
    burst_per_tag: JobsLimit | UnsetType | None = UNSET
    sqs: SqsRequest | UnsetType | None = UNSET


class TopicConfig(msgspec.Struct, frozen=True):
    """A resolved configuration: it is stored and shown. The order of its fields is their order in JSON."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    # Shown only if they were set.
    retry_backoff: RetryBackoff | UnsetType = UNSET
    keep_results_ms: int | UnsetType = UNSET
    max_in_flight: int | UnsetType = UNSET
    max_in_flight_per_tag: int | UnsetType = UNSET
    rate_per_s: float | UnsetType = UNSET
    burst: int | UnsetType = UNSET
    rate_per_s_per_tag: float | UnsetType = UNSET
    burst_per_tag: int | UnsetType = UNSET
    sqs: SqsQueue | UnsetType = UNSET


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TopicConfig)


def encode_config(config: TopicConfig) -> bytes:
    return _encoder.encode(config)


def decode_config(data: bytes) -> TopicConfig:
    return _decoder.decode(data)


def has_limits(config: TopicConfig) -> bool:
    """Whether a queue may have to hold back jobs that are ready."""
    return (
        config.max_in_flight is not UNSET
        or config.max_in_flight_per_tag is not UNSET
        or config.rate_per_s is not UNSET
        or config.rate_per_s_per_tag is not UNSET
    )


def resolve(request: ConfigRequest, topic: str, current: TopicConfig | None = None) -> TopicConfig:
    """Fill in defaults and clamp; `current` only supplies the type, which an update may omit."""
    for field in ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"):
        if getattr(request, field) > U64_MAX:
            raise InvalidRequest(f"{field} must be at most {U64_MAX}", field=field)
    if request.dead_letter is not None:
        check_topic_name(request.dead_letter, "dead_letter")
        if request.dead_letter == topic:
            raise InvalidRequest("dead_letter must name a topic other than this one", field="dead_letter")
    durability: Durability = request.durability or ("fsync" if request.durable else "disk")
    return TopicConfig(
        type=request.type or (current.type if current is not None else "log"),
        ttl_ms=request.ttl_ms,
        cap_records=request.cap_records,
        cap_bytes=request.cap_bytes,
        discard=request.discard or "old",
        durable=durability == "fsync",
        durability=durability,
        priority=None if request.priority is None else max(-PRIORITY_BOUND, min(PRIORITY_BOUND, request.priority)),
        auto_priority=request.auto_priority is not False,
        auto_create=request.auto_create is not False,
        idempotency_window_ms=request.idempotency_window_ms,
        dedupe_node=request.dedupe_node is not False,
        lease_ms=max(LEASE_MS_MIN, min(LEASE_MS_MAX, request.lease_ms)),
        claim_jitter_ms=min(CLAIM_JITTER_MS_MAX, request.claim_jitter_ms),
        max_deliveries=request.max_deliveries,
        dead_letter=request.dead_letter,
        leases_durable=bool(request.leases_durable),
        retry_backoff=UNSET if request.retry_backoff is None else _clamped(request.retry_backoff),
        keep_results_ms=min(KEEP_RESULTS_MS_MAX, request.keep_results_ms or 0) or UNSET,
        max_in_flight=_or_unset(request.max_in_flight),
        max_in_flight_per_tag=_or_unset(request.max_in_flight_per_tag),
        rate_per_s=_or_unset(request.rate_per_s),
        burst=_or_unset(request.burst),
        rate_per_s_per_tag=_or_unset(request.rate_per_s_per_tag),
        burst_per_tag=_or_unset(request.burst_per_tag),
        sqs=UNSET if request.sqs is None else _bounded(request.sqs),
    )


def patched(config: TopicConfig, patch: ConfigPatch) -> ConfigRequest:
    """A request for the current configuration with the given fields changed; `resolve` checks it like any other."""
    fields = {name: value for name, value in msgspec.structs.asdict(config).items() if value is not UNSET}
    del fields["durable"]
    if config.retry_backoff is not UNSET:
        fields["retry_backoff"] = BackoffRequest(**msgspec.structs.asdict(config.retry_backoff))
    if config.sqs is not UNSET:
        fields["sqs"] = SqsRequest(**msgspec.structs.asdict(config.sqs))
    given = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    durable = given.pop("durable", config.durable)
    if "durability" not in given and durable != config.durable:
        given["durability"] = "fsync" if durable else "disk"
    return ConfigRequest(**fields | given)


T = TypeVar("T", int, float)


def _or_unset(limit: T | None) -> T | UnsetType:
    return UNSET if limit is None else limit


def _clamped(backoff: RetryBackoff) -> RetryBackoff:
    if not math.isfinite(backoff.factor) or not math.isfinite(backoff.jitter):
        raise InvalidRequest("retry_backoff must have finite numbers", field="retry_backoff")
    return RetryBackoff(
        initial_ms=min(DELAY_MS_MAX, backoff.initial_ms),
        factor=max(1.0, min(BACKOFF_FACTOR_MAX, backoff.factor)),
        max_ms=min(DELAY_MS_MAX, backoff.max_ms),
        jitter=max(0.0, min(1.0, backoff.jitter)),
    )


def _bounded(sqs: SqsQueue) -> SqsQueue:
    size = len(_encoder.encode(sqs))
    if size > SQS_BYTES_MAX:
        raise InvalidRequest(f"sqs has {size} bytes; at most {SQS_BYTES_MAX} are allowed", field="sqs")
    return SqsQueue(sqs.attributes, sqs.tags, sqs.modified_ts)

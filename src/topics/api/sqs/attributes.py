"""Queue attributes: fields of the configuration, attributes that are kept beside it, and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from topics.api.sqs.errors import SqsError, invalid_value
from topics.engine.log.topic import Topic
from topics.engine.queues.queue import Queue
from topics.model.requests.config import SqsQueue, SqsRequest, TopicConfig

FIFO: Final = ".fifo"
FIFO_WINDOW_MS: Final = 5 * 60 * 1000
# A topic that keeps its jobs for ever keeps them longer than any SQS queue.
RETENTION_S_MAX: Final = 1_209_600
RECEIVES_MAX: Final = 1_000


class Number(NamedTuple):
    """An attribute that is a whole number."""

    least: int
    most: int
    default: int


NUMBERS: Final[Mapping[str, Number]] = {
    "DelaySeconds": Number(0, 900, 0),
    "MaximumMessageSize": Number(1_024, 1_048_576, 262_144),
    "MessageRetentionPeriod": Number(60, RETENTION_S_MAX, 345_600),
    "ReceiveMessageWaitTimeSeconds": Number(0, 20, 0),
    "VisibilityTimeout": Number(0, 43_200, 30),
}
# Of a FIFO queue; the first is the default.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "ContentBasedDeduplication": ("false", "true"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
# What this server does not do is refused unless it is switched off.
NOT_DONE: Final[Mapping[str, tuple[str, str]]] = {
    "KmsDataKeyReusePeriodSeconds": ("", "the server does not encrypt what it stores"),
    "KmsMasterKeyId": ("", "the server does not encrypt what it stores"),
    "Policy": ("", "the scopes and prefixes of API keys decide who may use a queue"),
    "SqsManagedSseEnabled": ("false", "the server does not encrypt what it stores"),
}
COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)
FIXED: Final = ("CreatedTimestamp", "LastModifiedTimestamp", "QueueArn", "FifoQueue")
REDRIVE: Final = ("RedrivePolicy", "RedriveAllowPolicy")
KNOWN: Final = frozenset((*NUMBERS, *CHOICES, *NOT_DONE, *COUNTS, *FIXED, *REDRIVE))
# Fields of the configuration in ms, by the attribute in seconds.
FIELDS: Final[Mapping[str, str]] = {"MessageRetentionPeriod": "ttl_ms", "VisibilityTimeout": "lease_ms"}


class RedrivePolicy(msgspec.Struct, rename="camel"):
    dead_letter_target_arn: str
    max_receive_count: int


class RedriveAllowPolicy(msgspec.Struct, rename="camel"):
    redrive_permission: str = "allowAll"
    source_queue_arns: list[str] = []


class Asked(NamedTuple):
    """What a request sets: fields of the configuration, and attributes to keep beside it (None: not any more)."""

    fields: dict[str, Any]
    kept: dict[str, str | None]


def is_fifo(name: str) -> bool:
    return name.endswith(FIFO)


def number_of(config: TopicConfig, name: str) -> int:
    """The value of an attribute that is kept beside the configuration, or its default."""
    kept = None if config.sqs is UNSET else config.sqs.attributes.get(name)
    try:
        return NUMBERS[name].default if kept is None else int(kept)
    except ValueError:
        return NUMBERS[name].default


def choice_of(config: TopicConfig, name: str) -> str:
    kept = None if config.sqs is UNSET else config.sqs.attributes.get(name)
    return CHOICES[name][0] if kept is None else kept


def read_attributes(name: str, given: Mapping[str, str], target_of: Callable[[str], str]) -> Asked:
    """Checks attributes that a request sets. `target_of` gives the dead-letter queue of an ARN, if it may be used."""
    asked = Asked({}, {})
    for attribute, text in given.items():
        if attribute in NUMBERS:
            value = _number(attribute, text)
            if attribute in FIELDS:
                asked.fields[FIELDS[attribute]] = value * 1000
            else:
                asked.kept[attribute] = str(value)
        elif attribute in CHOICES:
            if not is_fifo(name):
                raise SqsError("InvalidAttributeName", f"{attribute} can be set only on FIFO queues.")
            if text not in CHOICES[attribute]:
                raise wrong_value(attribute, text, f"must be {' or '.join(CHOICES[attribute])}")
            asked.kept[attribute] = text
        elif attribute in NOT_DONE:
            off, why = NOT_DONE[attribute]
            if text != off:
                raise wrong_value(attribute, text, why)
        elif attribute == "RedrivePolicy":
            asked.fields.update(_redrive(name, text, target_of))
        elif attribute == "RedriveAllowPolicy":
            if text:
                _decoded(attribute, text, RedriveAllowPolicy)
            asked.kept[attribute] = text or None
        elif attribute != "FifoQueue":
            raise unknown_attribute(attribute)
    return asked


def unknown_attribute(name: str) -> SqsError:
    return SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")


def wrong_value(attribute: str, value: str, reason: str) -> SqsError:
    error = invalid_value(value[:64], attribute, reason)
    return SqsError("InvalidAttributeValue", error.message)


def _number(attribute: str, text: str) -> int:
    row = NUMBERS[attribute]
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not row.least <= value <= row.most:
        raise wrong_value(attribute, text, f"must be a whole number between {row.least} and {row.most}")
    return value


def _redrive(name: str, text: str, target_of: Callable[[str], str]) -> dict[str, Any]:
    if not text:
        return {"dead_letter": None, "max_deliveries": 0}
    policy = _decoded("RedrivePolicy", text, RedrivePolicy)
    if not 1 <= policy.max_receive_count <= RECEIVES_MAX:
        raise wrong_value("RedrivePolicy", text, f"maxReceiveCount must be between 1 and {RECEIVES_MAX}")
    target = target_of(policy.dead_letter_target_arn)
    if target == name or is_fifo(target) != is_fifo(name):
        reason = (
            "the dead-letter queue of a FIFO queue must be another FIFO queue, that of a standard queue another one"
        )
        raise wrong_value("RedrivePolicy", text, reason)
    return {"dead_letter": target, "max_deliveries": policy.max_receive_count}


def _decoded(attribute: str, text: str, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=shape, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise wrong_value(attribute, text, str(error)) from None


def allows_source(target: TopicConfig, source_arn: str) -> bool:
    """Whether a queue lets that one use it for its dead letters."""
    text = None if target.sqs is UNSET else target.sqs.attributes.get("RedriveAllowPolicy")
    if text is None:
        return True
    policy = _decoded("RedriveAllowPolicy", text, RedriveAllowPolicy)
    if policy.redrive_permission == "byQueue":
        return source_arn in policy.source_queue_arns
    return policy.redrive_permission == "allowAll"


def kept_with(config: TopicConfig | None, kept: Mapping[str, str | None], now_ms: int) -> SqsRequest:
    """What is kept beside the configuration once these attributes are changed."""
    before = SqsQueue() if config is None or config.sqs is UNSET else config.sqs
    after = {**before.attributes, **kept}
    attributes = {name: text for name, text in after.items() if text is not None}
    return SqsRequest(attributes, before.tags, now_ms)


def shown_attributes(topic: Topic, queue: Queue, arn_of: Callable[[str], str]) -> dict[str, str]:
    """All attributes of a queue."""
    config = topic.config
    created_s = topic.created_ms // 1000
    shown = {name: str(number_of(config, name)) for name in NUMBERS if name not in FIELDS}
    shown["VisibilityTimeout"] = str(config.lease_ms // 1000)
    shown["MessageRetentionPeriod"] = str(config.ttl_ms // 1000 or RETENTION_S_MAX)
    shown["ApproximateNumberOfMessages"] = str(queue.ready)
    shown["ApproximateNumberOfMessagesDelayed"] = str(queue.delayed)
    shown["ApproximateNumberOfMessagesNotVisible"] = str(queue.in_flight)
    shown["CreatedTimestamp"] = str(created_s)
    modified_s = 0 if config.sqs is UNSET else config.sqs.modified_ts // 1000
    shown["LastModifiedTimestamp"] = str(modified_s or created_s)
    shown["QueueArn"] = arn_of(topic.name)
    shown["SqsManagedSseEnabled"] = "false"
    if config.dead_letter is not None:
        policy = {"deadLetterTargetArn": arn_of(config.dead_letter), "maxReceiveCount": config.max_deliveries}
        shown["RedrivePolicy"] = msgspec.json.encode(policy).decode()
    if config.sqs is not UNSET and "RedriveAllowPolicy" in config.sqs.attributes:
        shown["RedriveAllowPolicy"] = config.sqs.attributes["RedriveAllowPolicy"]
    if is_fifo(topic.name):
        shown["FifoQueue"] = "true"
        shown.update({name: choice_of(config, name) for name in CHOICES})
    return shown


def differing(asked: Asked, config: TopicConfig) -> str | None:
    """A field or attribute that a request for an existing queue wants otherwise than it is."""
    for field, value in asked.fields.items():
        current = getattr(config, field)
        # A lease has at least some ms, and 0 seconds are shown.
        same = value // 1000 == current // 1000 if field in FIELDS.values() else value == current
        if not same:
            return field
    for name, text in asked.kept.items():
        if name in NUMBERS:
            current = str(number_of(config, name))
        elif name in CHOICES:
            current = choice_of(config, name)
        else:
            current = "" if config.sqs is UNSET else config.sqs.attributes.get(name, "")
        if current != (text or ""):
            return name
    return None

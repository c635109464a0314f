"""The requests and results of SQS operations, as JSON has them; the older form in XML is made from the same."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Input(msgspec.Struct, rename="pascal"):
    """Unknown fields are ignored."""


class OfQueue(Input):
    """About one queue; in the older protocol the path may name it instead."""

    queue_url: str | None = None


class AttributeValue(msgspec.Struct, rename="pascal", omit_defaults=True):
    """A message attribute; a binary value is base64."""

    data_type: str
    string_value: str | None = None
    binary_value: str | None = None


class CreateQueue(Input):
    queue_name: str
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(name="tags", default=None)


class GetQueueUrl(Input):
    queue_name: str


class ListQueues(Input):
    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class GetQueueAttributes(OfQueue):
    attribute_names: list[str] | None = None


class SetQueueAttributes(OfQueue, kw_only=True):
    attributes: dict[str, str]


class ListSources(OfQueue):
    next_token: str | None = None
    max_results: int | None = None


class TagQueue(OfQueue, kw_only=True):
    tags: dict[str, str]


class UntagQueue(OfQueue, kw_only=True):
    tag_keys: list[str]


class Outgoing(Input, kw_only=True):
    """A message to send."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(Outgoing, kw_only=True):
    queue_url: str | None = None


class OutgoingEntry(Outgoing, kw_only=True):
    id: str


class SendMessageBatch(OfQueue, kw_only=True):
    entries: list[OutgoingEntry]


class ReceiveMessage(OfQueue):
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None


class DeleteMessage(OfQueue, kw_only=True):
    receipt_handle: str


class HandleEntry(Input):
    id: str
    receipt_handle: str


class DeleteMessageBatch(OfQueue, kw_only=True):
    entries: list[HandleEntry]


class ChangeMessageVisibility(OfQueue, kw_only=True):
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(HandleEntry):
    visibility_timeout: int = 0


class ChangeMessageVisibilityBatch(OfQueue, kw_only=True):
    entries: list[VisibilityEntry]


class StartMessageMoveTask(Input):
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class ListMessageMoveTasks(Input):
    source_arn: str
    max_results: int | None = None


class CancelMessageMoveTask(Input):
    task_handle: str


# --- results ---


class Output(msgspec.Struct, rename="pascal", omit_defaults=True):
    """Fields that are not set are left out."""


class QueueUrl(Output):
    queue_url: str


class QueueUrls(Output):
    queue_urls: list[str]
    next_token: str | UnsetType = UNSET


class SourceUrls(Output):
    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | UnsetType = UNSET


class QueueAttributes(Output):
    attributes: dict[str, str]


class QueueTags(Output):
    tags: dict[str, str]


class Sent(Output, kw_only=True):
    """A message that was sent; `id` is that of its entry in a batch."""

    id: str | UnsetType = UNSET
    message_id: str
    body_md5: str = msgspec.field(name="MD5OfMessageBody")
    attributes_md5: str | UnsetType = msgspec.field(name="MD5OfMessageAttributes", default=UNSET)
    system_attributes_md5: str | UnsetType = msgspec.field(name="MD5OfMessageSystemAttributes", default=UNSET)
    sequence_number: str | UnsetType = UNSET


class Message(Output, kw_only=True):
    message_id: str
    receipt_handle: str
    body_md5: str = msgspec.field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] | UnsetType = UNSET
    attributes_md5: str | UnsetType = msgspec.field(name="MD5OfMessageAttributes", default=UNSET)
    message_attributes: dict[str, AttributeValue] | UnsetType = UNSET


class Messages(Output):
    messages: list[Message] | UnsetType = UNSET


class Done(Output):
    id: str


class Failure(Output):
    id: str
    sender_fault: bool
    code: str
    message: str


class BatchResult(Output):
    """Both lists are there even if they are empty."""

    successful: list[Any]
    failed: list[Failure]


class TaskHandle(Output):
    task_handle: str


class MoveTaskEntry(Output, kw_only=True):
    task_handle: str | UnsetType = UNSET
    status: str
    source_arn: str
    destination_arn: str | UnsetType = UNSET
    max_number_of_messages_per_second: int | UnsetType = UNSET
    approximate_number_of_messages_moved: int
    approximate_number_of_messages_to_move: int
    failure_reason: str | UnsetType = UNSET
    started_timestamp: int


class MoveTaskList(Output):
    results: list[MoveTaskEntry]


class Moved(Output):
    approximate_number_of_messages_moved: int

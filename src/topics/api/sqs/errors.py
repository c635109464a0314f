"""Errors as SQS clients know them: the shape's name in JSON, the older code in XML, and the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.model.errors import TopicsError

# Shapes whose older code is not their name.
QUERY_CODES: Final[Mapping[str, str]] = {
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "MessageNotInflight": "AWS.SimpleQueueService.MessageNotInflight",
    "TooManyEntriesInBatchRequest": "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
    "EmptyBatchRequest": "AWS.SimpleQueueService.EmptyBatchRequest",
    "BatchEntryIdsNotDistinct": "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": "AWS.SimpleQueueService.BatchRequestTooLong",
    "InvalidBatchEntryId": "AWS.SimpleQueueService.InvalidBatchEntryId",
    "UnsupportedOperation": "AWS.SimpleQueueService.UnsupportedOperation",
}
STATUSES: Final[Mapping[str, int]] = {
    "AccessDenied": 403,
    "IncompleteSignature": 403,
    "InvalidClientTokenId": 403,
    "MissingAuthenticationToken": 403,
    "SignatureDoesNotMatch": 403,
    "InternalFailure": 500,
    "ServiceUnavailable": 503,
}
# What the codes of this server are called in SQS.
SHAPES: Final[Mapping[str, str]] = {
    "invalid_request": "InvalidParameterValue",
    "batch_too_large": "InvalidParameterValue",
    "record_too_large": "InvalidParameterValue",
    "unauthorized": "MissingAuthenticationToken",
    "forbidden": "AccessDenied",
    "topic_not_found": "QueueDoesNotExist",
    "not_a_queue": "QueueDoesNotExist",
    "topic_exists_incompatible": "QueueNameExists",
    "topic_full": "OverLimit",
    "throttled": "RequestThrottled",
    "not_primary": "ServiceUnavailable",
    "not_ready": "ServiceUnavailable",
    "not_replicated": "ServiceUnavailable",
    "read_only": "ServiceUnavailable",
    "shutting_down": "ServiceUnavailable",
    "storage_full": "ServiceUnavailable",
}


class SqsError(TopicsError):
    """An error that has a name in SQS."""

    code = "invalid_request"

    def __init__(self, shape: str, message: str) -> None:
        super().__init__(message)
        self.shape = shape

    @property
    def query_code(self) -> str:
        return QUERY_CODES.get(self.shape, self.shape)

    @property
    def http_status(self) -> int:
        return STATUSES.get(self.shape, 400)

    @property
    def fault(self) -> str:
        return "Sender" if self.http_status < 500 else "Receiver"


def as_sqs_error(error: TopicsError) -> SqsError:
    if isinstance(error, SqsError):
        return error
    if error.code == "topic_not_found":
        return no_such_queue()
    return SqsError(SHAPES.get(error.code, "InternalFailure"), error.message)


def no_such_queue() -> SqsError:
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    return SqsError("InvalidParameterValue", f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")

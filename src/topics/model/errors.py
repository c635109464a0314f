"""Every way a request or a data directory can fail: classes with a code and fields, for server, client and database.

A code is stable and machine-readable; the detail has the facts that a caller can act on. The API layer maps codes to
HTTP statuses in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class TopicsError(Exception):
    """Base of all errors that callers are meant to see.

    `status` is that of the HTTP reply, 0 if no server replied. `retry_after_s` is how long to wait before the next
    attempt, None if unknown.
    """

    code: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int = 0,
        detail: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
        **fields: Any,
    ) -> None:
        if retry_after_s is None and "retry_after_ms" in fields:
            retry_after_s = fields["retry_after_ms"] / 1000
        self._set(message, code, status, {**detail, **fields} if detail else fields, retry_after_s)

    def _set(
        self, message: str, code: str | None, status: int, detail: dict[str, Any], retry_after_s: float | None
    ) -> None:
        Exception.__init__(self, message)
        self.message = message
        if code is not None:
            self.code = code
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s

    @classmethod
    def reported(
        cls, message: str, code: str, status: int, detail: Mapping[str, Any] | None, retry_after_s: float | None
    ) -> Self:
        """An error as a server reported it, with its own message and status."""
        error = cls.__new__(cls)
        error._set(message, code, status, dict(detail or {}), retry_after_s)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors are pickled with all their fields."""
        return type(self).reported, (self.message, self.code, self.status, self.detail, self.retry_after_s)


# --- the request is wrong ---


class InvalidRequest(TopicsError):
    """Malformed input; `detail["field"]` names the field."""

    code = "invalid_request"


class BatchTooLarge(TopicsError):
    code = "batch_too_large"


class RecordTooLarge(TopicsError):
    code = "record_too_large"


class PayloadTooLarge(TopicsError):
    code = "payload_too_large"


class UriTooLong(TopicsError):
    code = "uri_too_long"


class HeadersTooLarge(TopicsError):
    code = "headers_too_large"


class RequestTimeout(TopicsError):
    """The server stopped waiting for the rest of the request."""

    code = "request_timeout"


class UnsupportedMediaType(TopicsError):
    code = "unsupported_media_type"


class NotAcceptable(TopicsError):
    code = "not_acceptable"


class MethodNotAllowed(TopicsError):
    """`detail["allow"]` lists the methods of the path."""

    code = "method_not_allowed"


# --- not allowed, not found ---


class Unauthorized(TopicsError):
    code = "unauthorized"


class Forbidden(TopicsError):
    code = "forbidden"


class NotFound(TopicsError):
    """The server has no such path."""

    code = "not_found"


class TopicNotFound(TopicsError):
    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', topic=topic)


class RouterNotFound(TopicsError):
    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f'router "{router}" does not exist', router=router)


class PipelineNotFound(TopicsError):
    code = "pipeline_not_found"

    def __init__(self, pipeline: str) -> None:
        super().__init__(f'pipeline "{pipeline}" does not exist', pipeline=pipeline)


class ScheduleNotFound(TopicsError):
    code = "schedule_not_found"

    def __init__(self, schedule: str) -> None:
        super().__init__(f'schedule "{schedule}" does not exist', schedule=schedule)


class JobNotFound(TopicsError):
    """The queue has no such job, or keeps nothing of it any more."""

    code = "job_not_found"

    def __init__(self, queue: str, seq: int) -> None:
        super().__init__(
            f'queue "{queue}" has no job {seq}, and keeps no result of one: it never existed, was deleted or expired, '
            "or ended longer ago than keep_results_ms",
            topic=queue,
            seq=seq,
        )


class JobGroupNotFound(TopicsError):
    code = "job_group_not_found"

    def __init__(self, queue: str, group: str) -> None:
        super().__init__(f'queue "{queue}" has no job group "{group}"', topic=queue, group=group)


class WebhookNotFound(TopicsError):
    code = "webhook_not_found"

    def __init__(self, webhook: str) -> None:
        super().__init__(f'webhook "{webhook}" does not exist', webhook=webhook)


# --- the current state forbids it ---


class JobGroupConflict(TopicsError):
    """The job group does not take these jobs: it was opened with another size or topic, or it is full."""

    code = "job_group_conflict"

    def __init__(self, group: str, why: str) -> None:
        super().__init__(f'job group "{group}" {why}', group=group)


class TopicExistsIncompatible(TopicsError):
    code = "topic_exists_incompatible"


class TableTaken(TopicsError):
    """Another pipeline writes that table."""

    code = "table_taken"

    def __init__(self, table: str, pipeline: str | None) -> None:
        """`pipeline` is None for a caller that may not know its name."""
        whose = "another pipeline" if pipeline is None else f'pipeline "{pipeline}"'
        super().__init__(
            f'table "{table}" is written by {whose}: name another table, or set sink.take_over to disable the other',
            detail={"table": table} if pipeline is None else {"table": table, "pipeline": pipeline},
        )


class TopicNotEmpty(TopicsError):
    code = "topic_not_empty"


class NotAQueue(TopicsError):
    """A queue verb was used on a topic that is not a queue."""

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" is not a queue', topic=topic)


class RouterCycle(TopicsError):
    """`detail["cycle"]` names the topics of the cycle in order."""

    code = "router_cycle"


class StageNotFound(TopicsError):
    """The stage was never created, has expired, was aborted, or was lost in a power failure."""

    code = "stage_not_found"


class Fenced(TopicsError):
    """The token is not the newest of its app: another process has taken over."""

    code = "fenced"


class PrimaryAlive(TopicsError):
    """The primary renews its lease, so no other server takes over unless it is forced to."""

    code = "primary_alive"


class TopicFull(TopicsError):
    code = "topic_full"


# --- try again later ---


class Throttled(TopicsError):
    """A cap is reached (`detail["limit"]`, `["max"]`), or there is pressure (`detail["retry_after_ms"]`)."""

    code = "throttled"


class NotReady(TopicsError):
    code = "not_ready"


class ShuttingDown(TopicsError):
    code = "shutting_down"


class ReadOnly(TopicsError):
    """A sync failed, or another process may be using the directory: no write is acknowledged until a restart."""

    code = "read_only"


class StorageFull(TopicsError):
    code = "storage_full"


class NotPrimary(TopicsError):
    """Another server is primary; `detail["primary"]` is its URL, if that is known.

    Nothing was changed, unless `detail["written"]`: the write was under way, and the one that took over may have it.
    """

    code = "not_primary"


class NotReplicated(TopicsError):
    """The bucket did not take a `replicated` write in time; `detail["written"]`: it may still become visible."""

    code = "not_replicated"


class BucketAway(TopicsError):
    """Records that are only in the bucket were asked for, and it does not answer; other reads are not affected."""

    code = "bucket_away"


class Internal(TopicsError):
    """A bug in the server, or a failed disk; `detail["trace_id"]` is in the server's log."""

    code = "internal"


# --- a data directory that cannot be trusted or opened ---


class StorageError(Internal):
    """A disk failed; nothing of the request became visible."""


class DamagedData(Internal):
    """Bytes on disk fail their checksum; `file`, `offset` (and for a read `from_seq`, `to_seq`) say where."""


class DataDirLocked(TopicsError):
    code = "data_dir_locked"


class DataDirIncompatible(TopicsError):
    code = "data_dir_incompatible"

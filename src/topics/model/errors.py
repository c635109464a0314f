"""Every way a request or a data directory can fail, as classes with a code and fields.

A code is stable and machine-readable; the detail carries the facts a caller can act on. What HTTP status a
code becomes is decided in one table of the API layer, never here.
"""

from __future__ import annotations

from typing import Any


class TopicsError(Exception):
    """Base of all errors that a caller is meant to see."""

    code: str = "internal"

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = detail


# --- a request that cannot be taken ---


class InvalidRequest(TopicsError):
    """Malformed input; `field` in the detail names the place."""

    code = "invalid_request"


class BatchTooLarge(TopicsError):
    code = "batch_too_large"


class RecordTooLarge(TopicsError):
    code = "record_too_large"


class TopicNotFound(TopicsError):
    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', topic=topic)


class TopicExistsIncompatible(TopicsError):
    code = "topic_exists_incompatible"


class NotAQueue(TopicsError):
    """A job was asked of a topic that only keeps records."""

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" is not a queue', topic=topic)


class RouterNotFound(TopicsError):
    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f'router "{router}" does not exist', router=router)


class PipelineNotFound(TopicsError):
    code = "pipeline_not_found"

    def __init__(self, pipeline: str) -> None:
        super().__init__(f'pipeline "{pipeline}" does not exist', pipeline=pipeline)


class RouterCycle(TopicsError):
    """`cycle` in the detail is the way round."""

    code = "router_cycle"


class StageNotFound(TopicsError):
    """A stage that was never begun, has expired, was aborted, or did not outlive a power failure."""

    code = "stage_not_found"


class Fenced(TopicsError):
    """The token is not the newest one of its app: somebody else took over."""

    code = "fenced"


class TopicNotEmpty(TopicsError):
    code = "topic_not_empty"


class TopicFull(TopicsError):
    code = "topic_full"


class Throttled(TopicsError):
    """A resource cap (`limit`, `max`) or pressure (`retry_after_ms`)."""

    code = "throttled"


# --- a server that cannot take it now ---


class NotReady(TopicsError):
    code = "not_ready"


class ShuttingDown(TopicsError):
    code = "shutting_down"


class ReadOnly(TopicsError):
    """A sync failed, or another process may have the directory: nothing may be acknowledged until a restart."""

    code = "read_only"


class StorageFull(TopicsError):
    code = "storage_full"


# --- a data directory that cannot be trusted or taken ---


class StorageError(TopicsError):
    """A disk refused; nothing of the request became visible."""

    code = "internal"


class DamagedData(TopicsError):
    """Bytes on disk fail their checksum; `file`, `offset` (and for a read `from_seq`, `to_seq`) say where."""

    code = "internal"


class DataDirLocked(TopicsError):
    code = "data_dir_locked"


class DataDirIncompatible(TopicsError):
    code = "data_dir_incompatible"

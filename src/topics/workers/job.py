"""A job as its handler sees it, and what a handler may raise about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topics.client import Job as Leased
from topics.client.errors import TopicsError
from topics.client.request import encode
from topics.model.requests.jobs import PROGRESS_BYTES_MAX, RESULT_BYTES_MAX

log = logging.getLogger("topics.workers")

DELAY_MS_MAX = 86_400_000
REASON_CHARS_MAX = 1_024


class Retry(Exception):
    """Raise this to have the job delivered again, after `delay` seconds.

    Without a delay the queue's `retry_backoff` decides; without one, 1 s, doubling up to 5 minutes.
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        if delay is not None and not 0 <= delay * 1000 <= DELAY_MS_MAX:
            raise ValueError(f"delay must be 0 to {DELAY_MS_MAX // 1000} seconds, not {delay}")
        super().__init__(reason or "asked to be retried")
        self.delay_ms = None if delay is None else round(delay * 1000)


class Reject(Exception):
    """Raise this for a job that can never succeed: it moves to the dead letters at once, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Release(Exception):
    """Raised for a job that has not failed but cannot be done here: it goes back to the queue at once."""


class Cancelled(asyncio.CancelledError):
    """Raised in a handler whose job was cancelled. A coroutine gets the `asyncio.CancelledError` that this one is."""


class Job:
    """A job to do. `lost` becomes true when the lease is lost: another worker may then be doing the job.

    `cancelled` becomes true, together with `lost`, when the job was cancelled: no worker will do it.
    """

    __slots__ = ("_leased", "_report", "cancelled", "lost", "topic")

    def __init__(self, topic: str, leased: Leased, report: Callable[[Job, bytes], None] | None = None) -> None:
        self.topic = topic
        self._leased = leased
        self._report = report
        self.lost = False
        self.cancelled = False

    @property
    def seq(self) -> int:
        """Identifies the job within its queue, the same at every delivery."""
        return self._leased.seq

    @property
    def data(self) -> Any:
        return self._leased.data

    @property
    def raw(self) -> bytes:
        """The payload, byte for byte as it was sent."""
        return self._leased.raw

    @property
    def tag(self) -> str | None:
        return self._leased.tag

    @property
    def node(self) -> str | None:
        """The node that appended it, if one was given."""
        return self._leased.node

    @property
    def meta(self) -> dict[str, Any]:
        return self._leased.meta or {}

    @property
    def ts(self) -> int:
        """When it was appended, in ms since the epoch."""
        return self._leased.ts

    @property
    def deliveries(self) -> int:
        """1 for the first delivery; after a restart the server counts again unless the queue's leases are durable."""
        return self._leased.deliveries

    @property
    def lease_id(self) -> str:
        return self._leased.lease_id

    def progress(self, value: Any) -> None:
        """Report how far the job is: any JSON value of at most 4 KiB. Does not wait; of several, the last is sent."""
        text = encode(value, "progress")
        if len(text) > PROGRESS_BYTES_MAX:
            raise ValueError(f"progress has {len(text)} bytes of JSON; at most {PROGRESS_BYTES_MAX} are allowed")
        if self._report is not None:
            self._report(self, text)

    @property
    def leased(self) -> Leased:
        """The job as a value of the client."""
        return self._leased

    def __repr__(self) -> str:
        return f"Job({self.topic}/{self.seq}, delivery {self.deliveries})"


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What is reported to the server about a job; jobs with the same outcome are reported together."""

    acked: bool = False
    # Returned because the worker stops: the job has not failed.
    released: bool = False
    delay_ms: int | None = None
    dead_letter: bool = False
    # Moved to the dead letters because of its number of deliveries, not because its handler rejected it.
    last: bool = False
    error: str | None = None


ACK = JobOutcome(acked=True)
RELEASE = JobOutcome(released=True, delay_ms=0, error="the worker was stopped")


class Counts:
    """Outcomes that the server has accepted. A job that was retried twice counts twice."""

    __slots__ = ("dead", "done", "rejected", "retried")

    def __init__(self) -> None:
        self.done = self.retried = self.dead = self.rejected = 0


def failed(error: BaseException, *, delay_ms: int | None = None, dead_letter: bool = False) -> JobOutcome:
    """The error as text, as the server stores it."""
    text = str(error).encode("utf-8", "backslashreplace").decode()
    if not isinstance(error, Retry | Reject | Release):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return JobOutcome(delay_ms=delay_ms, dead_letter=dead_letter, error=text[:REASON_CHARS_MAX])


def result_of(job: Job, returned: object) -> bytes | None:
    """What a handler returned, as JSON; None if it cannot be kept: the job is done all the same."""
    try:
        text = encode(returned, "result")
    except (TopicsError, TypeError, ValueError, RecursionError) as error:
        log.warning("%s/%d: what the handler returned is not kept, it is not JSON: %s", job.topic, job.seq, error)
        return None
    if len(text) > RESULT_BYTES_MAX:
        most = RESULT_BYTES_MAX
        log.warning("%s/%d: the result is not kept, it has %d bytes of %d", job.topic, job.seq, len(text), most)
        return None
    return text

"""Queues: claim jobs, finish or return them, and handle dead letters."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from topics.client.aio.wire.transport import AsyncTransport
from topics.client.aio.work import AsyncWork
from topics.client.jobs import (
    Acked,
    Cancelled,
    Claimed,
    Extended,
    Job,
    JobGroupStatus,
    Jobs,
    JobsChanged,
    JobStatus,
    Lease,
    LeasePage,
    Nacked,
    Paused,
    QueuedJob,
    QueuedJobPage,
    Redriven,
    held,
)
from topics.client.request import QueryValue, Request, body_of, topic_path, with_query
from topics.model.requests.jobs import JobAction, JobState

PAGE_SIZE: Final = 1_000
JOBS_PAGE_SIZE: Final = 100
_claimed = msgspec.json.Decoder(Claimed)
_acked = msgspec.json.Decoder(Acked)
_job = msgspec.json.Decoder(JobStatus)
_group = msgspec.json.Decoder(JobGroupStatus)
_cancelled = msgspec.json.Decoder(Cancelled)
_nacked = msgspec.json.Decoder(Nacked)
_extended = msgspec.json.Decoder(Extended, strict=False)
_redriven = msgspec.json.Decoder(Redriven)
_paused = msgspec.json.Decoder(Paused)
_leases = msgspec.json.Decoder(LeasePage)
_jobs = msgspec.json.Decoder(QueuedJobPage)
_changed = msgspec.json.Decoder(JobsChanged)


class AsyncQueues:
    _transport: AsyncTransport

    def _worker(self, node: str | None) -> str:
        """The node that claims: the given one, that of the client, or a name for this process."""
        return node or self._transport.options.node or f"{socket.gethostname()}-{os.getpid()}"

    async def claim(
        self, name: str, node: str | None = None, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0
    ) -> list[Job]:
        """Lease up to `max` jobs; with `wait_ms` (at most 30000) the reply waits for one."""
        body = body_of(node=self._worker(node), max=max, lease_ms=lease_ms, wait_ms=wait_ms)
        # Not retried when the reply is lost: its jobs are leased, and become ready again when the lease expires.
        request = Request(method="POST", path=topic_path(name, "/claim"), decoder=_claimed, body=body, wait_ms=wait_ms)
        return (await self._transport.call(request)).claimed

    async def ack(
        self,
        name: str,
        jobs: Jobs,
        node: str | None = None,
        *,
        result: Any = None,
        results: Sequence[Any] | None = None,
    ) -> Acked:
        """Jobs are done, and deleted. `skipped` has those that are no longer held.

        `result` is that of a single job, `results` has one for each; a queue with `keep_results_ms` keeps them.
        """
        seqs, lease_ids = held(jobs)
        body = body_of(node=self._worker(node), seqs=seqs, lease_ids=lease_ids, result=result, results=results)
        request = Request(method="POST", path=topic_path(name, "/ack"), decoder=_acked, body=body, safe=True)
        return await self._transport.call(request)

    async def nack(
        self,
        name: str,
        jobs: Jobs,
        node: str | None = None,
        *,
        delay_ms: int | None = None,
        dead_letter: bool = False,
        error: str | None = None,
    ) -> Nacked:
        """Return jobs: claimable at once, after `delay_ms`, or moved to the dead letters."""
        seqs, lease_ids = held(jobs)
        body = body_of(
            node=self._worker(node),
            seqs=seqs,
            lease_ids=lease_ids,
            delay_ms=delay_ms,
            dead_letter=dead_letter or None,
            error=error,
        )
        # Without leases a second nack could affect jobs that this node has claimed again meanwhile.
        request = Request(
            method="POST",
            path=topic_path(name, "/nack"),
            decoder=_nacked,
            body=body,
            safe=lease_ids is not None,
        )
        return await self._transport.call(request)

    async def extend(
        self, name: str, jobs: Jobs, lease_ms: int, node: str | None = None, *, progress: Any = None
    ) -> Extended:
        """Extend leases to `lease_ms` from now. `cancelled` has the skipped ones that are not wanted any more.

        `progress` is any JSON value that says how far the jobs are; `job` shows it.
        """
        seqs, lease_ids = held(jobs)
        body = body_of(node=self._worker(node), seqs=seqs, lease_ids=lease_ids, lease_ms=lease_ms, progress=progress)
        request = Request(method="POST", path=topic_path(name, "/extend"), decoder=_extended, body=body, safe=True)
        return await self._transport.call(request)

    async def cancel(self, name: str, jobs: Jobs) -> Cancelled:
        """Remove jobs, whatever their state; a worker that has one learns it when it extends its lease."""
        body = body_of(seqs=held(jobs)[0])
        request = Request(method="POST", path=topic_path(name, "/cancel"), decoder=_cancelled, body=body, safe=True)
        return await self._transport.call(request)

    async def job(self, name: str, seq: int, wait_ms: int = 0) -> JobStatus:
        """How one job stands; with `wait_ms` (at most 30000) the reply waits for its end.

        Raises JobNotFound if it has ended and the queue keeps no results, or no longer.
        """
        path = with_query(topic_path(name, f"/jobs/{seq}"), {"wait_ms": wait_ms or None})
        return await self._transport.call(Request(method="GET", path=path, decoder=_job, safe=True, wait_ms=wait_ms))

    async def job_group(self, name: str, group: str) -> JobGroupStatus:
        """How many jobs of a group have ended."""
        path = topic_path(name, f"/job-groups/{quote(group, safe='')}")
        return await self._transport.call(Request(method="GET", path=path, decoder=_group, safe=True))

    async def redrive(
        self,
        name: str,
        *,
        match: str | tuple[str, str, str] | None = None,
        limit: int | None = None,
        rate_per_s: int | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Move dead letters of this topic back to their queues."""
        body = body_of(match=match, limit=limit, rate_per_s=rate_per_s, dry_run=dry_run or None)
        request = Request(method="POST", path=topic_path(name, "/redrive"), decoder=_redriven, body=body, safe=dry_run)
        return await self._transport.call(request)

    async def pause(self, name: str) -> Paused:
        """Hand out no more jobs until `resume`."""
        return await self._control(name, "/pause")

    async def resume(self, name: str) -> Paused:
        return await self._control(name, "/resume")

    async def _control(self, name: str, verb: str) -> Paused:
        request = Request(method="POST", path=topic_path(name, verb), decoder=_paused, body=b"{}", safe=True)
        return await self._transport.call(request)

    async def leases(self, name: str, *, page_size: int = PAGE_SIZE) -> AsyncIterator[Lease]:
        """The leases of a queue, the next to expire first; pages are fetched as needed."""
        query: dict[str, QueryValue] = {"page_size": page_size}
        async for page in self._transport.pages(topic_path(name, "/leases"), query, _leases):
            for lease in page.leases:
                yield lease

    async def jobs(
        self, name: str, state: JobState, *, tag: str | None = None, page_size: int = JOBS_PAGE_SIZE
    ) -> AsyncIterator[QueuedJob]:
        """Jobs that are ready, leased, delayed or dead; `user-*` is a prefix of tags. Pages are fetched as needed."""
        query: dict[str, QueryValue] = {"state": state, "tag": tag, "page_size": page_size}
        async for page in self._transport.pages(topic_path(name, "/jobs"), query, _jobs):
            for job in page.jobs:
                yield job

    async def change_jobs(
        self,
        name: str,
        action: JobAction,
        *,
        state: JobState | None = None,
        seqs: Sequence[int] | None = None,
        match: str | tuple[str, str, str] | None = None,
        all: bool = False,
        limit: int | None = None,
        lease_ms: int | None = None,
        rate_per_s: int | None = None,
        error: str | None = None,
        dry_run: bool = False,
    ) -> JobsChanged:
        """Retry, release, extend, bury, redrive or delete the jobs of `seqs`, those whose tag matches, or all."""
        body = body_of(
            action=action,
            state=state,
            seqs=seqs,
            match=match,
            all=all or None,
            limit=limit,
            lease_ms=lease_ms,
            rate_per_s=rate_per_s,
            error=error,
            dry_run=dry_run or None,
        )
        request = Request(method="POST", path=topic_path(name, "/jobs"), decoder=_changed, body=body, safe=dry_run)
        return await self._transport.call(request)

    def work(
        self,
        name: str,
        node: str | None = None,
        max: int = 1,
        lease_ms: int | None = None,
        *,
        reconnect_s_max: float = 600.0,
    ) -> AsyncWork:
        """Jobs pushed as they become ready, at most `max` of them unacked; see AsyncWork."""
        query = {"node": self._worker(node), "max": max, "lease_ms": lease_ms}
        return AsyncWork(self._transport, with_query(topic_path(name, "/work"), query), reconnect_s_max)

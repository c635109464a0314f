"""Queues: claim jobs, finish or return them, and handle dead letters."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from topics.client.jobs import (
    Acked,
    Cancelled,
    Extended,
    Job,
    JobGroupStatus,
    Jobs,
    JobsChanged,
    JobStatus,
    Lease,
    Nacked,
    Paused,
    QueuedJob,
    Redriven,
    held,
)
from topics.client.request import encode
from topics.embedded.host import Host
from topics.embedded.requests import request_of, warn
from topics.embedded.work import Work
from topics.engine.core.listing import PAGE_SIZE_MAX
from topics.engine.queues.due import NO_STREAM
from topics.engine.queues.operator.job_pages import START, JobPosition
from topics.engine.queues.results.lookup import GroupReport, JobReport
from topics.engine.queues.verbs import Held
from topics.model.requests.jobs import CancelRequest, JobAction, JobsRequest, JobState
from topics.model.requests.nesting import decode_deep
from topics.model.requests.records import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
    RedriveRequest,
    parse_match,
)
from topics.model.requests.warnings import match_warnings, results_warning

PAGE_SIZE: Final = 1_000
JOBS_PAGE_SIZE: Final = 100
_jobs = msgspec.json.Decoder(list[Job])
_queued = msgspec.json.Decoder(list[QueuedJob])


class Queues:
    _host: Host
    _node: str | None

    def _worker(self, node: str | None) -> str:
        """The node that claims: the given one, that of the database, or a name for this process."""
        return node or self._node or f"{socket.gethostname()}-{os.getpid()}"

    # --- claim ---

    def claim(
        self, name: str, node: str | None = None, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0
    ) -> list[Job]:
        """Lease up to `max` jobs; with `wait_ms` (at most 30000) the call waits for one."""
        host = self._host
        request = request_of(ClaimRequest, node=self._worker(node), max=max, lease_ms=lease_ms, wait_ms=wait_ms)
        _, grant = host.run(host.store.claims.claim(name, request))
        return decode_deep(_jobs.decode, b"[%b]" % b",".join(grant.jobs))

    # --- ack, nack, extend ---

    def ack(
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
        request = request_of(
            AckRequest,
            node=self._worker(node),
            seqs=seqs,
            lease_ids=lease_ids,
            result=None if result is None else _json(result, "result"),
            results=None if results is None else [_json(each, "results") for each in results],
        )
        done: Held = self._host.commit(lambda: self._host.store.queues.ack(name, request)).result
        ready, in_flight = self._counters(name)
        warnings = [] if done.results_kept else [results_warning(name)]
        warn(warnings)
        return Acked(
            topic=name,
            acked=len(done.jobs),
            skipped=done.skipped,
            ready=ready,
            in_flight=in_flight,
            warnings=warnings,
        )

    def nack(
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
        request = request_of(
            NackRequest,
            node=self._worker(node),
            seqs=seqs,
            lease_ids=lease_ids,
            delay_ms=delay_ms,
            dead_letter=dead_letter,
            error=error,
        )
        done: Held = self._host.commit(lambda: self._host.store.queues.nack(name, request)).result
        ready, in_flight = self._counters(name)
        return Nacked(topic=name, nacked=len(done.jobs), skipped=done.skipped, ready=ready, in_flight=in_flight)

    def extend(
        self, name: str, jobs: Jobs, lease_ms: int, node: str | None = None, *, progress: Any = None
    ) -> Extended:
        """Extend leases to `lease_ms` from now. `cancelled` has the skipped ones that are not wanted any more.

        `progress` is any JSON value that says how far the jobs are; `job` shows it.
        """
        seqs, lease_ids = held(jobs)
        request = request_of(
            ExtendRequest,
            node=self._worker(node),
            seqs=seqs,
            lease_ids=lease_ids,
            lease_ms=lease_ms,
            progress=None if progress is None else _json(progress, "progress"),
        )
        done: Held = self._host.commit(lambda: self._host.store.queues.extend(name, request)).result
        deadlines = dict.fromkeys(done.jobs, done.deadline)
        cancelled = list(done.cancelled)
        return Extended(
            topic=name, extended=len(done.jobs), skipped=done.skipped, deadlines=deadlines, cancelled=cancelled
        )

    def cancel(self, name: str, jobs: Jobs) -> Cancelled:
        """Remove jobs, whatever their state; a worker that has one learns it when it extends its lease."""
        request = request_of(CancelRequest, seqs=held(jobs)[0])
        done = self._host.run(self._host.store.queues.job_actions.cancel(name, request, _nothing))
        ready, in_flight = self._counters(name)
        return Cancelled(topic=name, cancelled=done.removed, skipped=done.skipped, ready=ready, in_flight=in_flight)

    # --- one job, one group ---

    def job(self, name: str, seq: int, wait_ms: int = 0) -> JobStatus:
        """How one job stands; with `wait_ms` (at most 30000) the call waits for its end.

        Raises JobNotFound if it has ended and the queue keeps no results, or no longer.
        """
        report: JobReport = self._host.run(self._host.store.job_lookup.waiting(name, seq, wait_ms))
        fields = {field: value for field, value in report._asdict().items() if value or field == "deliveries"}
        for field in ("progress", "result"):
            if field in fields:
                fields[f"{field}_json"] = Raw(fields.pop(field))
        return JobStatus(topic=name, **fields)

    def job_group(self, name: str, group: str) -> JobGroupStatus:
        """How many jobs of a group have ended."""
        report: GroupReport = self._host.look(lambda: self._host.store.job_lookup.group(name, group))
        optional = ("notified_ts", "notified_seq", "error")
        fields = {field: value for field, value in report._asdict().items() if value or field not in optional}
        return JobGroupStatus(topic=name, **fields)

    def _counters(self, name: str) -> tuple[int, int]:
        def count() -> tuple[int, int]:
            queue = self._host.store.queues.existing(name)
            return queue.ready, queue.in_flight

        return self._host.look(count)

    # --- dead letters, pauses, leases ---

    def redrive(
        self,
        name: str,
        *,
        match: str | tuple[str, str, str] | None = None,
        limit: int | None = None,
        rate_per_s: int | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Move dead letters of this topic back to their queues."""
        request = request_of(RedriveRequest, match=match, limit=limit, rate_per_s=rate_per_s, dry_run=dry_run)
        redriver = self._host.store.queues.redriver
        driven = self._host.run(redriver.redrive_all(name, request, lambda _: True))
        warnings = match_warnings(request.match, "match")
        warn(warnings)
        return Redriven(
            topic=name,
            moved=driven.moved,
            to=driven.homes,
            skipped=driven.skipped,
            more=driven.more,
            dry_run=dry_run,
            warnings=warnings,
        )

    def pause(self, name: str) -> Paused:
        """Hand out no more jobs until `resume`."""
        return self._pause(name, paused=True)

    def resume(self, name: str) -> Paused:
        return self._pause(name, paused=False)

    def _pause(self, name: str, *, paused: bool) -> Paused:
        self._host.commit(lambda: self._host.store.queues.pause(name, paused=paused))
        ready, in_flight = self._counters(name)
        return Paused(topic=name, paused=paused, ready=ready, in_flight=in_flight)

    def leases(self, name: str, *, page_size: int = PAGE_SIZE) -> Iterator[Lease]:
        """The leases of a queue, the next to expire first."""
        size = min(PAGE_SIZE_MAX, max(1, page_size))
        after = 0, 0
        while True:
            page = self._leases(name, after, size)
            for _, lease in page[:size]:
                yield lease
            if len(page) <= size:
                return
            after = page[size - 1][0], page[size - 1][1].seq

    def _leases(self, name: str, after: tuple[int, int], size: int) -> list[tuple[int, Lease]]:
        """One more lease than fits a page, if there is one; each with the deadline that leases are ordered by."""
        host = self._host
        steady = host.engine.steady

        def find() -> list[tuple[int, Lease]]:
            topic, queue, _ = host.store.queues.find(name)
            return [
                (
                    job.deadline,
                    Lease(
                        seq=seq,
                        node=job.node,
                        lease_id=f"lease_{job.lease_of(seq):x}",
                        claimed_ts=steady.wall_ms(job.claimed_ms) if job.claimed_ms else None,
                        deadline=steady.wall_ms(job.deadline),
                        deliveries=job.deliveries,
                        pushed=job.stream != NO_STREAM,
                        error=job.error or None,
                    ),
                )
                for seq, job in queue.leases_from(topic, *after, size + 1)
            ]

        return host.look(find)

    def jobs(
        self, name: str, state: JobState, *, tag: str | None = None, page_size: int = JOBS_PAGE_SIZE
    ) -> Iterator[QueuedJob]:
        """Jobs that are ready, leased, delayed or dead; `user-*` is a prefix of tags."""
        match = None if tag is None else parse_match(["tag", "Glob" if tag.endswith("*") else "Eq", tag], "tag")
        after: JobPosition | None = START
        pages = self._host.store.queues.job_pages
        while after is not None:
            page = self._host.run(pages.page(name, state, match, after, max(1, min(PAGE_SIZE_MAX, page_size))))
            yield from decode_deep(_queued.decode, b"[%b]" % b",".join(page.jobs))
            after = page.after

    def change_jobs(
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
        request = request_of(
            JobsRequest,
            action=action,
            state=state,
            seqs=seqs,
            match=match,
            all=all,
            limit=limit,
            lease_ms=lease_ms,
            rate_per_s=rate_per_s,
            error=error,
            dry_run=dry_run,
        )
        done = self._host.run(self._host.store.queues.job_actions.act(name, request, _nothing))
        warnings = match_warnings(request.match, "match")
        warn(warnings)
        return JobsChanged(
            topic=name,
            action=action,
            state=done.state,
            changed=done.changed,
            skipped=done.skipped,
            more=done.more,
            dry_run=dry_run,
            warnings=warnings,
        )

    def work(
        self,
        name: str,
        node: str | None = None,
        max: int = 1,
        lease_ms: int | None = None,
        *,
        reconnect_s_max: float = 600.0,
    ) -> Work:
        """Jobs as they become ready, at most `max` of them unacked; see Work. There is no connection to lose here."""
        del reconnect_s_max
        return Work(self._host, name, request_of(ClaimRequest, node=self._worker(node), max=max, lease_ms=lease_ms))


def _json(value: Any, field: str) -> Raw:
    return Raw(encode(value, field))


def _nothing() -> None:
    """Some jobs are changed: nobody can go away here."""
